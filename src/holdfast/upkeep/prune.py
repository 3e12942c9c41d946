"""Pruning: apply the retention rules in short steps, so that other processes can use the database in between.

A `PruneRun` finds candidates rule by rule and cuts them into steps, each of which is one short transaction. They
serve `app.prune()`, `BackgroundPruner` in the workers, and the dry run, which counts instead of deleting.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from heapq import merge
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from ..clock import Clock, as_datetime
from ..errors import AlreadyPruning, ArchiveError, DiskFull, StoreError
from ..model.pruning import (
    LONG_HISTORY,
    CollectBlobs,
    DeleteChains,
    DeleteChainTail,
    Deleted,
    DeleteJobs,
    DeleteRows,
    ExpiredChain,
    FinishedJob,
    Initiator,
    PruneStep,
    RowKind,
    RowScan,
    TrimHistory,
)
from ..retention import (
    AFTER_ALL,
    BEFORE_ALL,
    FINISHED,
    Expiry,
    Position,
    Retention,
    expire_all,
    expiry,
    from_json,
    matching_limit,
    row_cutoffs,
)
from ..store.protocol import Store
from .archive import Archive
from .dry_run import DryRun, PruneGroup
from .throttle import BatchSize, Throttle
from .vacuum import shrink_meanwhile

log = logging.getLogger("holdfast.upkeep")

T = TypeVar("T", FinishedJob, ExpiredChain)
PAGE_JOBS = 2000
FIRST_ROWS, MIN_ROWS, MAX_ROWS = 500, 50, 5000  # of one transaction
MIN_JOBS = 10  # deleted at a time while the file is too large
LONG_CHAIN = 1000
CHECKED_CHAINS = 500
SCANNED_ROWS = 1000
SCANNED_BLOBS = 100  # and tracebacks: these are large
KINDS = ("batches", "minutes", "failures", "tracebacks", "audit", "blobs")


class PruneReport(Struct, frozen=True):
    """What `app.prune()` deleted, or with dry_run would delete."""

    dry_run: bool
    succeeded: int
    failed: int
    cancelled: int
    batches: int
    minutes: int
    """Rows of statistics per minute."""
    failures: int
    tracebacks: int
    audit: int
    """Events without a job."""
    blobs: int
    """Large payloads and results that no job refers to."""
    archived: int
    """Jobs written to the archive."""
    seconds: float
    retention: str
    """The rules, in words."""
    attempts: int | None = None
    """Deleted with their jobs. Only in a dry run."""
    events: int | None = None
    groups: tuple[PruneGroup, ...] = ()
    """Jobs by rule, status, queue and task, the largest group first. Only in a dry run."""
    estimate: str | None = None
    """In a dry run: how the jobs to delete because of `max_bytes` were estimated, if there are any."""

    @property
    def jobs(self) -> int:
        return self.succeeded + self.failed + self.cancelled


class TakenOver(Exception):
    """Another run is active, or has replaced this one."""


class Candidates(NamedTuple):
    """Jobs that a rule found, and the cutoffs by which they are deleted."""

    jobs: list[FinishedJob]
    expiry: Expiry
    by_size: bool = False


NO_CANDIDATES = Candidates([], Expiry({}))  # of a step that only reads


def effective_retention(store: Store, given: Retention | None) -> Retention | None:
    """Return the given policy, or the stored one. None: this version cannot read it, so nothing may be deleted."""
    stored = None if given is not None else store.pruning.state().retention
    if stored is None:
        return given or Retention()
    found = from_json(stored)
    if found is None:
        log.warning("pruning is off: the retention rules in the database are from another version of Holdfast")
    return found


def prune(
    store: Store,
    clock: Clock,
    retention: Retention,
    *,
    actor: str,
    reason: str = "",
    archive: str | None = None,
    dry_run: bool = False,
    hurry: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> PruneReport:
    """Run all rules in this thread. progress: called after every step with the number of deleted jobs."""
    started, interrupted = monotonic(), True
    archive = archive or retention.archive
    note = {"retention": retention.in_words(), "reason": reason, "archive": archive}
    target: Deleter | DryRun
    if dry_run:
        target = DryRun(store, retention)
        steps = PruneRun(store, clock, retention, target, MAX_ROWS).steps()
    else:
        target = Deleter(store, "operator", actor, {name: value for name, value in note.items() if value}, archive)
        steps = _delete_steps(store, PruneRun(store, clock, retention, target), target)
    throttle = Throttle(store)
    try:
        for seconds in steps:
            progress(sum(target.counts[status] for status in FINISHED))
            if not hurry:
                sleep(throttle.pause(seconds))
        interrupted = False
    except TakenOver:
        raise _already_pruning(store) from None
    finally:
        target.end(interrupted)
    counts: dict[str, Any] = {name: target.counts[name] for name in (*FINISHED, *KINDS)}
    details = target.report() if isinstance(target, DryRun) else {"archived": target.archived}
    return PruneReport(
        dry_run=dry_run, seconds=monotonic() - started, retention=retention.in_words(), **counts, **details
    )


def _delete_steps(store: Store, run: PruneRun, deleter: Deleter) -> Iterator[float]:
    """When the disk is full, empty the write-ahead log and start again with smaller transactions while that helps."""
    deleter.open_archive()
    deleter.begin()  # a run that an operator starts is logged, even if it deletes nothing
    while True:
        before = deleter.counts.total()
        try:
            yield from shrink_meanwhile(store, run.steps())
            return
        except DiskFull:
            store.file.checkpoint()
            if not run.batch.halve() and deleter.counts.total() == before:
                raise


def _already_pruning(store: Store) -> AlreadyPruning:
    state = store.pruning.state()
    who = "another process" if state.pid is None else f"{state.actor} (process {state.pid})"
    since = "" if state.begun_at is None else f" since {as_datetime(state.begun_at):%H:%M:%S} UTC"
    return AlreadyPruning(f"{who} is pruning this database{since}: wait until it has finished, and try again")


class Deleter:
    """Deletes what a run finds. It takes the prune lock and opens the archive when there is something to delete."""

    hidden: Collection[int] = ()  # see DryRun
    hidden_jobs = hidden_bytes = 0

    def __init__(
        self, store: Store, kind: Initiator, actor: str, note: dict[str, Any], archive: str | os.PathLike[str] | None
    ) -> None:
        self._store, self._kind, self._actor, self._note = store, kind, actor, note
        self._archive_path = archive
        self._archive: Archive | None = None
        self._token: str | None = None
        self.counts: Counter[str] = Counter()
        self.archived = 0

    def begin(self) -> str:
        """Return the token of the prune lock; take the lock first if this run does not hold it."""
        self._token = self._token or self._store.pruning.begin(self._kind, self._actor, self._note)
        if self._token is None:
            raise TakenOver
        return self._token

    def end(self, interrupted: bool) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.close()
        token, self._token = self._token, None
        if token is not None:
            self._store.pruning.end(token, interrupted)

    def open_archive(self) -> Archive | None:
        if self._archive is None and self._archive_path is not None:
            self._archive = Archive(self._archive_path)
        return self._archive

    def archive(self, ids: Collection[int]) -> None:
        """Write these jobs to the archive, if there is one."""
        if self._archive_path is not None:
            self.begin()
            if archive := self.open_archive():
                self.archived += archive.append(self._store.pruning.export(ids))

    def delete(self, step: PruneStep, by_size: bool = False) -> Deleted:  # noqa: ARG002
        return self._delete(self.begin(), step)

    def delete_rows(self, scan: RowScan) -> tuple[float, RowScan | None]:
        """Delete some expired rows. Return the seconds with the write lock, and where to continue."""
        if scan.kind == "blobs":
            done = self._delete(self._token, CollectBlobs(scan.limit))
            return done.seconds, scan if done.rows else None
        keys, rest = self._store.pruning.expired_rows(scan)
        if not keys:
            return 0.0, rest
        done = self.delete(DeleteRows(scan, keys))
        return done.seconds, rest if done.rows or rest != scan else None

    def _delete(self, token: str | None, step: PruneStep) -> Deleted:
        done = self._store.pruning.delete(token, step, self.counts)
        if done is None:
            self._token = None
            raise TakenOver
        self.counts.update({name: n for name, n in done.counts.items() if n})
        return done


class PruneRun:
    """Goes through the rules, and for each through its candidates, the oldest first."""

    def __init__(
        self, store: Store, clock: Clock, retention: Retention, target: Deleter | DryRun, rows: int | None = None
    ) -> None:
        """target: deletes or counts what is found. rows: size of the first transaction."""
        self._store, self._clock, self._retention, self._target = store, clock, retention, target
        self.batch = BatchSize(rows or FIRST_ROWS, MIN_ROWS, MAX_ROWS)
        self.scanned: dict[str, Position] = {}
        """By status: how far jobs were scanned by age and number."""
        self._checked: set[int] = set()  # chains

    def steps(self, resume: dict[str, Position] | None = None) -> Iterator[float]:
        """Do one step for each next(): a read, or a short transaction. Yield the seconds with the write lock.

        resume: by status, the position up to which a recent run has scanned. Expired rows are left to a full run.
        """
        now = self._clock.now()
        self._checked.clear()
        for candidates in self._candidates(now, resume or {}):
            yield from self._delete_expired(candidates)
            yield 0.0
        for scan in row_scans(self._retention, now):
            rest = scan if resume is None or scan.kind == "blobs" else None
            while rest is not None:
                seconds, rest = self._target.delete_rows(rest)
                yield seconds

    # --- rules ---

    def _candidates(self, now: int, resume: dict[str, Position]) -> Iterator[Candidates]:
        """Find the candidates of each rule: number and age for each status, then the size of the file."""
        surplus: dict[tuple[str, int], Position] = {}
        for status, excess in self._excess().items():
            limits = self._retention.limits(status)
            for jobs in self._pages(status, BEFORE_ALL, AFTER_ALL) if excess else ():
                for job in jobs:
                    index = matching_limit(limits, job.queue, job.task)
                    if excess[index] > 0:
                        surplus[status, index] = job.position
                        excess[index] -= 1
                yield NO_CANDIDATES
                if not +excess:
                    break
        cutoffs = expiry(self._retention, now, surplus)
        for status in FINISHED:
            for jobs in self._pages(status, resume.get(status, BEFORE_ALL), cutoffs.latest(status)):
                yield Candidates(jobs, cutoffs)
                self.scanned[status] = jobs[-1].position
        yield from self._oversize(cutoffs)

    def _pages(self, status: str, after: Position, until: Position) -> Iterator[list[FinishedJob]]:
        while jobs := self._store.pruning.finished_after(status, after, until, PAGE_JOBS):
            after = jobs[-1].position
            yield jobs

    def _excess(self) -> dict[str, Counter[int]]:
        """Return how many jobs there are beyond the allowed number, by status and index of the limit."""
        limits = {status: self._retention.limits(status) for status in FINISHED}
        excess: dict[str, Counter[int]] = {status: Counter() for status in FINISHED}
        if all(limit.newest is None for each in limits.values() for limit in each):
            return excess
        for count in self._store.statistics.counts().items:
            if count.status in limits:
                index = matching_limit(limits[count.status], count.queue, count.task)
                excess[count.status][index] += count.count or 0
        for status, counts in excess.items():
            for index, limit in enumerate(limits[status]):
                counts[index] -= counts[index] if limit.newest is None else limit.newest
        return {status: +counts for status, counts in excess.items()}

    def _oversize(self, cutoffs: Expiry) -> Iterator[Candidates]:
        """While the file contains more than `max_bytes`, yield the oldest jobs."""
        limit, after = self._retention.max_bytes, BEFORE_ALL
        self._checked.clear()
        while limit is not None and (size := self._used_bytes()) > limit and (jobs := self._oldest(after)):
            # The freed bytes are known only after the step: so delete half of the estimate, and measure again.
            share = (size - limit) / size / 2
            number = min(self.batch.rows // jobs[0].rows, round(self._finished_jobs() * share))
            jobs = jobs[: max(MIN_JOBS, number)]
            after = jobs[-1].position
            left = [job for job in jobs if job.linked or not job.has_expired(cutoffs)]
            yield Candidates(left, expire_all(after), by_size=True)

    def _used_bytes(self) -> int:
        return self._store.file.used_bytes() - self._target.hidden_bytes

    def _finished_jobs(self) -> int:
        counts = [one.count or 0 for one in self._store.statistics.counts().items if one.status in FINISHED]
        return sum(counts) - self._target.hidden_jobs

    def _oldest(self, after: Position) -> list[FinishedJob]:
        by_status = (self._store.pruning.finished_after(status, after, AFTER_ALL, PAGE_JOBS) for status in FINISHED)
        return list(merge(*by_status, key=lambda job: job.position))[:PAGE_JOBS]

    # --- deleting candidates ---

    def _delete_expired(self, candidates: Candidates) -> Iterator[float]:
        """Delete standalone jobs, one status at a time, and chains as a whole."""
        expired = candidates.expiry
        jobs, chains, unchecked = deque[FinishedJob](), deque[ExpiredChain](), deque[int]()
        for job in sorted(candidates.jobs, key=lambda job: job.status):
            if not job.linked and job.has_expired(expired):
                jobs.append(job)
            elif job.linked and job.chain not in self._checked:
                self._checked.add(job.chain)
                unchecked.append(job.chain)
        while jobs or chains or unchecked:
            if not jobs and not chains:
                ids = [unchecked.popleft() for _ in range(min(len(unchecked), CHECKED_CHAINS))]
                chains.extend(self._store.pruning.expired_chains(ids, expired, self._target.hidden))
                yield 0.0
                continue
            for step in self._job_steps(jobs) if jobs else self._chain_steps(chains, expired):
                repeat = True
                while repeat:
                    done, repeat = self._delete(step, candidates.by_size)
                    unchecked.extend(done.freed)  # they may have expired, now that no job waits for them
                    yield done.seconds

    def _job_steps(self, jobs: deque[FinishedJob]) -> list[PruneStep]:
        status = jobs[0].status
        batch = self._take(jobs, lambda job: job.status == status)
        self._target.archive([job.id for job in batch])
        long = (job for job in batch if job.attempt > LONG_HISTORY)
        return [*(TrimHistory(job.id, status, job.finished_at) for job in long), DeleteJobs(status, tuple(batch))]

    def _chain_steps(self, chains: deque[ExpiredChain], expired: Expiry) -> list[PruneStep]:
        batch = self._take(chains)
        ids = [job for one in batch for job in one.jobs]
        self._target.archive(ids)
        trims = [TrimHistory(job, one.jobs[job], one.finished_at) for one in batch for job in one.long]
        is_long = len(batch) == 1 and (len(ids) > LONG_CHAIN or batch[0].rows > MAX_ROWS)
        return [*trims, DeleteChainTail(batch[0]) if is_long else DeleteChains(tuple(batch), expired)]

    def _take(self, waiting: deque[T], fits: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Take as many as fit into one transaction, at least one."""
        batch = [waiting.popleft()]
        rows = batch[0].rows
        while waiting and rows + waiting[0].rows <= self.batch.rows and fits(waiting[0]):
            rows += waiting[0].rows
            batch.append(waiting.popleft())
        return batch

    def _delete(self, step: PruneStep, by_size: bool) -> tuple[Deleted, bool]:
        """Run one transaction. Return its result, and whether the step has to be repeated."""
        takes_several = isinstance(step, DeleteChainTail | TrimHistory)
        if takes_several:
            step = replace(step, limit=self.batch.rows)
        done = self._target.delete(step, by_size)
        self.batch.adapt(done.rows, done.seconds)
        return done, takes_several and done.rows > 0


