"""Coroutines, on an event loop in a thread of its own."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from .attempt import Attempt
from .dispatcher import Dispatcher
from .executor import Executor

LONGEST_UNSETTLED_SECONDS = 0.005
LONGEST_TIDY_SECONDS = 1.0  # for what cancelled coroutines have to do before they end
LONGEST_CLOSE_SECONDS = 1.5


class EventLoop:
    """When nothing runs on its loop it settles and claims itself; otherwise another thread does."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        has_room: Callable[[], bool],
        call_for_settle_and_claim: Callable[[], None],
    ) -> None:
        self._dispatcher, self._executor = dispatcher, executor
        self._has_room, self._call_for_settle_and_claim = has_room, call_for_settle_and_claim
        self.ready: deque[Attempt] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._unstarted: set[Attempt] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled: set[asyncio.Task[None]] = set()
        self._will_begin = self._will_settle = self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stuck(self) -> int:
        """How many were cancelled and run on all the same."""
        return len(self._cancelled)

    def put(self, attempts: list[Attempt], from_inside: bool) -> None:
        self.ready.extend(attempts)
        if from_inside:
            self._begin_soon()
        else:
            with suppress(RuntimeError):  # the loop is closed: whoever closes gives back what is ready
                self._start().call_soon_threadsafe(self._begin_soon)

    def take_back(self, taken_before: int) -> list[Attempt]:
        """What could not start since a coroutine holds up the loop. None of these will be run here."""
        taken_back = []
        for attempt in self._unstarted.copy():
            with suppress(KeyError):  # it has started meanwhile
                if attempt.taken < taken_before:
                    self._unstarted.remove(attempt)
                    taken_back.append(attempt)
        return taken_back

    def nudge(self) -> None:
        """There may be room for what waits to begin."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._begin_soon)

    def stop_beginning(self) -> None:
        self._closing = True

    def close(self) -> None:
        """Cancel what still runs there, and end the loop when it is done, or at the latest with the process."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            with suppress(RuntimeError):  # it has ended with its last task
                loop.call_soon_threadsafe(self._cancel_all)
            thread.join(LONGEST_CLOSE_SECONDS)  # a handler may hold up the loop; it is a daemon, so it keeps nobody

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._live, args=(loop,), name="holdfast-loop", daemon=True)
            self._thread.start()
        return self._loop

    def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _begin_soon(self) -> None:
        assert self._loop is not None
        if not self._will_begin:
            self._will_begin = True
            self._loop.call_soon(self._begin_all)

    def _begin_all(self) -> None:
        self._will_begin = False
        loop = self._loop
        assert loop is not None
        while self.ready and self._has_room() and not self._closing:
            try:
                attempt = self.ready.popleft()
            except IndexError:  # it was given back
                break
            self._dispatcher.begin(attempt)
            self._unstarted.add(attempt)
            task = loop.create_task(self._run(attempt))
            attempt.stop = partial(self._cancel_soon, loop, task)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _run(self, attempt: Attempt) -> None:
        try:
            self._unstarted.remove(attempt)
        except KeyError:  # it was taken back
            return
        if self._closing or not self._dispatcher.may_start(attempt):
            self._dispatcher.return_begun(attempt)
            return
        self._dispatcher.finish(attempt, await self._executor.run_async(attempt))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._cancelled.discard(task)
        if self._closing and not self._tasks:
            task.get_loop().stop()
        if self.ready:
            self._begin_soon()
        if not self._will_settle:
            self._will_settle = True
            task.get_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Once per round of the loop, for all that ended in it."""
        self._will_settle = False
        if self.ready:  # there is more to come: settle it together, but do not wait for a long one
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LONGEST_UNSETTLED_SECONDS, self._settle_by_others)
        elif self._tasks:
            self._call_for_settle_and_claim()
        else:
            while self._dispatcher.done and self._dispatcher.settle_and_claim(self) is not None and not self.ready:
                pass
            if self._dispatcher.done:  # another thread settle_and_claims, or it is too early
                self._call_for_settle_and_claim()

    def _settle_by_others(self) -> None:
        self._timer = None
        if self._dispatcher.done:
            self._call_for_settle_and_claim()

    def _cancel_soon(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the task
            loop.call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        if not task.done():
            self._cancelled.add(task)
            task.cancel()

    def _cancel_all(self) -> None:
        assert self._loop is not None
        if not self._tasks:
            self._loop.stop()
            return
        for task in self._tasks - self._cancelled:  # a second time would disturb what the first has set going
            task.cancel()
        self._loop.call_later(LONGEST_TIDY_SECONDS, self._loop.stop)
