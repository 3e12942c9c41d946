"""Threads that run attempts. Where jobs are short one thread runs all of them; more are called up when it pays."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from ..errors import StoreError
from ..model.job import Settlement, Sweep
from ..store.protocol import Store
from .attempt import Attempt
from .dispatcher import Dispatcher
from .prefetch import RunTimes

LONGEST_UNSETTLED_NS = 25_000_000
LONGEST_WAIT_SECONDS = 1.0
CLOSE_LOOK_SECONDS = 0.01
LONGEST_CLOSE_SECONDS = 5.0
Execute = Callable[["Runner", Attempt], Settlement]


class Runner:
    """One thread, and what it is doing."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.abandoned = False
        self.stop: Callable[[], None] | None = None
        self.tool: object = None  # what the pool's `execute` keeps for it


class ThreadPool:
    def __init__(
        self,
        name: str,
        size: int,
        store: Store,
        dispatcher: Dispatcher,
        run_times: RunTimes,
        execute: Execute,
        has_room: Callable[[], bool] | None = None,
        watches: bool = True,
    ) -> None:
        self._name, self.size, self._store = name, size, store
        self._dispatcher, self._run_times, self._execute = dispatcher, run_times, execute
        self._has_room = has_room  # where others run on the same account
        self.busy: set[Attempt] = set()
        self.ready: deque[Attempt] = deque()
        self.begun = 0  # so that somebody who looks twice sees whether anything moves
        self.stuck = 0  # threads whose attempt was given up, and who have not come back
        self._lock = threading.Lock()
        self._idle: list[Runner] = []
        self._runners = 0
        self._watching = threading.Lock()
        self._watches = watches  # whether its idle threads wait for commits
        self._deaths = -1
        self._closed = False
        self._ended = threading.Semaphore(0)

    def put(self, attempts: list[Attempt], from_inside: bool) -> None:
        """Taken jobs. from_inside: the thread that took them is one of this pool, and goes on with the first."""
        short = {attempt.handler.name for attempt in attempts}
        short = {task for task in short if self._run_times.is_short(task)}
        long = 0
        for attempt in attempts:
            if attempt.handler.name in short:
                attempt.short = True
            else:
                long += 1
        self.ready.extend(attempts)
        self.call_up((len(attempts) if long else 1) - from_inside)

    def call_up(self, count: int) -> int:
        """Wake so many threads, or start them, as far as there are any. Returns how many."""
        for number in range(count):
            with self._lock:
                if self._idle:
                    self._idle.pop().gate.release()
                elif self._runners < self.size and not self._closed:
                    self._start()
                else:
                    return number
        return max(0, count)

    def is_watched(self) -> bool:
        """Whether a thread waits for commits."""
        return self._watching.locked()

    def stop_beginning(self) -> None:
        self._closed = True

    def close(self) -> None:
        """No more attempts are begun. Returns when all threads have ended but those that were given up."""
        self.stop_beginning()
        with self._lock:
            for runner in self._idle:
                runner.gate.release()
            self._idle.clear()
        until = monotonic() + LONGEST_CLOSE_SECONDS
        while self._runners and monotonic() < until:
            self._store.wake_waiters()  # again and again, since one may be just about to wait
            if self._ended.acquire(timeout=CLOSE_LOOK_SECONDS):
                break

    def _start(self) -> None:
        self._runners += 1
        runner = Runner()
        runner.stop = partial(self._abandon, runner)
        threading.Thread(target=self._live, args=(runner,), name=f"holdfast-{self._name}", daemon=True).start()

    def _live(self, runner: Runner) -> None:
        try:
            while not runner.abandoned:
                try:
                    attempt = self._next(runner)
                except StoreError as error:  # the database may be back soon; whoever watches over this calls up again
                    self._dispatcher.put_off(error)
                    if self._closed or self._dispatcher.broken is not None:
                        return
                    self._park(runner)
                    continue
                if attempt is None:
                    return
                self._run(runner, attempt)
        finally:
            with self._lock:
                if runner.abandoned:
                    self.stuck -= 1
                else:
                    self._runners -= 1
                    if self._closed and not self._runners:
                        self._ended.release()

    def _run(self, runner: Runner, attempt: Attempt) -> None:
        self.begun += 1
        self.busy.add(attempt)
        attempt.stop = runner.stop
        # Looked at after it has begun: so either this sees it, or whoever closes sees the attempt.
        if self._closed or not self._dispatcher.may_start(attempt):
            self._dispatcher.return_begun(attempt)
        else:
            self._dispatcher.finish(attempt, self._execute(runner, attempt))  # which raises nothing
        self.busy.discard(attempt)

    def _abandon(self, runner: Runner) -> None:
        """Its attempt is settled by somebody else. A thread cannot be stopped, so another takes its place."""
        with self._lock:
            if not runner.abandoned:
                runner.abandoned = True
                self.busy -= {attempt for attempt in self.busy if attempt.stop is runner.stop}
                self._runners -= 1
                self.stuck += 1
        self.call_up(1)

    def _next(self, runner: Runner) -> Attempt | None:
        while True:
            if (attempt := self._from_ready()) is not None:
                return attempt
            seen = self._store.commits_seen()
            traded = self._dispatcher.settle_and_claim(self)
            if self._may_begin() or (self._dispatcher.done and traded is not None):
                continue
            if self._closed:
                return None
            if traded is not None and self._watches and self._watching.acquire(blocking=False):
                try:
                    self._wait_for_commit(seen)
                finally:
                    self._watching.release()
            else:
                self._park(runner)

    def _from_ready(self) -> Attempt | None:
        """The next attempt, after settling what must not wait for its end."""
        if self._has_room is not None and not self._has_room():
            return None
        try:
            attempt = self.ready.popleft()
        except IndexError:
            return None
        dispatcher = self._dispatcher
        dispatcher.active.add(attempt)  # at once, so that it is counted as running or as waiting at every moment
        if dispatcher.done and (not attempt.short or dispatcher.unsettled_ns() > LONGEST_UNSETTLED_NS):
            dispatcher.settle_and_claim(self)
        if not self.ready and self._watches and not self.is_watched() and (not attempt.short or dispatcher.was_idle):
            self.call_up(1)  # to wait for what comes next
        return attempt

    def _may_begin(self) -> bool:
        return bool(self.ready) and (self._has_room is None or self._has_room())

    def _park(self, runner: Runner) -> None:
        with self._lock:
            if self._may_begin() or self._closed:
                return
            self._idle.append(runner)
        runner.gate.acquire()

    def _wait_for_commit(self, seen: int) -> None:
        deaths = self._store.wait_for_commit(seen, LONGEST_WAIT_SECONDS, until_due=True)
        if deaths != self._deaths:
            self._deaths = deaths
            self._store.jobs.sweep(Sweep.WORKERS)
