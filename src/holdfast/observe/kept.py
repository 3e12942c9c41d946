"""The retention policy, and what it deletes next. All reads are short."""

from __future__ import annotations  # so that they cost nothing at import

from ..clock import as_datetime
from ..retention import ENDED, LAST_ID, NOTHING, Retention, decider, expiry
from ..store.protocol import Store
from .answers import Kept

MOST_DUE = 1000  # are counted, of each status
FIRST = 100  # of each status are looked at, for the one that goes next

ALL = (2**63 - 1, LAST_ID)


def look(store: Store, rules: Retention | None, now: int) -> Kept:
    """Look at ages only: what a limit on numbers or bytes would delete is told by a dry run."""
    last = store.pruning.state()
    due, more = (0, False) if rules is None else _due(store, rules, now)
    upcoming = min(_upcoming(store, rules), default=None) if rules is not None else None
    return Kept(
        rules=None if rules is None else rules.in_words(),
        automatic=rules is not None and rules.automatic,
        due=due,
        more_due=more,
        next_job_id=None if upcoming is None else upcoming[1],
        next_at=None if upcoming is None else as_datetime(upcoming[0]),
        last_pruned_at=None if last.last_at is None else as_datetime(last.last_at),
        last_pruned_jobs=sum(last.last_counts.get(status, 0) for status in ENDED),
        left_behind=store.file.left_behind(),
    )


def _due(store: Store, rules: Retention, now: int) -> tuple[int, bool]:
    marks, found, more = expiry(rules, now), 0, False
    for status in ENDED:
        ended = store.pruning.ended_after(status, NOTHING, marks.latest(status), MOST_DUE)
        found += sum(one.mark <= marks.until(status, one.queue, one.task) for one in ended)
        more = more or len(ended) == MOST_DUE
    return found, more


def _upcoming(store: Store, rules: Retention) -> list[tuple[int, int]]:
    """Return when each of the oldest jobs expires, and its id."""
    found = []
    for status in ENDED:
        limits = list(rules.limits(status))
        for one in store.pruning.ended_after(status, NOTHING, ALL, FIRST):
            age_limit = limits[decider(limits, one.queue, one.task)].age
            if age_limit is not None:
                found.append((one.finished_at + age_limit, one.id))
    return found
