"""The worker: puts its parts together, runs them, and stops in order, by a signal (SIGTERM, SIGINT, SIGHUP) too."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from random import Random
from time import monotonic, monotonic_ns
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol

from msgspec import Struct

from .. import __version__
from ..clock import SECOND, Clock
from ..context import ContextBackend
from ..errors import InvalidInput, StoreError, WorkerStuck
from ..failure import ErrorTable
from ..model.job import ClaimRequest, Sweep
from ..model.worker import WorkerLimits, WorkerRecord
from ..store.protocol import Store
from ..text import plural
from .attempt import Attempt, Handler, Middleware
from .dispatcher import ClaimPlanner, Dispatcher, RunTimes, ServedQueue, SkippedJobs
from .event_loop import EventLoop
from .executor import Executor
from .housekeeping import MAX_STUCK, MAX_SWEPT, SLOW_NS, FailureReporter, Housekeeping
from .job_log import JobLog
from .outcomes import OutcomeMapper
from .process_pool import ProcessPool, Spawn, resident_bytes
from .scheduler import Scheduler
from .thread_pool import ThreadPool


class WorkerOptions(Struct, frozen=True):
    """The options of a worker, already validated. Times are seconds."""

    queues: tuple[ServedQueue, ...] | None = None
    concurrency: int = 10
    pool: int = 2
    lease: float = 60.0
    grace: float = 30.0
    until_idle: bool = False
    max_jobs: int | None = None
    max_memory: int | None = None


class BackgroundPruning(Protocol):
    """Prunes in small steps."""

    def do_some(self) -> float:
        """Do one step. Returns the seconds until the next one."""
        ...

    def end(self) -> None:
        """Let another worker prune."""
        ...


class ProcessHooks(Protocol):
    """Functions of the program that are called when a process which runs jobs starts and stops."""

    def start(self, process: Literal["worker", "pool"]) -> None:
        """Call them all. Raises what they raise."""
        ...

    def stop(self, process: Literal["worker", "pool"]) -> None:
        """Call them all. Logs what they raise."""
        ...


class WorkerParts(Struct, frozen=True):
    """The objects that a worker is built from."""

    store: Store
    clock: Clock
    handlers: Mapping[str, Handler]
    errors: ErrorTable
    random: Random
    middleware: Sequence[Middleware]
    backing: ContextBackend
    spawn: Spawn
    scheduler: Scheduler
    upkeep: BackgroundPruning
    operate: Callable[[], float]
    """Does a step of the bulk operations, and returns the seconds until the next."""
    reporter: FailureReporter
    hooks: ProcessHooks
    payload_timeout: int
    """How long a payload that does not fit is kept for newer code, in microseconds."""
    retention: str | None
    """The retention policy in the program's code, as JSON, if it has one."""


class WorkerReport(Struct, frozen=True):
    """The attempts of a worker, by outcome."""

    succeeded: int
    failed: int
    retried: int
    snoozed: int
    cancelled: int
    interrupted: int
    """Attempts still running at the end of the grace period. They do not count, and their jobs run again."""
    lost: int
    """Attempts whose outcome was discarded, because the lease was lost or the job was cancelled."""
    stuck: int
    """Handlers that exceeded their timeout and had not returned when the worker ended."""


log = logging.getLogger("holdfast.worker")


