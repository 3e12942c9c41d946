"""Who has a transaction open: a thread, and the coroutine that runs in it."""

import sys
from contextvars import ContextVar
from threading import get_ident

from ..errors import TransactionError


class Owner:
    """The owner of a transaction: the calling thread, and the asyncio task that runs in it.

    Inside `with`, it also owns what another thread opens in a copy of this context.
    """

    def __init__(self) -> None:
        self.thread, self.task = get_ident(), _current_task()

    @staticmethod
    def of_caller() -> "Owner":
        """Return the owner of a transaction that is opened here."""
        return _caller.get() or Owner()

    def __enter__(self) -> "Owner":
        self._token = _caller.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _caller.reset(self._token)

    def leave(self) -> None:
        """Let the thread that ends the transaction own it: others can wait for that."""
        self.thread = 0

    def is_caller(self) -> bool:
        """Return whether the caller is the owner itself, and not another coroutine of its thread."""
        return self.thread == get_ident() and _current_task() is self.task


_caller: ContextVar[Owner | None] = ContextVar("holdfast_caller", default=None)


def would_wait_for_itself() -> TransactionError:
    return TransactionError(
        "this thread has an open app.transaction(), and this call would wait for its end: pass conn=tx to take part "
        "in it, or call it after the block"
    )


def another_coroutine_has_one() -> TransactionError:
    return TransactionError(
        "another coroutine of this event loop has a transaction open, so nothing can be written here: use "
        "methods for coroutines, such as aenqueue, which wait for it; and do not await in app.transaction()"
    )


def _current_task() -> object:
    """Return the asyncio task that runs in this thread, if any."""
    asyncio = sys.modules.get("asyncio")  # not imported here: a program without it need not load it
    if asyncio is None or asyncio._get_running_loop() is None:
        return None
    found: object = asyncio.current_task()
    return found