def row_scans(retention: Retention, now: int) -> list[RowScan]:
    """Return the scans for expired rows that belong to no job."""
    large = ("blobs", "tracebacks")
    return [
        RowScan(cast("RowKind", kind), before, SCANNED_BLOBS if kind in large else SCANNED_ROWS)
        for kind, before in row_cutoffs(retention, now).items()
    ]


PASS_SECONDS = 60.0
FULL_PASS_SECONDS = 3600.0
ERROR_SECONDS = 30.0
READ_SECONDS = 0.01
"""Between two steps that only read."""


class BackgroundPruner:
    """One worker prunes at a time: the first that finds something to delete takes the prune lock.

    A pass continues where the last one stopped. Once an hour, and after the policy changed, a full pass also looks
    again at jobs that could not be deleted before, and deletes expired rows.
    """

    def __init__(self, store: Store, clock: Clock, every: float = PASS_SECONDS) -> None:
        self._store, self._clock, self._every = store, clock, every
        self._run: PruneRun | None = None
        self._deleter: Deleter | None = None
        self._steps: Iterator[float] | None = None
        self._throttle: Throttle
        self._scanned: dict[str, Position] = {}
        self._is_full = False
        self._retention: Retention | None = None  # of the last pass
        self._next_at = self._full_at = monotonic()

    def do_some(self) -> float:
        """Do one step, if one is due. Return the seconds until the next."""
        now = monotonic()
        if now < self._next_at:
            return self._next_at - now
        try:
            self._next_at = now + self._step(now)
        except StoreError:
            self._next_at = now + ERROR_SECONDS
            self._steps = None  # the next step ends the run
            raise
        except ArchiveError as error:
            log.error("pruning failed: %s", error)
            self._finish(interrupted=True)
            self._next_at = now + ERROR_SECONDS
        return self._next_at - now

    def end(self) -> None:
        """Release the prune lock when the worker stops."""
        with suppress(StoreError):
            self._finish(interrupted=True)

    def _step(self, now: float) -> float:
        if self._steps is None:
            self._finish(interrupted=True)  # a run that failed
            return READ_SECONDS if self._start(now) else self._every
        try:
            return max(READ_SECONDS, self._throttle.pause(next(self._steps)))
        except TakenOver:
            log.debug("another process is pruning")
            self._finish(interrupted=True)
        except StopIteration:
            assert self._run is not None
            self._scanned = (self._scanned if not self._is_full else {}) | self._run.scanned
            self._finish(interrupted=False)
        return self._every

    def _start(self, now: float) -> bool:
        store, retention = self._store, effective_retention(self._store, None)
        if retention is None or not retention.automatic:
            return False
        self._is_full = now >= self._full_at or retention != self._retention
        self._retention = retention
        if self._is_full:
            self._full_at = now + FULL_PASS_SECONDS
        note = {"retention": retention.in_words()}
        self._deleter = Deleter(store, "worker", store.actor, note, retention.archive)
        self._run = PruneRun(store, self._clock, retention, self._deleter)
        self._steps = shrink_meanwhile(store, self._run.steps(None if self._is_full else self._scanned))
        self._throttle = Throttle(store)
        return True

    def _finish(self, interrupted: bool) -> None:
        deleter, self._deleter, self._run, self._steps = self._deleter, None, None, None
        if deleter is not None:
            if deleter.counts.total():
                log.info("pruned %s", ", ".join(f"{n:,} {name}" for name, n in sorted(deleter.counts.items()) if n))
            deleter.end(interrupted)
