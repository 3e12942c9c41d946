"""The worker, as a program sees it."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from random import Random
from time import monotonic, monotonic_ns
from typing import Protocol

from msgspec import Struct

from ..clock import SECOND, Clock
from ..context import ContextBackend
from ..errors import InvalidInput, StoreError, WorkerStuck
from ..failure import ErrorTable
from ..model.job import ClaimRequest, Sweep
from ..model.worker import WorkerLimits, WorkerRecord
from ..store.protocol import Store
from .attempt import Attempt, Handler, Middleware
from .dispatcher import Dispatcher
from .event_loop import EventLoop
from .executor import Executor
from .housekeeping import MOST_STUCK, SLOW_NS, Housekeeping
from .job_log import JobLog
from .outcomes import OutcomeMapper
from .prefetch import Prefetch, RunTimes, ServedQueue
from .process_pool import ProcessPool, Spawn
from .scheduler import Scheduler
from .signals import StopSignals, WakeUp
from .thread_pool import ThreadPool


class WorkerOptions(Struct, frozen=True):
    """What a worker was told, checked by whoever made it. Times are seconds."""

    queues: tuple[ServedQueue, ...] | None = None
    concurrency: int = 10
    pool: int = 2
    lease: float = 60.0
    grace: float = 30.0
    until_idle: bool = False
    max_jobs: int | None = None
    max_memory: int | None = None


class BackgroundPruning(Protocol):
    """What keeps the database small, a little at a time."""

    def do_some(self) -> float:
        """Returns the seconds until it wants to be asked again."""
        ...

    def end(self) -> None:
        """Let another do it."""
        ...


class WorkerParts(Struct, frozen=True):
    """What a worker is built from."""

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
    retention: str | None
    """The program's policy, as JSON, if it has one."""


class WorkerReport(Struct, frozen=True):
    """What a worker did between its start and its end."""

    succeeded: int
    failed: int
    retried: int
    snoozed: int
    cancelled: int
    interrupted: int
    """Attempts that were still running when the time to finish was over, and went back without counting."""
    lost: int
    """Attempts that ended after another worker had taken the job over, or an operator had cancelled it."""
    stuck: int
    """Handlers that ran out of time and had not come back when the worker ended."""


log = logging.getLogger("holdfast.worker")


