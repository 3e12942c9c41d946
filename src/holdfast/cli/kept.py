"""How long things are kept, and what goes next: the last of the five answers. Each look is short."""

from __future__ import annotations  # so that they cost nothing at import

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ..clock import as_datetime, as_microseconds
from ..errors import InvalidInput
from ..retention import ENDED, LAST_ID, NOTHING, Retention, decider, expiry
from ..wording import size
from .text import age, due, optional_iso, plural

if TYPE_CHECKING:
    from ..observe.answers import Storage
    from ..process import Holdfast

MOST_DUE = 1000  # are counted, of each status
FIRST = 100  # of each status are looked at, for the one that goes next

ALL = (2**63 - 1, LAST_ID)


class Kept(NamedTuple):
    rules: str | None  # None: another version's, by which nothing is deleted
    automatic: bool
    due: int
    more_due: bool
    next_id: int | None
    next_at: datetime | None
    pruned_at: datetime | None
    pruned: int


def look(app: Holdfast, now: datetime) -> Kept:
    """By age; what a limit on numbers or bytes would take is told by `holdfast prune --dry-run`."""
    last = app.store.upkeep()
    pruned_at = None if last.last_at is None else as_datetime(last.last_at)
    pruned = sum(last.last_counts.get(status, 0) for status in ENDED)
    try:
        rules = app.retention
    except InvalidInput:
        return Kept(None, False, 0, False, None, None, pruned_at, pruned)
    due_now, more = _due(app, rules, as_microseconds(now))
    upcoming = min(_upcoming(app, rules), default=None)
    next_at, next_id = (None, None) if upcoming is None else (as_datetime(upcoming[0]), upcoming[1])
    return Kept(rules.in_words(), rules.automatic, due_now, more, next_id, next_at, pruned_at, pruned)


def _due(app: Holdfast, rules: Retention, now: int) -> tuple[int, bool]:
    marks, found, more = expiry(rules, now), 0, False
    for status in ENDED:
        ended = app.store.ended_after(status, NOTHING, marks.latest(status), MOST_DUE)
        found += sum(one.mark <= marks.until(status, one.queue, one.task) for one in ended)
        more = more or len(ended) == MOST_DUE
    return found, more


def _upcoming(app: Holdfast, rules: Retention) -> list[tuple[int, int]]:
    """When each of the first goes, and its id."""
    found = []
    for status in ENDED:
        limits = list(rules.limits(status))
        for one in app.store.ended_after(status, NOTHING, ALL, FIRST):
            age_limit = limits[decider(limits, one.queue, one.task)].age
            if age_limit is not None:
                found.append((one.finished_at + age_limit, one.id))
    return found


def in_words(kept: Kept, storage: Storage, now: datetime) -> list[str]:
    words = [f"the file has {size(storage.database_bytes)}"]
    if storage.free_bytes_in_file:
        words.append(f"{size(storage.free_bytes_in_file)} of it unused")
    words.append(f"its log {size(storage.wal_bytes)}")
    words.append(f"{size(storage.disk_free_bytes)} free on the disk")
    sentences = [", ".join(words)]
    if kept.rules is None:
        return [*sentences, "the rules are of another version of Holdfast: nothing is deleted"]
    sentences.append(f"kept: {kept.rules}{'' if kept.automatic else ' (only when somebody prunes)'}")
    if kept.due:
        sentences.append(f"to be deleted now: {kept.due:,}{'+' if kept.more_due else ''} jobs")
    elif kept.next_at is not None:
        sentences.append(f"next to be deleted: job {kept.next_id}, {due(kept.next_at, now)}")
    if kept.pruned_at is not None:
        sentences.append(f"last pruned {age(kept.pruned_at, now)} ago: {plural(kept.pruned, 'job')}")
    return sentences


def as_data(kept: Kept) -> dict[str, Any]:
    return {
        "rules": kept.rules,
        "automatic": kept.automatic,
        "due": kept.due,
        "more_due": kept.more_due,
        "next_job_id": kept.next_id,
        "next_at": optional_iso(kept.next_at),
        "last_pruned_at": optional_iso(kept.pruned_at),
        "last_pruned_jobs": kept.pruned,
    }
