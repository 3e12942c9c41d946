"""The event loop for `async def` tasks, in its own thread."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from time import monotonic_ns
from typing import Any

from .attempt import Attempt
from .dispatcher import Dispatcher
from .executor import Executor

log = logging.getLogger("holdfast.worker")

MAX_UNSETTLED_SECONDS = 0.005
MAX_TURN_NS = 1_000_000  # then the loop does what else is due
MAX_CLEANUP_SECONDS = 1.0  # for the cleanup of cancelled coroutines
MAX_CLOSE_SECONDS = 1.5


class EventLoop:
    """Runs coroutines.

    An asyncio task costs more than a short coroutine. So one task runs coroutines one after the other until one of
    them suspends. From then on, it is the task of that one, and another task runs the next ones.

    While a coroutine is running, a thread of the thread pool settles and claims, so that commits do not block the
    loop. Otherwise the loop does it.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        has_room: Callable[[], bool],
        request_settle: Callable[[], None],
    ) -> None:
        self._dispatcher, self._executor = dispatcher, executor
        self._has_room, self._request_settle = has_room, request_settle
        self.ready: deque[Attempt] = deque()  # claimed, not started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspended: dict[Attempt, asyncio.Task[None]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        self._start_scheduled = self._settle_scheduled = self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stuck(self) -> int:
        """Return the number of coroutines that were cancelled and have not ended."""
        return len(self._cancelled)

    def put(self, attempts: list[Attempt], from_own_thread: bool) -> None:
        """Add claimed attempts. from_own_thread: the caller is on the loop."""
        self.ready.extend(attempts)
        if from_own_thread:
            self._schedule_start()
        else:
            with suppress(RuntimeError):  # the loop is closed: the worker gives back its ready attempts
                self._start_loop().call_soon_threadsafe(self._schedule_start)

    def wake(self) -> None:
        """Start ready attempts if there is room. Called from other threads."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._schedule_start)

    def stop_starting(self) -> None:
        """Start no more attempts."""
        self._closing = True

    def close(self) -> None:
        """Cancel all coroutines, and wait a limited time for the loop to end."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            with suppress(RuntimeError):  # the loop has ended with its last task
                loop.call_soon_threadsafe(self._cancel_all)
            thread.join(MAX_CLOSE_SECONDS)  # if a handler blocks the loop, the daemon thread ends with the process

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run_loop, args=(loop,), name="holdfast-loop", daemon=True)
            self._thread.start()
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            self._tell_abandoned(loop)
        finally:
            loop.close()

    def _tell_abandoned(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log which coroutines are left, in place of asyncio's 'Task was destroyed but it is pending' for each."""
        if self._tasks:
            log.warning(
                "%d cancelled %s did not end within %g s and will not: the jobs run again",
                len(self._tasks),
                "coroutine" if len(self._tasks) == 1 else "coroutines",
                MAX_CLEANUP_SECONDS,
            )
            loop.set_exception_handler(lambda *_: None)

    def _schedule_start(self) -> None:
        assert self._loop is not None
        if not self._start_scheduled:
            self._start_scheduled = True
            self._loop.call_soon(self._start_ready)

    def _start_ready(self) -> None:
        self._start_scheduled = False
        assert self._loop is not None
        if self._can_start():
            task = self._loop.create_task(self._run_ready())
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _can_start(self) -> bool:
        return bool(self.ready) and self._has_room() and not self._closing

    async def _run_ready(self) -> None:
        task, until = asyncio.current_task(), monotonic_ns() + MAX_TURN_NS
        assert task is not None
        # A handler may have cancelled the task that it runs in: the next one must not notice.
        while self._can_start() and monotonic_ns() < until and not task.cancelling():
            try:
                attempt = self.ready.popleft()
            except IndexError:  # housekeeping gave it back
                break
            self._dispatcher.start(attempt)
            attempt.stop = partial(self._cancel_soon, attempt)
            # In a copy of the context: a ContextVar that one handler sets must not leak into the next.
            coroutine, context = self._run(attempt), copy_context()
            try:
                awaited = context.run(coroutine.send, None)
            except StopIteration:
                continue
            self._suspended[attempt] = task
            if self.ready:
                self._schedule_start()
            try:
                await _Resumed(coroutine, context, awaited)
            finally:
                del self._suspended[attempt]
            break

    async def _run(self, attempt: Attempt) -> None:
        try:
            self._dispatcher.finish(attempt, await self._executor.run_async(attempt))
        except Exception as error:  # noqa: BLE001  `run_async` should not raise; if it does, only this attempt fails
            self._dispatcher.finish_with_error(attempt, error)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._cancelled.discard(task)
        if self._closing and not self._tasks:
            task.get_loop().stop()
        if self.ready:
            self._schedule_start()
        if not self._settle_scheduled:
            self._settle_scheduled = True
            task.get_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Settle the attempts that finished in this iteration of the loop."""
        self._settle_scheduled = False
        if self.ready:  # more attempts will finish soon: settle them together, but within a time limit
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(MAX_UNSETTLED_SECONDS, self._on_timer)
        elif self._tasks:
            self._request_settle()
        else:
            dispatcher = self._dispatcher
            while dispatcher.unsettled and dispatcher.settle_and_claim(self) is not None and not self.ready:
                pass
            if dispatcher.unsettled:  # another thread is settling, or the store failed
                self._request_settle()

    def _on_timer(self) -> None:
        self._timer = None
        if self._dispatcher.unsettled:
            self._request_settle()

    def _cancel_soon(self, attempt: Attempt) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so the coroutine has ended
            self._loop.call_soon_threadsafe(self._cancel, attempt)

    def _cancel(self, attempt: Attempt) -> None:
        task = self._suspended.get(attempt)
        if task is not None and not task.done():
            self._cancelled.add(task)
            task.cancel()

    def _cancel_all(self) -> None:
        assert self._loop is not None
        if not self._tasks:
            self._loop.stop()
            return
        for task in self._tasks - self._cancelled:  # a second cancel would interrupt the cleanup
            task.cancel()
        self._loop.call_later(MAX_CLEANUP_SECONDS, self._loop.stop)


class _Resumed:
    """The rest of a coroutine that has begun in this context, and that has awaited something."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], context: Context, awaited: Any) -> None:
        self._coroutine, self._context, self._awaited = coroutine, context, awaited

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                value = yield self._awaited
            except BaseException as error:  # noqa: BLE001  a cancellation, or what the awaited future raised
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                self._awaited = self._context.run(step)
            except StopIteration:
                return
