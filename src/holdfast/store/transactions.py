"""Transactions of callers: what `conn=` accepts, and which thread and coroutine have a transaction open.

Connections of the database driver, SQLAlchemy and Django are recognised by their attributes, so that neither package
is imported.
"""

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InvalidInput, TransactionError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
CO_COROUTINE = 128  # as in `inspect`, which is slow to import


class CallerConnection:
    """A connection of the caller: how to run work on it, and how to end its transaction."""

    how_to_begin = "execute BEGIN IMMEDIATE on it first"

    def __init__(self, given: Any) -> None:
        self._given = given

    def driver(self) -> Any:
        """Return the connection of the database driver."""
        return self._given

    def run(self, work: Callable[[Any], T]) -> T:
        """Run the work on the driver's connection, in the thread that may use it."""
        return work(self.driver())

    def wait(self) -> Callable[[Coroutine[Any, Any, Any]], Any] | None:
        """Return what waits for a coroutine of the driver, if its connection is asynchronous."""
        return None

    def begin(self) -> None:
        """Begin a transaction of the library that the connection is from, if it has its own, unless one is open."""

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Commit the transaction at the end of the block. Roll it back if the block or the commit raises."""
        try:
            yield
            self._given.commit()
        except BaseException:
            self._given.rollback()
            raise


class _SqlAlchemyConnection(CallerConnection):
    """A `Session` or a `Connection`."""

    how_to_begin = "begin one with its begin()"

    def driver(self) -> Any:
        return self._pooled().driver_connection

    def run(self, work: Callable[[Any], T]) -> T:
        adapted = self._pooled().dbapi_connection
        return run_async(adapted, work) if hasattr(adapted, "run_async") else work(self.driver())

    def wait(self) -> Callable[[Coroutine[Any, Any, Any]], Any] | None:
        adapted = self._pooled().dbapi_connection
        if not hasattr(adapted, "run_async"):
            return None
        return lambda coroutine: adapted.run_async(lambda _: coroutine)

    def begin(self) -> None:
        if not self._given.in_transaction():
            self._given.begin()

    def _pooled(self) -> Any:
        is_session = hasattr(self._given, "get_bind")
        return (self._given.connection() if is_session else self._given).connection


class _AdaptedConnection(CallerConnection):
    """What SQLAlchemy's event "connect" gives for an asynchronous engine."""

    def driver(self) -> Any:
        return self._given.driver_connection

    def run(self, work: Callable[[Any], T]) -> T:
        return run_async(self._given, work)


class ConnectionOfLoop(CallerConnection):
    """An asynchronous connection of a driver, used in another thread while a coroutine of its loop waits for that."""

    how_to_begin = "leave autocommit off"

    def __init__(self, given: Any, loop: "AbstractEventLoop") -> None:
        super().__init__(given)
        self._loop = loop

    @classmethod
    def here(cls, given: Any) -> "ConnectionOfLoop":
        """Return it for the event loop that runs now."""
        from asyncio import get_running_loop

        return cls(given, get_running_loop())

    @contextmanager
    def ending(self) -> Iterator[None]:
        wait = self.wait()
        try:
            yield
            wait(self._given.commit())
        except BaseException:
            wait(self._given.rollback())
            raise

    def wait(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        from asyncio import run_coroutine_threadsafe

        return lambda coroutine: run_coroutine_threadsafe(coroutine, self._loop).result()


def is_asynchronous(given: Any) -> bool:
    """Return whether this is a connection of an asynchronous driver, such as psycopg.AsyncConnection."""
    rollback = getattr(type(given), "rollback", None)
    if rollback is None or hasattr(given, "run_sync"):
        return False
    return bool(getattr(getattr(rollback, "__code__", None), "co_flags", 0) & CO_COROUTINE)


def run_async(adapted: Any, work: Callable[[Any], T]) -> T:
    """Run the work in the thread of an aiosqlite connection, and let the event loop go on meanwhile."""

    async def in_its_thread(connection: Any) -> T:
        done: T = await connection._execute(lambda: work(connection._conn))
        return done

    result: T = adapted.run_async(in_its_thread)
    return result


class _DjangoConnection(CallerConnection):
    """`django.db.connection`, or one of `django.db.connections`."""

    how_to_begin = "put the call into a block of django.db.transaction.atomic()"

    def driver(self) -> Any:
        self._given.ensure_connection()
        return self._given.connection

    @contextmanager
    def ending(self) -> Iterator[None]:
        from django.db.transaction import atomic

        block = atomic(using=self._given.alias, durable=True)
        try:
            block.__enter__()
        except RuntimeError as error:
            raise TransactionError(
                "conn= is in a block of atomic(), which could still roll the job back: leave that block first"
            ) from error
        try:
            yield
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        block.__exit__(None, None, None)


def caller_connection(given: Any) -> CallerConnection:
    """Return the connection that the caller has passed as `conn=`."""
    if isinstance(given, CallerConnection):
        return given
    if hasattr(given, "run_sync") or is_asynchronous(given):
        raise InvalidInput(
            f"conn= is asynchronous, a {type(given).__qualname__}: await task.using(conn=…).aenqueue(…)"
            + (", or pass the session that its run_sync() gives to a function" if hasattr(given, "run_sync") else "")
        )
    if hasattr(given, "ensure_connection"):
        return _DjangoConnection(given)
    if hasattr(given, "get_bind") or hasattr(given, "exec_driver_sql"):
        return _SqlAlchemyConnection(given)
    if hasattr(given, "run_async"):
        return _AdaptedConnection(given)
    driver = getattr(given, "driver_connection", given)  # of a connection of SQLAlchemy's pool
    if not hasattr(driver, "rollback"):
        raise not_a_connection(given)
    return CallerConnection(driver)


def not_a_connection(given: Any) -> InvalidInput:
    return InvalidInput(
        "conn= must be a sqlite3.Connection, or for PostgreSQL a psycopg.Connection (psycopg 3), a session or "
        f"connection of SQLAlchemy or Django on it, or a transaction of app.transaction(), got {origin(given)}"
    )


def origin(given: Any) -> str:
    """Return what a value is, and for a connection of another package, which."""
    module, name = type(given).__module__.partition(".")[0], type(given).__qualname__
    is_known = module in ("psycopg2", "asyncpg") or (module, name) == ("sqlite3", "Connection")
    return f"a connection of {module}" if is_known else name


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