class WorkerRun:
    """One run of a worker, from start to end."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self.options = options
        self.id = _new_id()
        self._parts, self._store = parts, parts.store
        self._wake_up = WakeUp()
        self._job_log = JobLog(last_events=lambda job_id: parts.store.statistics.events(1, job_id=job_id))
        self._run_times, skipped = RunTimes(), SkippedJobs()
        self.outcome_mapper = outcome_mapper = OutcomeMapper(parts.errors, parts.random, parts.payload_timeout)
        executor = Executor(outcome_mapper, parts.clock, parts.middleware, parts.store, parts.backing)
        self.dispatcher = Dispatcher(
            self._store,
            parts.clock,
            parts.handlers,
            self._job_log,
            self._run_times,
            self.lease,
            self._claim_requests,
            self._distribute,
            skipped,
        )
        self._process_pool = ProcessPool(
            parts.spawn, outcome_mapper, parts.clock, options.max_jobs, options.max_memory
        )
        self._threads = ThreadPool(
            "run",
            options.concurrency,
            self._store,
            self.dispatcher,
            self._run_times,
            lambda _, attempt: executor.run(attempt),
            has_room=self._has_room if self._tasks_of_kind("async") else None,
        )
        self._loop = EventLoop(self.dispatcher, executor, self._has_room, self.request_settle)
        self._process_threads = ThreadPool(
            "pool",
            options.pool,
            self._store,
            self.dispatcher,
            self._run_times,
            self._process_pool.execute,
            waits_for_commits=False,
        )
        self._kinds = {name: handler.kind for name, handler in parts.handlers.items()}
        self._pools: dict[str, ThreadPool | EventLoop] = {
            "thread": self._threads,
            "async": self._loop,
            "process": self._process_threads,
        }
        own_tasks = self._tasks_of_kind("thread", "async")
        self._versions = {name: one.version for name, one in parts.handlers.items() if one.version}
        common = options.queues, self._run_times, parts.random, self._versions, skipped
        self._planner = ClaimPlanner(own_tasks, options.concurrency, *common)
        process_tasks = self._tasks_of_kind("process")
        self._process_planner = ClaimPlanner(process_tasks, options.pool, *common, prefetch=False)
        self._stopping = self._stop_now = self._notify_housekeeping = False
        self.has_too_many_stuck = self._is_blocked = False

    def run(self) -> WorkerReport:
        self._parts.hooks.start("worker")
        try:
            return self._run()
        finally:
            self._parts.hooks.stop("worker")

    def _run(self) -> WorkerReport:
        housekeeping = Housekeeping(
            self, self._parts, self._job_log, self._threads, self._process_threads, self._loop, self._process_pool
        )
        with StopSignals(self.stop), closing(self._job_log):
            self._store.workers.register(self._record(), self._parts.retention)
            self._store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES, MAX_SWEPT)
            self._parts.reporter.report()  # a new hook begins here
            try:
                self._threads.wake_or_start_threads(1)
                self._parts.scheduler.store_declared(lambda: self._stopping)
                self._run_until_stopped(housekeeping)
                self._drain(housekeeping)
            finally:
                self._close(housekeeping)
        if self._is_blocked:
            raise WorkerStuck(
                "a handler is stuck in a transaction, such as ctx.complete(), and holds the write lock, so this "
                "worker has ended without giving back its jobs: end the process, and do nothing slow in a transaction"
            )
        if self.has_too_many_stuck:
            raise WorkerStuck(
                f"more than {MAX_STUCK} handlers did not return after their timeout, so the worker has ended: set "
                "timeouts on what they wait for, or use pool='process'"
            )
        return self._report()

    def stop(self) -> None:
        self._stop_now = self._stopping
        self._stopping = True
        self._wake_up.notify()

    def stop_when_done(self) -> None:
        """Stop as after the first signal, however often this is called."""
        self._stopping = True
        self._wake_up.notify()

    # --- called by the parts ---

    @property
    def lease(self) -> int:
        return round(self.options.lease * SECOND)

    def held_attempts(self) -> Iterator[Attempt]:
        """Yield every attempt that is running or waits to start."""
        yield from self.dispatcher.active.copy()
        for pool in self._pools.values():
            yield from list(pool.ready)

    def stop_handler(self, attempt: Attempt) -> None:
        """Stop the handler of an attempt that is settled or lost: cancel its coroutine, kill its child process, or
        abandon its thread, which cannot be stopped.
        """
        attempt.cancelled = True
        if attempt.stop is not None:
            attempt.stop()

    def _claim_requests(self) -> list[ClaimRequest]:
        if self._stopping:
            return []
        active = self.dispatcher.active.copy()
        in_processes = sum(attempt.handler.kind == "process" for attempt in active)
        long_ago = monotonic_ns() - SLOW_NS
        slow = sum(0 < attempt.started_ns < long_ago for attempt in active if attempt.handler.kind != "process")
        waiting = len(self._threads.ready) + len(self._loop.ready)
        running = len(active) - in_processes
        requests = [
            self._planner.request(running, slow, waiting, self.held_attempts, self.lease, self.id),
            self._process_planner.request(
                in_processes, 0, len(self._process_threads.ready), self.held_attempts, self.lease, self.id
            ),
        ]
        return [request for request in requests if request is not None]

    def _distribute(self, attempts: list[Attempt], claimed_by: object) -> None:
        by_kind: dict[str, list[Attempt]] = {}
        kinds = self._kinds
        for attempt in attempts:
            by_kind.setdefault(kinds[attempt.handler.name], []).append(attempt)
        for kind, of_kind in by_kind.items():
            pool = self._pools[kind]
            pool.put(of_kind, from_own_thread=pool is claimed_by)
        if self._notify_housekeeping and (len(attempts) > 1 or attempts[0].claimed.timeout is not None):
            self._wake_up.notify()  # housekeeping must see whether they start and meet their deadlines

    def _has_room(self) -> bool:
        """Return whether another attempt may start. Threads and coroutines share the concurrency limit."""
        return len(self.dispatcher.active) - len(self._process_threads.busy) < self.options.concurrency

    def request_settle(self) -> None:
        """Wake a pool thread that settles finished attempts and claims jobs, for the event loop and housekeeping."""
        if self._threads.is_waiting_for_commits():
            self._store.wake_waiters()
        else:
            self._threads.wake_or_start_threads(1)

    def _tasks_of_kind(self, *kinds: str) -> Collection[str]:
        return frozenset(name for name, handler in self._parts.handlers.items() if handler.kind in kinds)

    # --- start to end ---

    def _run_until_stopped(self, housekeeping: Housekeeping) -> None:
        idle_rounds = 0
        while not self._stopping:
            self._notify_housekeeping = True  # this round may miss an attempt that is claimed from now on
            delay = housekeeping.run_round()
            if self.dispatcher.fatal_error is not None:
                raise self.dispatcher.fatal_error
            if self.options.until_idle:
                if self.dispatcher.lasting_error is not None:  # it would never be idle
                    raise self.dispatcher.lasting_error
                idle_rounds = idle_rounds + 1 if self._is_idle() else 0
                if idle_rounds > 1:
                    return
                delay = min(delay, 0.01)
            self._notify_housekeeping = delay > 0.02
            self._wake_up.wait(delay)

    def _is_idle(self) -> bool:
        """Return whether nothing is running or unsettled, and no job is ready that this worker serves."""
        if self.dispatcher.is_busy() or self._parts.reporter.report():
            return False
        return self.dispatcher.settle_and_claim(None) is False

    def _drain(self, housekeeping: Housekeeping) -> None:
        self._stopping = True
        deadline = monotonic() + self.options.grace
        if self.dispatcher.active:
            running = plural(len(self.dispatcher.active), "running job")
            log.info("stopping: waiting up to %g s for %s", self.options.grace, running)
        housekeeping.give_back_ready()
        while (self.dispatcher.active or self.dispatcher.unsettled) and not self._stop_now:
            left = deadline - monotonic()
            if left <= 0 or self.dispatcher.fatal_error is not None:
                break
            housekeeping.run_round(draining=True)
            self._wake_up.wait(min(left, 0.02))

    def _close(self, housekeeping: Housekeeping) -> None:
        self._threads.stop_starting()
        self._process_threads.stop_starting()
        self._loop.stop_starting()
        housekeeping.interrupt_all()
        self._is_blocked = housekeeping.is_blocked()
        if self._is_blocked:  # the threads wait for the write lock, and end with this process
            self._process_pool.close()
            self._wake_up.close()
            return
        for pool in (self._threads, self._loop, self._process_threads, self._process_pool):
            pool.close()
        housekeeping.interrupt_all()  # again, for a claim that was in progress
        self._parts.upkeep.end()
        try:
            self._store.workers.unregister(self.id)
        except StoreError as error:
            log.error("could not unregister this worker (%s); other workers will detect that it has ended", error)
        self._wake_up.close()

    def _record(self) -> WorkerRecord:
        now = self._parts.clock.now()
        queues = self.options.queues
        return WorkerRecord(
            id=self.id,
            pid=os.getpid(),
            host=socket.gethostname(),
            queues=None if queues is None else tuple(queue.name for queue in queues),
            tasks=tuple(sorted(self._parts.handlers)),
            concurrency=self.options.concurrency,
            lease=self.lease,
            started_at=now,
            heartbeat_at=now,
            limits=WorkerLimits(
                queues={queue.name: queue.limit for queue in queues or () if queue.limit is not None},
                weighted=any(queue.weight is not None for queue in queues or ()),
                pool=self.options.pool,
                pool_tasks=tuple(sorted(self._tasks_of_kind("process"))),
                versions=self._versions,
            ),
            version=__version__,
            memory=resident_bytes(),
        )

    def register_again(self) -> None:
        """Continue with a new id, after other workers considered this one dead and recovered its jobs."""
        self.id = _new_id()
        self._store.workers.register(self._record())

    def _report(self) -> WorkerReport:
        counts = self._job_log.counts
        return WorkerReport(
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            retried=counts["retry_scheduled"],
            snoozed=counts["snoozed"],
            cancelled=counts["cancelled"],
            interrupted=counts["interrupted"],
            lost=counts["lost"],
            stuck=self._threads.stuck + self._loop.stuck,
        )


def _new_id() -> str:
    """Return a random id from the system: after a fork, both processes would draw the same ids from `random`."""
    return secrets.token_hex(8)


class Worker:
    """Runs jobs until it is stopped. Create it with `app.worker(…)`."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self.options = options
        self._worker_run = WorkerRun(parts, options)
        self._has_run = False

    @property
    def id(self) -> str:
        """The id of this worker, as in `job.worker`. Random."""
        return self._worker_run.id

    def run(self) -> WorkerReport:
        """Run jobs until `stop()`, a signal or, with until_idle, until no job is left. A worker runs once."""
        if self._has_run:
            raise InvalidInput("a worker can run only once: create another with app.worker()")
        self._has_run = True
        return self._worker_run.run()

    def stop(self) -> None:
        """Claim no more jobs, and end when running jobs have finished, or after the grace period.

        A second call interrupts running jobs.
        """
        self._worker_run.stop()


class WakeUp:
    """A socket pair that interrupts a wait. Unlike a lock, it is safe to use in a signal handler.

    Sockets and not a pipe: sending on a closed socket raises, while the number of a closed pipe may already belong to
    another file.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._receiver, select.POLLIN)

    def notify(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full, so it is notified already; or closed
            self._sender.send(b".")

    def wait(self, seconds: float) -> None:
        if self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                self._receiver.recv(4096)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """A context in which these signals call `stop`. Does nothing outside of the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # started by nohup
                self._previous[number] = signal.signal(number, self._on_signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()  # only sets a flag and writes to a socket
