"""Housekeeping: timeouts, leases, heartbeats, dead workers, statistics, schedules, pruning and failure hooks.

All of it runs in the thread that called `Worker.run()`. Each round returns the delay until the next one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic, monotonic_ns, sleep
from typing import TYPE_CHECKING, Protocol

from ..clock import boot_ns
from ..errors import DamagedRow, StoreBusy, StoreError
from ..failure import Failure
from ..model.job import FailureReport, Lease, LeaseRenewal, NewJob, Settlement, Sweep
from ..store.protocol import Store
from ..text import plural
from .attempt import Attempt
from .job_log import JobLog
from .process_pool import ProcessPool, resident_bytes
from .thread_pool import ThreadPool

if TYPE_CHECKING:
    from .event_loop import EventLoop
    from .worker import WorkerParts, WorkerRun


log = logging.getLogger("holdfast.worker")
MILLISECOND = 1_000_000
# The delay until the next round
PENDING_SECONDS = 0.005  # while attempts wait to start or to be settled
UNWATCHED_SECONDS = 0.02  # while no thread waits for commits, with a process pool
RECENT_SECONDS = 0.05  # after a claim in the last second
RUNNING_SECONDS = 0.1
IDLE_SECONDS = 0.5
# How often, or after which time, something is done
SLOW_NS = 50 * MILLISECOND  # an attempt that has run for longer is not short
STORE_START_NS = 400 * MILLISECOND
STORE_PROGRESS_NS = 200 * MILLISECOND
CANCEL_CHECK_NS = 200 * MILLISECOND
MAX_UNSTARTED_NS = 200 * MILLISECOND  # then a claimed job is given back
DEAD_WORKERS_NS = 50 * MILLISECOND
HEARTBEAT_NS = 10_000 * MILLISECOND
UNKNOWN_CLAIMS_NS = 500 * MILLISECOND  # until a claim that is unknown to the worker is looked at again
STOP_REQUEST_NS = 1000 * MILLISECOND
UNSETTLED_NS = 100 * MILLISECOND
FOLD_NS = 1000 * MILLISECOND
REPORT_NS = 1000 * MILLISECOND
FOLD_JOBS = 4000
FOLD_BATCH = 2_500  # events; after a step of as many, fold again at once (a step has at most 5,000)
BLOCKED_SECONDS = 0.05  # a transaction that is open for longer blocks other writers
BUSY_TIMEOUT_SECONDS = 0.5
MAX_BLOCKED_SECONDS = 3.0  # at shutdown
ERROR_SECONDS = 1.0  # after an unexpected error in a step
MAX_SWEPT = 1000  # jobs, in one round
MAX_STUCK = 100  # handlers that did not return after their timeout


class Housekeeping:
    """The periodic work of a worker."""

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
        self._threads, self._process_threads, self._loop, self._process_pool = threads, pool, loop, process_pool
        self._last: dict[str, int] = {}  # when each periodic check ran
        self._started_count = -1  # in the last round
        self._serves_pool = any(handler.kind == "process" for handler in parts.handlers.values())
        self._unknown_claims: dict[Lease, int] = {}  # at the last heartbeat, and the rounds begun when first seen
        self._recoveries = 0  # of the dispatcher, at the last heartbeat
        self._settled_at_fold = self._failed_at_report = 0

    def run_round(self, draining: bool = False) -> float:
        """Do everything that is due. Returns the seconds until the next round."""
        now = monotonic_ns()
        self._job_log.flush_due()
        try:
            # A short busy timeout: waiting for the write lock would delay timeouts.
            with self._store.busy_timeout(BUSY_TIMEOUT_SECONDS):
                delay = self._round(now, draining)
        except StoreBusy:
            return RUNNING_SECONDS
        except Exception as error:  # noqa: BLE001  the worker must go on, whatever a row holds
            self._dispatcher.note_error("housekeeping", error)
            return RUNNING_SECONDS
        return max(0.0, delay)

    def give_back_ready(self) -> None:
        """Give back all attempts that were claimed but not started."""
        for pool in (self._threads, self._loop, self._process_threads):
            with suppress(IndexError):
                while True:
                    self._dispatcher.give_back(pool.ready.popleft())
        self._dispatcher.settle_and_claim(None)

    def is_blocked(self, wait_seconds: float = 0) -> bool:
        """Return whether a handler holds the write lock in a transaction, such as ctx.complete().

        Until it ends, the worker cannot write. wait_seconds: how long to wait for that.
        """
        until = monotonic() + wait_seconds
        while self._store.transaction_age() > BLOCKED_SECONDS or self._is_blocked_by_child():
            if monotonic() >= until:
                return True
            sleep(PENDING_SECONDS)
        return False

    def _is_blocked_by_child(self) -> bool:
        long_ago = monotonic_ns() - SLOW_NS
        return any(0 < attempt.completing_since_ns < long_ago for attempt in self._active_in_children())

    def _active_in_children(self) -> list[Attempt]:
        return [attempt for attempt in self._dispatcher.active.copy() if attempt.handler.kind == "process"]

    def interrupt_all(self) -> None:
        """Interrupt all running attempts. Their jobs become ready again, and the attempts do not count."""
        for attempt in self._active_in_children():
            if attempt.completing_since_ns:  # it may hold the write lock until it is killed
                self._interrupt(attempt)
        if self.is_blocked(MAX_BLOCKED_SECONDS):
            log.error("a handler holds the write lock in a transaction: jobs cannot be given back")
            return
        self.give_back_ready()
        for attempt in self._dispatcher.active.copy():
            if attempt.started_ns:
                self._interrupt(attempt)
            else:
                self._dispatcher.give_back_active(attempt)
                self._worker_run.stop_handler(attempt)
        self._dispatcher.flush()

    def _interrupt(self, attempt: Attempt) -> None:
        lease, finished_at = attempt.claimed.lease, attempt.finished_at()
        self._settle_and_stop(attempt, Settlement(lease, "interrupt", attempt.started_at, finished_at))

    def _round(self, now: int, draining: bool) -> float:
        active = self._dispatcher.active.copy()
        delay = self._enforce_timeouts(active, now)
        if self.is_blocked():
            return RUNNING_SECONDS
        if active:
            self._renew_leases(active, now)
            self._stop_lost(active, now)
            self._process_pool.enforce_max_memory()
        self._wake_stalled()
        delay = min(delay, self._do("recovering the jobs of dead workers", lambda: self._recover_dead_workers(now)))
        if self._is_heartbeat_due(now):
            self._do("recording a heartbeat", self._heartbeat)
        if not draining and self._is_due("stop request", STOP_REQUEST_NS, now):
            self._do("looking for a request to stop", self._stop_if_asked)
        delay = min(delay, self._do("adding up statistics", lambda: self._fold(now)))
        delay = min(delay, self._do("reporting failures", lambda: self._report_failures(now)))
        if not draining:
            delay = min(delay, self._do("firing schedules", self._parts.scheduler.fire_due))
            delay = min(delay, self._do("pruning", self._parts.upkeep.do_some))
            delay = min(delay, self._do("a bulk operation", self._parts.operate))
            if self._dispatcher.skipped.forget_due():
                self._worker_run.request_settle()
            self._give_back_unstarted(now)
        return min(delay, self._next_delay())

    def _do(self, what: str, step: Callable[[], float | None]) -> float:
        """Do a step, which returns the seconds until the next one. An error does not keep the worker from the others.

        An error of the database ends the round: the others would have it, too.
        """
        try:
            delay = step()
        except StoreError as error:
            if not isinstance(error, DamagedRow):
                raise
            self._job_log.error(what, error)
            return ERROR_SECONDS
        except Exception as error:  # noqa: BLE001  such as a value in a table that no constraint has refused
            self._dispatcher.note_error(what, error)
            return ERROR_SECONDS
        return math.inf if delay is None else delay

    def _next_delay(self) -> float:
        active = self._dispatcher.active.copy()  # again: some may have started during this round
        if self._dispatcher.unsettled or self._threads.ready or self._process_threads.ready or self._loop.ready:
            return PENDING_SECONDS
        if any(attempt.started_ns == 0 for attempt in active):  # its deadline is not known yet
            return PENDING_SECONDS
        if self._serves_pool and not self._threads.is_waiting_for_commits():
            return UNWATCHED_SECONDS
        if not self._dispatcher.is_idle():  # a job that used to be short may block the thread that waits for commits
            return RECENT_SECONDS
        return RUNNING_SECONDS if active else IDLE_SECONDS

    def _is_due(self, what: str, every: int, now: int) -> bool:
        if now - self._last.get(what, 0) < every:
            return False
        self._last[what] = now
        return True

    # --- running attempts ---

    def _enforce_timeouts(self, active: set[Attempt], now: int) -> float:
        """Settle attempts that exceeded their timeout, and stop them. Returns the seconds until the next deadline."""
        soonest = float("inf")
        for attempt in active:
            if attempt.deadline_ns and attempt.deadline_ns <= now:
                seconds = (attempt.claimed.timeout or 0) / 1e6
                failure = Failure("TIMEOUT:HANDLER", f"the handler exceeded its timeout of {seconds:g} seconds")
                self._settle_and_stop(attempt, self._worker_run.outcome_mapper.retry(attempt, failure))
            elif attempt.deadline_ns:
                soonest = min(soonest, (attempt.deadline_ns - now) / 1e9)
        return soonest

    def _settle_and_stop(self, attempt: Attempt, settlement: Settlement) -> None:
        """Settle a running attempt now, and stop its handler, whose outcome is ignored."""
        if self._dispatcher.finish(attempt, settlement):
            self._worker_run.stop_handler(attempt)
            if self._threads.stuck + self._loop.stuck > MAX_STUCK:
                self._worker_run.has_too_many_stuck = True
                self._worker_run.stop()

    def _renew_leases(self, active: set[Attempt], now: int) -> None:
        """Renew leases, and store the start and the progress of attempts that take long."""
        renew_after_ns = self._worker_run.lease * 1000 // 3
        due = [attempt for attempt in active if _needs_renewal(attempt, now, renew_after_ns)]
        if not due:
            return
        for attempt in due:
            attempt.has_new_progress, attempt.renewed_ns = False, now
        start_until = boot_ns() + self._dispatcher.start_within_ns
        renewals = [
            LeaseRenewal(one.claimed.lease, one.started_at, one.progress, one.progress_text)
            for one in due
            if one.started_ns
        ]
        held = self._store.jobs.renew(renewals, self._worker_run.lease)
        for attempt in due:
            if attempt.claimed.id in held:
                attempt.start_until_ns = start_until
        self._discard_lost([attempt for attempt in due if attempt.started_ns and attempt.claimed.id not in held])

    def _stop_lost(self, active: set[Attempt], now: int) -> None:
        """Stop handlers whose job was cancelled, or whose lease was lost."""
        old = [attempt for attempt in active if 0 < attempt.started_ns < now - SLOW_NS]
        if old and self._is_due("held", CANCEL_CHECK_NS, now):
            held = self._store.jobs.renew([LeaseRenewal(attempt.claimed.lease) for attempt in old], None)
            self._discard_lost([attempt for attempt in old if attempt.claimed.id not in held])

    def _discard_lost(self, attempts: list[Attempt]) -> None:
        """Stop handlers whose job is not theirs any more, and log why, once for each."""
        lost = [
            attempt
            for attempt in attempts
            if not attempt.completing_since_ns
            and attempt.completed is None
            and self._dispatcher.discard_active(attempt)
        ]
        for attempt in lost:
            self._worker_run.stop_handler(attempt)
        ended = self._job_log.ended_by_others(lost) if lost else set()
        for attempt in lost:
            if attempt not in ended:
                self._job_log.counts["lost"] += 1
                log.warning("%s %d lost its lease; its handler is stopped", attempt.handler.name, attempt.claimed.id)

    # --- claimed attempts that have not started ---

    def _wake_stalled(self) -> None:
        """Wake threads if no attempt has started since the last round: a job may take longer than usual."""
        started_count = self._threads.started_count + self._process_threads.started_count
        if started_count == self._started_count:
            unwatched = not self._threads.is_waiting_for_commits()
            if (self._threads.ready or unwatched) and not self._threads.wake_or_start_threads(1) and unwatched:
                self._dispatcher.settle_and_claim(None)  # threads are busy, but child processes may be free
            if self._process_threads.ready:
                self._process_threads.wake_or_start_threads(1)
            if self._loop.ready:
                self._loop.wake()
        self._started_count = started_count
        if self._dispatcher.unsettled_age_ns() > UNSETTLED_NS:
            self._dispatcher.settle_and_claim(None)

    def _give_back_unstarted(self, now: int) -> None:
        """Give back attempts that were claimed and could not start soon, so that other workers can run them."""
        for pool in (self._threads, self._loop, self._process_threads):
            with suppress(IndexError):  # a thread started the last one
                while pool.ready[-1].claimed_ns < now - MAX_UNSTARTED_NS:
                    self._dispatcher.give_back(pool.ready.pop())

    # --- statistics ---

    def _fold(self, now: int) -> float:
        """Add new events to the statistics: once a second, and after every 4,000 jobs, one step in each round.

        Returns 0 if there are more.
        """
        settled = self._job_log.counts.total()
        if settled - self._settled_at_fold > FOLD_JOBS or self._is_due("fold", FOLD_NS, now):
            self._settled_at_fold = settled
            if self._store.statistics.fold() >= FOLD_BATCH:
                self._last.pop("fold", None)
                return 0.0
        return math.inf

    def _report_failures(self, now: int) -> None:
        """Tell the hooks about failures: once a second, and after a failure of this worker."""
        failed = self._job_log.counts["failed"]
        if failed != self._failed_at_report or self._is_due("failures", REPORT_NS, now):
            self._failed_at_report = failed
            self._parts.reporter.report()

    # --- other workers ---

    def _recover_dead_workers(self, now: int) -> float:
        """Look for dead workers (engine/worker_locks.py) and recover some of their jobs (store/workers.py).

        Returns 0 if there are more.
        """
        every = IDLE_SECONDS * 1e9 if self._threads.is_waiting_for_commits() else DEAD_WORKERS_NS
        if self._is_due("dead workers", int(every), now) and self._store.jobs.sweep(Sweep.WORKERS, MAX_SWEPT):
            del self._last["dead workers"]
            return 0.0
        return math.inf

    def _is_heartbeat_due(self, now: int) -> bool:
        """Return whether to ask which jobs this worker holds: sooner if the answer to a claim may have been lost."""
        if self._dispatcher.recoveries != self._recoveries:
            self._recoveries = self._dispatcher.recoveries
            self._last.pop("heartbeat", None)
        return self._is_due("heartbeat", UNKNOWN_CLAIMS_NS if self._unknown_claims else HEARTBEAT_NS, now)

    def _heartbeat(self) -> None:
        self._dispatcher.retry_unsettleable()
        # Both are read before the query: what is settled in between is no longer running in the database then.
        ended = self._dispatcher.rounds_ended
        known = {(attempt.claimed.id, attempt.claimed.attempt) for attempt in self._dispatcher.held.copy()}
        leases = self._store.workers.heartbeat(self._worker_run.id, resident_bytes())
        if leases is None:
            log.error("other workers considered this worker dead and recovered its jobs; it continues with a new id")
            self._worker_run.register_again()
        self._give_back_unknown_claims([one for one in leases or [] if (one.id, one.attempt) not in known], ended)

    def _stop_if_asked(self) -> None:
        if self._store.workers.is_asked_to_stop(self._worker_run.id):
            log.info("an operator has asked this worker to stop")
            self._worker_run.stop_when_done()

    def _give_back_unknown_claims(self, leases: list[Lease], ended: int) -> None:
        """Give back jobs that are claimed by this worker in the database but unknown to it, as after a lost reply.

        A claim that is in progress is unknown as well until its round of claiming ends. So an unknown claim is given
        back only when it is still there after the rounds have ended that had begun when it was first seen.
        """
        seen, begun = self._unknown_claims, self._dispatcher.rounds_begun
        self._unknown_claims = {lease: seen.get(lease, begun) for lease in leases}
        lost = [lease for lease in leases if lease in seen and seen[lease] <= ended]
        if lost:
            ids = ", ".join(str(lease.id) for lease in lost[:10])
            log.error("%s claimed by this worker but unknown to it; giving back: %s", plural(len(lost), "job"), ids)
            now = self._clock.now()
            self._store.jobs.settle_and_claim([Settlement(lease, "give_back", None, now) for lease in lost], [])


def _needs_renewal(attempt: Attempt, now: int, renew_after_ns: int) -> bool:
    age = now - (attempt.renewed_ns or attempt.claimed_ns)
    if attempt.has_new_progress and age > STORE_PROGRESS_NS:
        return True
    if attempt.renewed_ns == 0 and 0 < attempt.started_ns < now - STORE_START_NS:
        return True
    return age > renew_after_ns


MAX_STEPS = 20  # in one round of housekeeping; each reads and reports a bounded number of events
LAZY_EVENTS = 10_000  # without a failure, the cursor is stored after this many events


class HookTask(Protocol):
    """A task that is called with failed jobs."""

    name: str

    def report(self, failed: FailureReport) -> NewJob:
        """Return the job that calls the hook."""
        ...


class FailureReporter:
    """Enqueues a job of each hook of `@app.on_failure` for each job that failed since the last report of any process.

    The event log is the source, and each hook has a cursor in it. So nothing is added to the transaction in which a
    job fails, and it does not matter who failed it: a worker, a sweep, an operator or a consumer of messages.
    """

    def __init__(self, store: Store, hooks: Iterable[HookTask]) -> None:
        self._store, self._hooks = store, list(hooks)
        self._scanned: dict[str, int] = {}  # by hook: the last event that was read and need not be read again

    def report(self) -> list[int]:
        """Enqueue the jobs of all hooks, for a bounded number of failures. Returns the ids of the jobs.

        A hook that is new in this database begins with the next failure.
        """
        return [job_id for hook in self._hooks for job_id in self._report(hook)]

    def _report(self, hook: HookTask) -> list[int]:
        reported: list[int] = []
        for _ in range(MAX_STEPS):
            found = self._store.jobs.unreported_failures(hook.name, self._scanned.get(hook.name, 0))
            new: list[int] = []
            if found.failed or found.cursor is None or found.until - found.cursor > LAZY_EVENTS:
                jobs = [hook.report(one) for one in found.failed]
                new = self._store.jobs.report_failures(hook.name, found, jobs)
            if len(new) == len(found.failed):  # otherwise another process was first, and may have read less
                self._scanned[hook.name] = found.until
            reported += new
            if not found.more:
                break
        return reported
