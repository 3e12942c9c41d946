"""From the start of a worker to its end: the parts are put together, watched over, and brought to rest."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Collection, Iterator
from contextlib import closing
from time import monotonic, monotonic_ns

from ..clock import SECOND
from ..errors import StoreError, WorkerStuck
from ..model import Sweep, Wanted, WorkerLimits, WorkerRecord
from .attempt import Attempt
from .children import Children
from .coroutines import LoopLane
from .desk import Desk
from .doorbell import Doorbell
from .duties import MOST_STUCK, SLOW_NS, Duties
from .execute import Executor
from .intake import Intake
from .journal import Journal
from .lane import Lane
from .outcome import Settler
from .parts import Parts, WorkerOptions, WorkerReport
from .signals import StopSignals
from .speeds import Speeds

log = logging.getLogger("holdfast.worker")


class Shift:
    """The parts, put together, from the start of a worker to its end."""

    def __init__(self, parts: Parts, options: WorkerOptions) -> None:
        self.options = options
        self.id = _new_id()
        self._parts, self._store = parts, parts.store
        self._bell = Doorbell()
        self._journal, self._speeds = Journal(), Speeds()
        self.settler = settler = Settler(parts.errors, parts.random)
        executor = Executor(settler, parts.clock, parts.middleware, parts.store, parts.backing)
        self.desk = Desk(
            self._store,
            parts.clock,
            parts.handlers,
            self._journal,
            self._speeds,
            self.lease,
            self._wants,
            self._hand_out,
        )
        self._children = Children(parts.spawn, settler, parts.clock, options.max_jobs, options.max_memory)
        self._threads = Lane(
            "run",
            options.concurrency,
            self._store,
            self.desk,
            self._speeds,
            lambda _, attempt: executor.run(attempt),
            has_room=self._has_room if self._tasks("async") else None,
        )
        self._loop = LoopLane(self.desk, executor, self._has_room, self._call_for_trade)
        self._pool = Lane(
            "pool", options.pool, self._store, self.desk, self._speeds, self._children.execute, watches=False
        )
        self._lanes: dict[str, Lane | LoopLane] = {
            "thread": self._threads,
            "async": self._loop,
            "process": self._pool,
        }
        here = self._tasks("thread", "async")
        self._intake = Intake(here, options.concurrency, options.queues, self._speeds, parts.random)
        pool = self._tasks("process")
        self._pool_intake = Intake(pool, options.pool, options.queues, self._speeds, parts.random, ahead=False)
        self._stopping = self._hurried = self._naps = False
        self.too_stuck = self._held_up = False

    def run(self) -> WorkerReport:
        duties = Duties(self, self._parts, self._journal, self._threads, self._pool, self._loop, self._children)
        with StopSignals(self.stop), closing(self._journal):
            self._store.workers.enlist(self._record(), self._parts.retention)
            self._store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES)
            self._parts.scheduler.store_declared()
            try:
                self._threads.call_up(1)
                self._until_told_to_stop(duties)
                self._drain(duties)
            finally:
                self._close(duties)
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
        self._bell.ring()

    # --- what the parts ask of it ---

    @property
    def lease(self) -> int:
        return round(self.options.lease * SECOND)

    def held(self) -> Iterator[Attempt]:
        """All that was taken: what runs and what waits to begin."""
        yield from self.desk.active.copy()
        for lane in self._lanes.values():
            yield from list(lane.ready)

    def give_up(self, attempt: Attempt) -> None:
        """Somebody else has settled it: stop its handler, as far as that can be done."""
        attempt.cancelled = True
        if attempt.stop is not None:
            attempt.stop()

    def _wants(self) -> list[Wanted]:
        if self._stopping:
            return []
        active = self.desk.active.copy()
        in_pool = sum(attempt.handler.kind == "process" for attempt in active)
        long_ago = monotonic_ns() - SLOW_NS
        slow = sum(0 < attempt.began < long_ago for attempt in active if attempt.handler.kind != "process")
        waiting = len(self._threads.ready) + len(self._loop.ready)
        running = len(active) - in_pool
        wants = [
            self._intake.wanted(running, slow, waiting, self.held, self.lease, self.id),
            self._pool_intake.wanted(in_pool, 0, len(self._pool.ready), self.held, self.lease, self.id),
        ]
        return [wanted for wanted in wants if wanted is not None]

    def _hand_out(self, attempts: list[Attempt], trader: object) -> None:
        by_kind: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            by_kind.setdefault(attempt.handler.kind, []).append(attempt)
        for kind, some in by_kind.items():
            lane = self._lanes[kind]
            lane.put(some, from_inside=lane is trader)
        if self._naps and (len(attempts) > 1 or attempts[0].claimed.timeout is not None):
            self._bell.ring()  # to see whether all of them begin, and end in time

    def _has_room(self) -> bool:
        """Threads and coroutines run on one account."""
        return len(self.desk.active) - len(self._pool.busy) < self.options.concurrency

    def _call_for_trade(self) -> None:
        """Somebody has something to settle, and is not the one to do it."""
        if self._threads.is_watched():
            self._store.wake_waiting()
        else:
            self._threads.call_up(1)

    def _tasks(self, *kinds: str) -> Collection[str]:
        return frozenset(name for name, handler in self._parts.handlers.items() if handler.kind in kinds)

    # --- from start to end ---

    def _until_told_to_stop(self, duties: Duties) -> None:
        idle_since = 0
        while not self._stopping:
            self._naps = True  # what is taken from now on, it may have overlooked
            delay = duties.do()
            if self.desk.broken is not None:
                raise self.desk.broken
            if self.options.until_idle:
                idle_since = idle_since + 1 if self._is_idle() else 0
                if idle_since > 1:
                    return
                delay = min(delay, 0.01)
            self._naps = delay > 0.02
            self._bell.wait(delay)

    def _is_idle(self) -> bool:
        """Nothing runs, nothing is to be settled, and nothing of what this worker serves is ready."""
        if self.desk.is_busy() or any(True for _ in self.held()):
            return False
        return self.desk.trade(None) is False

    def _drain(self, duties: Duties) -> None:
        self._stopping = True
        deadline = monotonic() + self.options.grace
        if self.desk.active:
            log.info("stopping: %d running, up to %g s to finish", len(self.desk.active), self.options.grace)
        duties.give_back_ready()
        while (self.desk.active or self.desk.done) and not self._hurried:
            left = deadline - monotonic()
            if left <= 0 or self.desk.broken is not None:
                break
            duties.do(draining=True)
            self._bell.wait(min(left, 0.02))

    def _close(self, duties: Duties) -> None:
        self._threads.stop_beginning()
        self._pool.stop_beginning()
        self._loop.stop_beginning()
        duties.interrupt_all()
        self._held_up = duties.is_held_up()
        if self._held_up:  # its threads wait for the database, too, and end with this process
            self._children.close()
            self._bell.close()
            return
        for lane in (self._threads, self._loop, self._pool, self._children):
            lane.close()
        duties.interrupt_all()  # a claim that was under way may have come in since
        self._parts.upkeep.end()
        try:
            self._store.workers.retire(self.id)
        except StoreError as error:
            log.error("this worker could not sign off (%s); others will see that it is gone", error)
        self._bell.close()

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
        self._store.workers.enlist(self._record())

    def _report(self) -> WorkerReport:
        counts = self._journal.counts
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
