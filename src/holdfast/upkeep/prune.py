"""A run of pruning: one loop over the rules, in steps that leave the database to others in between."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from heapq import merge
from itertools import chain
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from ..clock import Clock
from ..model.pruning import (
    LONG_HISTORY,
    Doomed,
    DoomedChain,
    EndedJob,
    EndOfChain,
    LoneJobs,
    OldKind,
    OldRows,
    PartOfHistory,
    Pruned,
    WholeChains,
)
from ..retention import ENDED, LAST_ID, NOTHING, Expiry, Mark, Retention, decider, expiry, of_any
from ..store.protocol import Store
from .archive import Archive
from .dry_run import Forecast
from .pacing import Pace

T = TypeVar("T", EndedJob, DoomedChain)
CHUNK_ROWS = 2000
MOST_ROWS = 5000
LEAST_ROWS = 50
LEAST_JOBS = 10
FIRST_ROWS = 500
LONG_CHAIN = 1000
MOST_CHAINS = 500
SOME_OLD = 1000
SOME_TRACEBACKS = SOME_BLOBS = 100
END: Mark = (LAST_ID, LAST_ID)
"""Behind all that have ended: a clock that was wrong may have put some ahead of now."""


class TakenOver(Exception):
    """Another run has taken over, or is running."""


class Found(NamedTuple):
    """Jobs that a rule found, and which of them may go."""

    jobs: list[EndedJob]
    expiry: Expiry
    by_size: bool = False


class Deleter:
    """Deletes what a run finds.

    begin: returns the token of the run, or None where another is running. archive: returns the file to which jobs are
    written before they are deleted. Both are called when there is something to delete.
    """

    gone: Collection[int] = ()  # nothing counts as deleted that is there: see Forecast
    gone_jobs = gone_bytes = 0

    def __init__(
        self, store: Store, begin: Callable[[], str | None], archive: Callable[[], Archive] | None = None
    ) -> None:
        self._store, self._begin, self._archive = store, begin, archive
        self._token: str | None = None
        self.counts: Counter[str] = Counter()
        self.archived = 0

    def begin(self) -> str:
        """Return the token; take it first, if this run does not have it."""
        self._token = self._token or self._begin()
        if self._token is None:
            raise TakenOver
        return self._token

    def end(self, interrupted: bool) -> None:
        token, self._token = self._token, None
        if token is not None:
            self._store.pruning.end(token, interrupted)

    def archive(self, ids: Collection[int]) -> None:
        if self._archive is not None:
            self.begin()
            self.archived += self._archive().append(self._store.pruning.export(ids))

    def delete(self, doomed: Doomed, by_size: bool) -> Pruned:  # noqa: ARG002
        return self._count(self._store.pruning.delete(self.begin(), doomed, self.counts))

    def delete_old(self, rows: OldRows) -> Pruned:
        done = self._store.pruning.delete_old(self._token, rows, self.counts)
        if self._token is None and done is not None and done.rest == rows and not done.rows:
            done = self._store.pruning.delete_old(self.begin(), rows, self.counts)  # there are some
        return self._count(done)

    def _count(self, done: Pruned | None) -> Pruned:
        if done is None:
            self._token = None
            raise TakenOver
        self.counts.update({name: n for name, n in done.counts.items() if n})
        return done


class Run:
    """Goes through the rules, and for each through what it finds, the oldest first."""

    def __init__(
        self, store: Store, clock: Clock, retention: Retention, target: Deleter | Forecast, rows: int | None = None
    ) -> None:
        """target: what to do with what is found. rows: how much to do at a time, at first."""
        self._store, self._clock, self._retention, self._target = store, clock, retention, target
        self._pace = Pace(rows or FIRST_ROWS, LEAST_ROWS, MOST_ROWS)
        self.reached: dict[str, Mark] = {}
        """How far each status was looked at, by age and number."""
        self._judged: set[int] = set()  # chains
        # What was found and is still to be done: jobs, chains to judge, chains to delete, transactions.
        self._alone: deque[EndedJob] = deque()
        self._chains: deque[int] = deque()
        self._doomed: deque[DoomedChain] = deque()
        self._parts: deque[Doomed] = deque()

    def steps(self, after: dict[str, Mark] | None = None) -> Iterator[float]:
        """Each next() is one step, a read or a short transaction; it gives the seconds for which others had to wait.

        after: where to begin, by status, if all before was looked at not long ago; then old rows are left alone.
        """
        for waiting in (self._alone, self._chains, self._doomed, self._parts, self._judged):
            waiting.clear()
        now, surplus = self._clock.now(), dict[tuple[str, int], Mark]()
        for _ in self._find_surplus(surplus):
            yield 0.0
        by_rule = expiry(self._retention, now, surplus)
        for found in chain(self._expired(by_rule, after or {}), self._too_large(by_rule)):
            self._sort(found)
            while self._parts or self._alone or self._doomed or self._chains:
                yield self._step(found)
            yield 0.0
        for rule in old_rows(self._retention, now):
            rows = rule if after is None or rule.what == "blobs" else None
            while rows is not None:
                done = self._target.delete_old(rows)
                rows = done.rest
                yield done.seconds

    def ease(self) -> bool:
        """Do less at a time from now on. False: it is as little as it can be."""
        return self._pace.halve()

    # --- rules ---

    def _find_surplus(self, marks: dict[tuple[str, int], Mark]) -> Iterator[None]:
        """Where only the newest are kept: mark the last of those that are too many, by status and limit."""
        for status, surplus in self._surplus().items():
            limits, after = list(self._retention.limits(status)), NOTHING
            while surplus and (jobs := self._store.pruning.ended_after(status, after, END, CHUNK_ROWS)):
                for job in jobs:
                    place = decider(limits, job.queue, job.task)
                    if surplus.get(place):
                        marks[status, place] = job.mark
                        surplus[place] -= 1
                after, surplus = jobs[-1].mark, {place: n for place, n in surplus.items() if n}
                yield

    def _surplus(self) -> dict[str, dict[int, int]]:
        """How many jobs are more than the limits allow, by status and limit."""
        found: dict[str, Counter[int]] = {status: Counter() for status in ENDED}
        if self._retention.counts_matter():
            limits = {status: list(self._retention.limits(status)) for status in ENDED}
            for count in self._store.statistics.counts().items:
                if count.status in limits:
                    place = decider(limits[count.status], count.queue, count.task)
                    found[count.status][place] += count.count or 0
            for status, counts in found.items():
                for place, limit in enumerate(limits[status]):
                    counts[place] -= counts[place] if limit.newest is None else limit.newest
        return {status: dict(+counts) for status, counts in found.items()}

    def _expired(self, by_rule: Expiry, after: dict[str, Mark]) -> Iterator[Found]:
        """Jobs that have expired, by age or number."""
        for status in ENDED:
            mark, last = after.get(status, NOTHING), by_rule.latest(status)
            while jobs := self._store.pruning.ended_after(status, mark, last, CHUNK_ROWS):
                mark = jobs[-1].mark
                yield Found(jobs, by_rule)
                self.reached[status] = mark

    def _too_large(self, by_rule: Expiry) -> Iterator[Found]:
        """The oldest jobs, for as long as there is too much in the file."""
        most, mark = self._retention.max_bytes, NOTHING
        self._judged.clear()
        while most is not None and (size := self._used_bytes()) > most and (jobs := self._oldest(mark)):
            # What they free is known only when they are gone: so half of what it may take, and then look again.
            share = (size - most) / size / 2
            number = min(self._pace.amount // jobs[0].rows, round(self._ended() * share))
            jobs = jobs[: max(LEAST_JOBS, number)]
            mark = jobs[-1].mark
            yield Found([job for job in jobs if job.linked or not _has_expired(job, by_rule)], of_any(mark), True)

    def _used_bytes(self) -> int:
        return self._store.file.pages().used_bytes - self._target.gone_bytes

    def _ended(self) -> int:
        counts = [one.count or 0 for one in self._store.statistics.counts().items if one.status in ENDED]
        return sum(counts) - self._target.gone_jobs

    def _oldest(self, after: Mark) -> list[EndedJob]:
        lines = (self._store.pruning.ended_after(status, after, END, CHUNK_ROWS) for status in ENDED)
        return list(merge(*lines, key=lambda job: job.mark))[:CHUNK_ROWS]

    # --- what they found ---

    def _sort(self, found: Found) -> None:
        """Jobs that stand alone go by themselves, one status at a time; others with their chains."""
        for job in sorted(found.jobs, key=lambda job: job.status):
            if not job.linked and _has_expired(job, found.expiry):
                self._alone.append(job)
            elif job.linked and job.chain not in self._judged:
                self._judged.add(job.chain)
                self._chains.append(job.chain)

    def _step(self, found: Found) -> float:
        if not self._parts and self._alone:
            self._parts.extend(self._cut_alone())
        elif not self._parts and self._doomed:
            self._parts.extend(self._cut_chains(found.expiry))
        elif not self._parts:
            some = [self._chains.popleft() for _ in range(min(len(self._chains), MOST_CHAINS))]
            self._doomed.extend(self._store.pruning.doomed_chains(some, found.expiry, self._target.gone))
            return 0.0
        return self._delete(self._parts[0], found.by_size)

    def _cut_alone(self) -> list[Doomed]:
        status = self._alone[0].status
        jobs = self._cut(self._alone, lambda job: job.status == status)
        self._target.archive([job.id for job in jobs])
        long = (job for job in jobs if job.attempt > LONG_HISTORY)
        return [*(PartOfHistory(job.id, status, job.finished_at) for job in long), LoneJobs(status, tuple(jobs))]

    def _cut_chains(self, expiry: Expiry) -> list[Doomed]:
        chains = self._cut(self._doomed)
        ids = [job for one in chains for job in one.jobs]
        self._target.archive(ids)
        parts: list[Doomed] = [PartOfHistory(job, one.jobs[job], one.ended_at) for one in chains for job in one.long]
        is_long = len(chains) == 1 and (len(ids) > LONG_CHAIN or chains[0].rows > MOST_ROWS)
        return [*parts, EndOfChain(chains[0]) if is_long else WholeChains(tuple(chains), expiry)]

    def _cut(self, waiting: deque[T], fits: Callable[[T], bool] = lambda _: True) -> list[T]:
        """As much as fits into one transaction, and at least one."""
        piece = [waiting.popleft()]
        rows = piece[0].rows
        while waiting and rows + waiting[0].rows <= self._pace.amount and fits(waiting[0]):
            rows += waiting[0].rows
            piece.append(waiting.popleft())
        return piece

    def _delete(self, part: Doomed, by_size: bool) -> float:
        """One transaction. Of what goes in several, until one of them has found nothing."""
        is_whole = isinstance(part, LoneJobs | WholeChains)
        if isinstance(part, EndOfChain | PartOfHistory):
            part = replace(part, limit=self._pace.amount)
        done = self._target.delete(part, by_size)
        self._pace.learn(done.rows, done.seconds)
        self._chains.extend(done.freed)  # nobody else may have waited for them
        if is_whole or not done.rows:
            self._parts.popleft()
        return done.seconds


def _has_expired(job: EndedJob, expiry: Expiry) -> bool:
    return job.mark <= expiry.until(job.status, job.queue, job.task)


def old_rows(retention: Retention, now: int) -> list[OldRows]:
    """The rules about rows that belong to no job."""
    failures = retention.failures_before(now)
    rules: list[tuple[OldKind, int | None, int]] = [
        ("blobs", now, SOME_BLOBS),
        ("minutes", retention.rollups_before(now), SOME_OLD),
        ("failures", failures, SOME_OLD),
        ("tracebacks", failures, SOME_TRACEBACKS),
        ("audit", retention.audit_before(now), SOME_OLD),
        ("batches", retention.batches_before(now), SOME_OLD),
    ]
    return [OldRows(what, before, limit) for what, before, limit in rules if before is not None]
