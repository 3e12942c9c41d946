"""Transactions in coroutines. Imported when one is used, since asyncio takes time to import."""

import asyncio
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from ..errors import TransactionError
from ..store.protocol import Store
from .waiting import finish_in_thread

T = TypeVar("T")


class TransactionInCoroutine(Generic[T]):
    """`async with`: begins and ends a transaction in threads, so that the event loop is not blocked meanwhile.

    The block itself must not await: it holds the write lock. While it is open, plain writes of other coroutines of
    the loop are refused; methods such as `aenqueue` wait for it.
    """

    def __init__(self, store: Store, transaction: AbstractContextManager[T]) -> None:
        self._store, self._transaction = store, transaction
        self._loop_ran: list[bool] = []

    async def __aenter__(self) -> T:
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
