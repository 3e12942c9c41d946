"""What is to be done beside running jobs: watch over what runs, over other workers, and over the time.

All of it is done by one thread, which asks every part when it wants to be asked again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic, monotonic_ns, sleep
from typing import TYPE_CHECKING

from ..errors import StoreBusy, StoreError
from ..failure import Failure
from ..model.job import Lease, LeaseRenewal, Settlement, Sweep
from .attempt import Attempt
from .event_loop import EventLoop
from .job_log import JobLog
from .process_pool import ProcessPool
from .thread_pool import ThreadPool

if TYPE_CHECKING:
    from .worker import WorkerParts, WorkerRun


log = logging.getLogger("holdfast.worker")
MILLISECOND = 1_000_000
BUSY_SECONDS = 0.005
ALONE_SECONDS = 0.02  # while nobody else waits for commits
LIVELY_SECONDS = 0.05
RUNNING_SECONDS = 0.1
IDLE_SECONDS = 0.5
SLOW_NS = 50 * MILLISECOND
START_REPORT_NS = 400 * MILLISECOND
PROGRESS_NS = 200 * MILLISECOND
CANCEL_CHECK_NS = 200 * MILLISECOND
HOARDING_NS = 200 * MILLISECOND
PEERS_NS = 50 * MILLISECOND
HEARTBEAT_NS = 10_000 * MILLISECOND
UNSETTLED_NS = 100 * MILLISECOND
FOLD_NS = 1000 * MILLISECOND
FOLD_JOBS = 4000
MANY_EVENTS = 10_000
HELD_UP_SECONDS = 0.05
DUTY_SECONDS = 0.5
CLOSING_SECONDS = 3.0
MOST_STUCK = 100


class Housekeeping:
    def __init__(
        self,
        worker_run: WorkerRun,
        parts: WorkerParts,
        job_log: JobLog,
        threads: ThreadPool,
        pool: ThreadPool,
        loop: EventLoop,
        process_pool: ProcessPool,
    ) -> None:
        self._worker_run, self._dispatcher, self._job_log = worker_run, worker_run.dispatcher, job_log
        self._store, self._clock, self._parts = parts.store, parts.clock, parts
        self._threads, self._pool, self._loop, self._process_pool = threads, pool, loop, process_pool
        self._last: dict[str, int] = {}
        self._begun = -1
        self._serves_pool = any(handler.kind == "process" for handler in parts.handlers.values())
        self._strangers: set[int] = set()
        self._folded = 0  # how many had been settled then

    def do(self, draining: bool = False) -> float:
        """One round. Returns the seconds after which the next one is due."""
        now = monotonic_ns()
        self._job_log.flush_due()
        try:
            with self._store.busy_timeout(
                DUTY_SECONDS
            ):  # who waits for others overlooks what runs out of time meanwhile
                delay = self._round(now, draining)
        except StoreBusy:
            return RUNNING_SECONDS
        except StoreError as error:
            self._dispatcher.put_off(error)
            return RUNNING_SECONDS
        return max(0.0, delay)

    def give_back_ready(self) -> None:
        """What was taken and not begun: others may have it."""
        for pool in (self._threads, self._loop, self._pool):
            with suppress(IndexError):
                while True:
                    self._dispatcher.give_back(pool.ready.popleft())
        self._dispatcher.settle_and_claim(None)

    def is_held_up(self, patience_seconds: float = 0) -> bool:
        """A handler hangs in a transaction, as inside ctx.complete(): until it lets go, nobody here can write."""
        until = monotonic() + patience_seconds
        while self._store.transaction_age() > HELD_UP_SECONDS or self._is_held_up_by_a_child():
            if monotonic() >= until:
                return True
            sleep(BUSY_SECONDS)
        return False

    def _is_held_up_by_a_child(self) -> bool:
        long_ago = monotonic_ns() - SLOW_NS
        return any(0 < attempt.completing < long_ago for attempt in self._in_children())

    def _in_children(self) -> list[Attempt]:
        return [attempt for attempt in self._dispatcher.active.copy() if attempt.handler.kind == "process"]

    def interrupt_all(self) -> None:
        """What runs goes back, uncounted."""
        for attempt in self._in_children():
            if attempt.completing:  # it may have the write lock, and lets go of it when it is killed
                self._interrupt(attempt)
        if self.is_held_up(CLOSING_SECONDS):
            log.error("a handler hangs in a transaction and holds the database: nothing can be given back")
            return
        self.give_back_ready()
        for attempt in self._dispatcher.active.copy():
            if attempt.began:
                self._interrupt(attempt)
            else:
                self._dispatcher.return_begun(attempt)
                self._worker_run.give_up(attempt)
        self._dispatcher.settle_at_once()

    def _interrupt(self, attempt: Attempt) -> None:
        lease, ended = attempt.claimed.lease, attempt.finished_at()
        self._withdraw(attempt, Settlement(lease, "interrupt", attempt.started_at, ended))

    def _round(self, now: int, draining: bool) -> float:
        active = self._dispatcher.active.copy()
        delay = self._end_overdue(active, now)
        if self.is_held_up():
            return RUNNING_SECONDS
        if active:
            self._report(active, now)
            self._notice_lost(active, now)
            self._process_pool.look_after_memory()
        self._keep_moving()
        self._look_after_peers(now)
        if self._is_time("heartbeat", HEARTBEAT_NS, now):
            self._heartbeat()
        self._fold(now)
        if not draining:
            delay = min(delay, self._parts.scheduler.fire_due(), self._parts.upkeep.do_some())
            self._return_hoarded(now)
        return min(delay, self._pace())

    def _pace(self) -> float:
        active = self._dispatcher.active.copy()  # as it is now: some may have begun during this round
        if self._dispatcher.done or self._threads.ready or self._pool.ready or self._loop.ready:
            return BUSY_SECONDS
        if any(attempt.began == 0 for attempt in active):  # its timeout is not known yet
            return BUSY_SECONDS
        if self._serves_pool and not self._threads.is_watched():
            return ALONE_SECONDS
        if (
            not self._dispatcher.is_idle()
        ):  # a job that used to be short may keep the thread that would wait for the next
            return LIVELY_SECONDS
        return RUNNING_SECONDS if active else IDLE_SECONDS

    def _is_time(self, what: str, every: int, now: int) -> bool:
        if now - self._last.get(what, 0) < every:
            return False
        self._last[what] = now
        return True

    # --- what runs ---

    def _end_overdue(self, active: set[Attempt], now: int) -> float:
        """Settle what has run out of time, and stop its handler. Returns the seconds until the next one does."""
        soonest = float("inf")
        for attempt in active:
            if attempt.deadline and attempt.deadline <= now:
                seconds = (attempt.claimed.timeout or 0) / 1e6
                failure = Failure("TIMEOUT:HANDLER", f"it ran for longer than its timeout of {seconds:g} seconds")
                self._withdraw(attempt, self._worker_run.outcome_mapper.retry(attempt, failure))
            elif attempt.deadline:
                soonest = min(soonest, (attempt.deadline - now) / 1e9)
        return soonest

    def _withdraw(self, attempt: Attempt, settlement: Settlement) -> None:
        """Settle it here and now; whatever its handler does after that counts no more."""
        if self._dispatcher.finish(attempt, settlement):
            self._worker_run.give_up(attempt)
            if self._threads.stuck + self._loop.stuck > MOST_STUCK:
                self._worker_run.too_stuck = True
                self._worker_run.stop()

    def _report(self, active: set[Attempt], now: int) -> None:
        """Store when a long one began, how far it is, and that it is held still."""
        renewal = self._worker_run.lease * 1000 // 3
        due = [attempt for attempt in active if _wants_report(attempt, now, renewal)]
        if not due:
            return
        for attempt in due:
            attempt.touched, attempt.reported_at = False, now
        reports = [
            LeaseRenewal(one.claimed.lease, one.started_at, one.progress, one.progress_text)
            for one in due
            if one.began
        ]
        held = self._store.jobs.renew(reports, self._worker_run.lease)
        self._drop([attempt for attempt in due if attempt.began and attempt.claimed.id not in held])

    def _notice_lost(self, active: set[Attempt], now: int) -> None:
        """A cancel reaches the handler; so does the loss of a lease."""
        old = [attempt for attempt in active if 0 < attempt.began < now - SLOW_NS]
        if old and self._is_time("held", CANCEL_CHECK_NS, now):
            held = self._store.jobs.renew([LeaseRenewal(attempt.claimed.lease) for attempt in old], None)
            self._drop([attempt for attempt in old if attempt.claimed.id not in held])

    def _drop(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if not attempt.completing and attempt.completed is None and self._dispatcher.disown(attempt):
                self._job_log.counts["lost"] += 1
                log.warning(
                    "%s %d was cancelled or taken over; its handler is told to stop",
                    attempt.handler.name,
                    attempt.claimed.id,
                )
                self._worker_run.give_up(attempt)

    # --- what waits ---

    def _keep_moving(self) -> None:
        """Nobody waits behind a job that takes longer than it used to."""
        begun = self._threads.begun + self._pool.begun
        if begun == self._begun:
            unwatched = not self._threads.is_watched()
            if (self._threads.ready or unwatched) and not self._threads.call_up(1) and unwatched:
                self._dispatcher.settle_and_claim(None)  # all threads are busy, but processes may be free
            if self._pool.ready:
                self._pool.call_up(1)
            if self._loop.ready:
                self._loop.nudge()
        self._begun = begun
        if self._dispatcher.unsettled_ns() > UNSETTLED_NS:
            self._dispatcher.settle_and_claim(None)

    def _return_hoarded(self, now: int) -> None:
        """What was taken and could not begin goes back, so that others may have it."""
        for pool in (self._threads, self._loop, self._pool):
            with suppress(IndexError):  # somebody else took the last one meanwhile
                while pool.ready[-1].taken < now - HOARDING_NS:
                    self._dispatcher.give_back(pool.ready.pop())
        for attempt in self._loop.take_back(now - HOARDING_NS):
            self._dispatcher.return_begun(attempt)
            self._worker_run.give_up(attempt)

    # --- statistics ---

    def _fold(self, now: int) -> None:
        """About once a second, and more often where much is settled: so readers have little to add."""
        settled = self._job_log.counts.total()
        if settled - self._folded > FOLD_JOBS or self._is_time("fold", FOLD_NS, now):
            self._folded = settled
            while self._store.statistics.fold() >= MANY_EVENTS:
                pass

    # --- other workers ---

    def _look_after_peers(self, now: int) -> None:
        every = IDLE_SECONDS * 1e9 if self._threads.is_watched() else PEERS_NS
        if self._is_time("peers", int(every), now):
            self._store.jobs.sweep(Sweep.WORKERS)

    def _heartbeat(self) -> None:
        # Before the database is asked: what ends in between is known.
        known = {attempt.claimed.id for attempt in self._worker_run.held()}
        known |= {settlement.lease.id for _, settlement in list(self._dispatcher.done)}
        leases = self._store.workers.heartbeat(self._worker_run.id)
        if leases is None:
            log.error("other workers took this one for dead; it goes on under another name")
            self._worker_run.enlist_anew()
        self._return_strangers(leases or [], known)

    def _return_strangers(self, leases: list[Lease], known: set[int]) -> None:
        """Give back what the database says is this worker's and it does not know of: a claim went astray."""
        strangers = {lease.id: lease for lease in leases if lease.id not in known}
        # Twice in a row, so that it is none that was just being claimed.
        for job_id in strangers.keys() & self._strangers:
            log.error("job %d was claimed and lost sight of; it goes back", job_id)
            self._store.jobs.settle_and_claim(
                [Settlement(strangers[job_id], "give_back", None, self._clock.now())], []
            )
        self._strangers = set(strangers)


def _wants_report(attempt: Attempt, now: int, renewal: int) -> bool:
    since = now - (attempt.reported_at or attempt.taken)
    if attempt.touched and since > PROGRESS_NS:
        return True
    if attempt.reported_at == 0 and 0 < attempt.began < now - START_REPORT_NS:
        return True
    return since > renewal
