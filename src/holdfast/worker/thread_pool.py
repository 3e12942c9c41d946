"""A pool of threads that run attempts.

One thread runs all jobs that are short, since switching threads would cost more than the job. Others are woken or
started for jobs that take longer.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from ..model.job import Settlement, Sweep
from ..store.protocol import Store
from .attempt import Attempt
from .dispatcher import Dispatcher, RunTimes

MAX_UNSETTLED_NS = 25_000_000
MAX_WAIT_SECONDS = 1.0
MAX_SWEPT = 1000  # housekeeping moves the rest
CLOSE_POLL_SECONDS = 0.01
MAX_CLOSE_SECONDS = 5.0
Execute = Callable[["PoolThread", Attempt], Settlement]


class PoolThread:
    """One thread of the pool."""

    def __init__(self) -> None:
        self.wake_up = threading.Lock()  # a parked thread waits for its release
        self.wake_up.acquire()
        self.abandoned = False  # its attempt was settled by another thread; it ends when its handler returns
        self.stop: Callable[[], None] | None = None
        self.resource: object = None  # kept for `execute`: the child process


class ThreadPool:
    """Up to `size` threads, started when they are needed."""

    def __init__(
        self,
        name: str,
        size: int,
        store: Store,
        dispatcher: Dispatcher,
        run_times: RunTimes,
        execute: Execute,
        has_room: Callable[[], bool] | None = None,
        waits_for_commits: bool = True,
    ) -> None:
        self._name, self.size, self._store = name, size, store
        self._dispatcher, self._run_times, self._execute = dispatcher, run_times, execute
        self._has_room = has_room  # if another pool shares the concurrency limit
        self.busy: set[Attempt] = set()
        self.ready: deque[Attempt] = deque()  # claimed but not started
        self.started_count = 0  # attempts; housekeeping sees from it whether the pool makes progress
        self.stuck = 0  # abandoned threads whose handler has not returned
        self._lock = threading.Lock()
        self._idle: list[PoolThread] = []
        self._thread_count = 0
        self._commit_wait = threading.Lock()
        self._waits_for_commits = waits_for_commits  # one idle thread does
        self._deaths_seen = -1
        self._closed = False
        self._all_ended = threading.Semaphore(0)

    def put(self, attempts: list[Attempt], from_own_thread: bool) -> None:
        """Add claimed attempts. from_own_thread: the caller is a thread of this pool and runs the first one."""
        short = {attempt.handler.name for attempt in attempts}
        short = {task for task in short if self._run_times.is_short(task)}
        long = 0
        for attempt in attempts:
            if attempt.handler.name in short:
                attempt.is_short = True
            else:
                long += 1
        self.ready.extend(attempts)
        self.wake_or_start_threads((len(attempts) if long else 1) - from_own_thread)

    def wake_or_start_threads(self, count: int) -> int:
        """Wake parked threads, or start new ones up to `size`. Returns how many were woken or started."""
        for number in range(count):
            with self._lock:
                if self._idle:
                    self._idle.pop().wake_up.release()
                elif self._thread_count < self.size and not self._closed:
                    try:
                        self._start()
                    except RuntimeError as error:  # the system has no thread left
                        self._dispatcher.note_error("starting a thread", error)
                        return number
                else:
                    return number
        return max(0, count)

    def is_waiting_for_commits(self) -> bool:
        """Return whether a thread is waiting for commits."""
        return self._commit_wait.locked()

    def stop_starting(self) -> None:
        """Start no more attempts."""
        self._closed = True

    def close(self) -> None:
        """Start no more attempts, and wait until all threads have ended, except abandoned ones."""
        self.stop_starting()
        with self._lock:
            for thread in self._idle:
                thread.wake_up.release()
            self._idle.clear()
        until = monotonic() + MAX_CLOSE_SECONDS
        while self._thread_count and monotonic() < until:
            self._store.wake_waiters()  # repeatedly: a thread may be about to wait
            if self._all_ended.acquire(timeout=CLOSE_POLL_SECONDS):
                break

    def _start(self) -> None:
        thread = PoolThread()
        thread.stop = partial(self._abandon, thread)
        threading.Thread(target=self._run_thread, args=(thread,), name=f"holdfast-{self._name}", daemon=True).start()
        self._thread_count += 1

    def _run_thread(self, thread: PoolThread) -> None:
        try:
            while not thread.abandoned:
                try:
                    attempt = self._next_attempt(thread)
                except Exception as error:  # noqa: BLE001  whatever it is, this thread is needed for other jobs
                    self._dispatcher.note_error("claiming jobs", error)
                    if self._closed or self._dispatcher.fatal_error is not None:
                        return
                    self._park(thread)  # housekeeping wakes it again
                    continue
                if attempt is None:
                    return
                self._run(thread, attempt)
        finally:
            with self._lock:
                if thread.abandoned:
                    self.stuck -= 1
                else:
                    self._thread_count -= 1
                    if self._closed and not self._thread_count:
                        self._all_ended.release()

    def _run(self, thread: PoolThread, attempt: Attempt) -> None:
        self.started_count += 1
        self.busy.add(attempt)
        attempt.stop = thread.stop
        # Checked after the attempt became active: either this thread sees the flag, or the closing one the attempt.
        try:
            if self._closed:
                self._dispatcher.give_back_active(attempt)
            else:
                self._dispatcher.finish(attempt, self._execute(thread, attempt))
        except Exception as error:  # noqa: BLE001  `execute` should not raise; if it does, only this attempt fails
            self._dispatcher.finish_with_error(attempt, error)
        self.busy.discard(attempt)

    def _abandon(self, thread: PoolThread) -> None:
        """Replace a thread whose attempt was settled by another thread. The thread itself cannot be stopped."""
        with self._lock:
            if not thread.abandoned:
                thread.abandoned = True
                self.busy -= {attempt for attempt in self.busy if attempt.stop is thread.stop}
                self._thread_count -= 1
                self.stuck += 1
        self.wake_or_start_threads(1)

    def _next_attempt(self, thread: PoolThread) -> Attempt | None:
        while True:
            if (attempt := self._pop_ready()) is not None:
                return attempt
            seen = self._store.commits_seen()
            claimed = self._dispatcher.settle_and_claim(self)
            if self._can_start() or (self._dispatcher.unsettled and claimed is not None):
                continue
            if self._closed:
                return None
            if claimed is not None and self._waits_for_commits and self._commit_wait.acquire(blocking=False):
                try:
                    self._wait_for_commit(seen)
                finally:
                    self._commit_wait.release()
            else:
                self._park(thread)

    def _pop_ready(self) -> Attempt | None:
        """Return the next ready attempt. If it may take long, settle finished attempts first."""
        if self._has_room is not None and not self._has_room():
            return None
        try:
            attempt = self.ready.popleft()
        except IndexError:
            return None
        dispatcher = self._dispatcher
        dispatcher.active.add(attempt)  # at once: it must count as ready or active at any time
        if dispatcher.unsettled and (not attempt.is_short or dispatcher.unsettled_age_ns() > MAX_UNSETTLED_NS):
            dispatcher.settle_and_claim(self)
        if (
            not self.ready
            and self._waits_for_commits
            and not self.is_waiting_for_commits()
            and (not attempt.is_short or dispatcher.was_idle)
        ):
            self.wake_or_start_threads(1)  # it will wait for the next commit
        return attempt

    def _can_start(self) -> bool:
        return bool(self.ready) and (self._has_room is None or self._has_room())

    def _park(self, thread: PoolThread) -> None:
        with self._lock:
            if self._can_start() or self._closed:
                return
            self._idle.append(thread)
        thread.wake_up.acquire()

    def _wait_for_commit(self, seen: int) -> None:
        deaths = self._store.wait_for_commit(seen, MAX_WAIT_SECONDS, until_due=True)
        if deaths != self._deaths_seen:
            self._deaths_seen = deaths
            self._store.jobs.sweep(Sweep.WORKERS, MAX_SWEPT)