class WorkerRun:
    """The parts, put together, from the start of a worker to its end."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self.options = options
        self.id = _new_id()
        self._parts, self._store = parts, parts.store
        self._wake_up = WakeUp()
        self._job_log, self._run_times = JobLog(), RunTimes()
        self.outcome_mapper = outcome_mapper = OutcomeMapper(parts.errors, parts.random)
        executor = Executor(outcome_mapper, parts.clock, parts.middleware, parts.store, parts.backing)
        self.dispatcher = Dispatcher(
            self._store,
            parts.clock,
            parts.handlers,
            self._job_log,
            self._run_times,
            self.lease,
            self._wants,
            self._hand_out,
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
            has_room=self._has_room if self._tasks("async") else None,
        )
        self._loop = EventLoop(self.dispatcher, executor, self._has_room, self._call_for_trade)
        self._pool = ThreadPool(
            "pool",
            options.pool,
            self._store,
            self.dispatcher,
            self._run_times,
            self._process_pool.execute,
            watches=False,
        )
        self._kinds = {name: handler.kind for name, handler in parts.handlers.items()}
        self._pools: dict[str, ThreadPool | EventLoop] = {
            "thread": self._threads,
            "async": self._loop,
            "process": self._pool,
        }
        here = self._tasks("thread", "async")
        self._prefetch_here = Prefetch(here, options.concurrency, options.queues, self._run_times, parts.random)
        pool = self._tasks("process")
        self._prefetch_pool = Prefetch(pool, options.pool, options.queues, self._run_times, parts.random, ahead=False)
        self._stopping = self._hurried = self._naps = False
        self.too_stuck = self._held_up = False

    def run(self) -> WorkerReport:
        housekeeping = Housekeeping(
            self, self._parts, self._job_log, self._threads, self._pool, self._loop, self._process_pool
        )
        with StopSignals(self.stop), closing(self._job_log):
            self._store.workers.register(self._record(), self._parts.retention)
            self._store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES)
            self._parts.scheduler.store_declared()
            try:
                self._threads.call_up(1)
                self._until_told_to_stop(housekeeping)
                self._drain(housekeeping)
            finally:
                self._close(housekeeping)
        if self._held_up:
            raise WorkerStuck(
                "a handler hangs in a transaction, such as ctx.complete(), and holds the write lock: this worker has "
                "ended without giving back its jobs. End this process, and do nothing slow in such a block"
            )
        if self.too_stuck:
            raise WorkerStuck(
                f"more than {MOST_STUCK} handlers did not come back after their timeout, so this worker has ended: "
                "let what they wait for time out, or run them with pool='process'"
            )
        return self._report()

    def stop(self) -> None:
        self._hurried = self._stopping
        self._stopping = True
        self._wake_up.notify()

    # --- what the parts ask of it ---

    @property
    def lease(self) -> int:
        return round(self.options.lease * SECOND)

    def held(self) -> Iterator[Attempt]:
        """All that was taken: what runs and what waits to begin."""
        yield from self.dispatcher.active.copy()
        for pool in self._pools.values():
            yield from list(pool.ready)

    def give_up(self, attempt: Attempt) -> None:
        """Somebody else has settled it: stop its handler, as far as that can be done."""
        attempt.cancelled = True
        if attempt.stop is not None:
            attempt.stop()

    def _wants(self) -> list[ClaimRequest]:
        if self._stopping:
            return []
        active = self.dispatcher.active.copy()
        in_pool = sum(attempt.handler.kind == "process" for attempt in active)
        long_ago = monotonic_ns() - SLOW_NS
        slow = sum(0 < attempt.began < long_ago for attempt in active if attempt.handler.kind != "process")
        waiting = len(self._threads.ready) + len(self._loop.ready)
        running = len(active) - in_pool
        wants = [
            self._prefetch_here.wanted(running, slow, waiting, self.held, self.lease, self.id),
            self._prefetch_pool.wanted(in_pool, 0, len(self._pool.ready), self.held, self.lease, self.id),
        ]
        return [wanted for wanted in wants if wanted is not None]

    def _hand_out(self, attempts: list[Attempt], claimed_by: object) -> None:
        by_kind: dict[str, list[Attempt]] = {}
        kinds = self._kinds
        for attempt in attempts:
            by_kind.setdefault(kinds[attempt.handler.name], []).append(attempt)
        for kind, some in by_kind.items():
            pool = self._pools[kind]
            pool.put(some, from_inside=pool is claimed_by)
        if self._naps and (len(attempts) > 1 or attempts[0].claimed.timeout is not None):
            self._wake_up.notify()  # to see whether all of them begin, and end in time

    def _has_room(self) -> bool:
        """Threads and coroutines run on one account."""
        return len(self.dispatcher.active) - len(self._pool.busy) < self.options.concurrency

    def _call_for_trade(self) -> None:
        """Somebody has something to settle, and is not the one to do it."""
        if self._threads.is_watched():
            self._store.wake_waiters()
        else:
            self._threads.call_up(1)

    def _tasks(self, *kinds: str) -> Collection[str]:
        return frozenset(name for name, handler in self._parts.handlers.items() if handler.kind in kinds)

    # --- from start to end ---

    def _until_told_to_stop(self, housekeeping: Housekeeping) -> None:
        idle_since = 0
        while not self._stopping:
            self._naps = True  # what is taken from now on, it may have overlooked
            delay = housekeeping.do()
            if self.dispatcher.broken is not None:
                raise self.dispatcher.broken
            if self.options.until_idle:
                idle_since = idle_since + 1 if self._is_idle() else 0
                if idle_since > 1:
                    return
                delay = min(delay, 0.01)
            self._naps = delay > 0.02
            self._wake_up.wait(delay)

    def _is_idle(self) -> bool:
        """Nothing runs, nothing is to be settled, and nothing of what this worker serves is ready."""
        if self.dispatcher.is_busy() or any(True for _ in self.held()):
            return False
        return self.dispatcher.settle_and_claim(None) is False

    def _drain(self, housekeeping: Housekeeping) -> None:
        self._stopping = True
        deadline = monotonic() + self.options.grace
        if self.dispatcher.active:
            log.info("stopping: %d running, up to %g s to finish", len(self.dispatcher.active), self.options.grace)
        housekeeping.give_back_ready()
        while (self.dispatcher.active or self.dispatcher.done) and not self._hurried:
            left = deadline - monotonic()
            if left <= 0 or self.dispatcher.broken is not None:
                break
            housekeeping.do(draining=True)
            self._wake_up.wait(min(left, 0.02))

    def _close(self, housekeeping: Housekeeping) -> None:
        self._threads.stop_beginning()
        self._pool.stop_beginning()
        self._loop.stop_beginning()
        housekeeping.interrupt_all()
        self._held_up = housekeeping.is_held_up()
        if self._held_up:  # its threads wait for the database, too, and end with this process
            self._process_pool.close()
            self._wake_up.close()
            return
        for pool in (self._threads, self._loop, self._pool, self._process_pool):
            pool.close()
        housekeeping.interrupt_all()  # a claim that was under way may have come in since
        self._parts.upkeep.end()
        try:
            self._store.workers.unregister(self.id)
        except StoreError as error:
            log.error("this worker could not sign off (%s); others will see that it is gone", error)
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
                pool_tasks=tuple(sorted(self._tasks("process"))),
            ),
        )

    def enlist_anew(self) -> None:
        """Others took this worker for dead: what it held is theirs. It goes on under another name."""
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
    """From the system: a generator of the program's own is copied by a fork, and gives the same again."""
    return secrets.token_hex(8)


class Worker:
    """Runs jobs until it is told to stop. Make it with `app.worker(…)`."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self.options = options
        self._worker_run = WorkerRun(parts, options)
        self._has_run = False

    @property
    def id(self) -> str:
        """Random with every start, and what `job.worker` says."""
        return self._worker_run.id

    def run(self) -> WorkerReport:
        """Run jobs until `stop()`, a signal, or with until_idle until there is nothing left to do. Once only."""
        if self._has_run:
            raise InvalidInput("this worker has run already: make another with app.worker()")
        self._has_run = True
        return self._worker_run.run()

    def stop(self) -> None:
        """Take nothing more, and end when what runs has ended, or after the grace. A second time: end now."""
        self._worker_run.stop()
