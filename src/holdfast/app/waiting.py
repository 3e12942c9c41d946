"""Wait for a condition in the database, and do in a coroutine what the database does in a thread.

`asyncio` is imported where it is used, since it takes time to import.
"""

import functools
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from .. import validate
from ..clock import SECOND
from ..errors import InvalidInput, TransactionError, WaitTimeout
from ..store.protocol import Store
from ..store.wake_up import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from .app import App


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Wait:
    """One wait for something in the database, by a thread (`run`) or a coroutine (`run_async`)."""

    def __init__(self, store: Store, subject: Subject, seconds: float, limit: int = 1) -> None:
        """limit: how many messages of a queue are wanted."""
        self._store, self._waiter = store, store.waiters.waiter(subject, limit)
        self._deadline = time.monotonic() + seconds
        self._seen = 0

    def run(self, look: Callable[[], T]) -> T:
        """Call `look` until it returns something true, or the time is over. Return what it returned last."""
        with self._closing():
            while not ((found := self._look(look)) or self._left() <= 0):
                self._waiter.wait(self._seen, self._left())
            return found

    async def run_async(self, look: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Do the same in a coroutine. undo: called with what was found if the coroutine was cancelled meanwhile."""
        with self._closing():
            while not ((found := await finish_in_thread(lambda: self._look(look), undo)) or self._left() <= 0):
                await self._waiter.wait_async(self._seen, self._left())
            return found

    def _look(self, look: Callable[[], T]) -> T:
        self._seen = self._store.commits_seen()
        return look()

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    @contextmanager
    def _closing(self) -> "Iterator[None]":
        has_looked = False
        try:
            yield
            has_looked = True
        finally:
            self._waiter.close(has_looked)


class WaitForEnd:
    """A wait until a job, chain or batch has ended."""

    def __init__(
        self,
        store: Store,
        subject: Subject,
        has_ended: Callable[[], bool],
        timeout: float | None,
        describe: Callable[[], str],
    ) -> None:
        """has_ended: reads it. describe: what is still unfinished, for WaitTimeout."""
        seconds = float("inf") if timeout is None else validate.duration(timeout, "timeout") / SECOND
        self._wait, self._has_ended = Wait(store, subject, seconds), has_ended
        self._timeout, self._describe = timeout, describe

    def run(self) -> None:
        """Raises WaitTimeout after the timeout."""
        self._require(self._wait.run(self._has_ended))

    async def run_async(self) -> None:
        self._require(await self._wait.run_async(self._has_ended))

    def _require(self, ended: bool) -> None:
        if not ended:
            raise WaitTimeout(f"after {self._timeout} seconds, {self._describe()}")


async def finish_in_thread(
    call: Callable[[], T], undo: Callable[[T], object] | None = None, own_thread: bool = False
) -> T:
    """Run the call in a thread. A cancelled caller still waits for it, since a commit cannot be interrupted.

    undo: called in a thread of its own with the result if the caller was cancelled, which never sees it.
    own_thread: not one of the event loop's, all of which may wait for what this call ends.
    """
    import asyncio

    # A future and not a task: asyncio.run cancels all tasks at its end.
    loop, context = asyncio.get_running_loop(), copy_context()
    running = asyncio.wrap_future(_start(call)) if own_thread else loop.run_in_executor(None, context.run, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # it may be cancelled more than once
                await asyncio.wait([running])
        if running.exception() is None and undo is not None and (result := running.result()):
            with suppress(asyncio.CancelledError):
                await finish_in_thread(lambda: undo(result), own_thread=True)
        raise


def _start(call: Callable[[], T]) -> "Future[T]":
    """Run the call in a new thread."""
    from concurrent.futures import Future
    from threading import Thread

    future, context = Future[T](), copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  raised where it is awaited
            future.set_exception(error)

    Thread(target=run, name="holdfast-commit").start()
    return future


class _OfApp(Protocol):
    @property
    def _app(self) -> "App": ...


S = TypeVar("S", bound=_OfApp)


def in_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the method for coroutines: `aget = in_thread(get)`. It does not block the event loop."""

    name = method.__name__

    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if "conn" in kwargs:
            raise InvalidInput(f"a{name} runs in another thread, where conn cannot be used: call {name} instead")
        self._app.store.require_no_transaction()
        return await finish_in_thread(lambda: method(self, *args, **kwargs))

    functools.update_wrapper(call, method, ("__module__",))
    call.__name__, call.__qualname__ = f"a{name}", f"{method.__qualname__[: -len(name)]}a{name}"
    call.__doc__ = f"Do the same as `{name}` in a coroutine. If that is cancelled, it first waits for the commit."
    return call


class TransactionInCoroutine(Generic[T]):
    """`async with`: begins and ends a transaction in threads, so that the event loop is not blocked meanwhile.

    The block itself must not await: it holds the write lock. While it is open, plain writes of other coroutines of
    the loop are refused; methods such as `aenqueue` wait for it.
    """

    def __init__(self, store: Store, transaction: AbstractContextManager[T]) -> None:
        self._store, self._transaction = store, transaction
        self._loop_ran: list[bool] = []

    async def __aenter__(self) -> T:
        import asyncio

        with self._store.require_no_transaction() as self._owner:
            entered = await finish_in_thread(
                self._transaction.__enter__, lambda _: self._leave(asyncio.CancelledError())
            )
        self._handle = asyncio.get_running_loop().call_soon(self._loop_ran.append, True)
        return entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._handle.cancel()
        if error is None and self._loop_ran:
            error = TransactionError(
                "a coroutine must not await inside ctx.acomplete(), which holds the write lock: await before it"
            )
        self._owner.leave()
        # In a thread of its own: all threads of the loop may be waiting for the end of this transaction.
        handled = await finish_in_thread(lambda: self._leave(error), own_thread=True)
        if kind is None and error is not None:
            raise error
        return handled

    def _leave(self, error: BaseException | None) -> bool:
        if error is None:
            return bool(self._transaction.__exit__(None, None, None))
        return bool(self._transaction.__exit__(type(error), error, error.__traceback__))
