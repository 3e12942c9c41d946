"""What `conn=` accepts: a connection of the database driver, or one of SQLAlchemy's or Django's.

These are recognised by their attributes, so that neither package is imported.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import InvalidInput, TransactionError

T = TypeVar("T")


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
                "conn= is in a block of atomic(), whose end would decide about the job: leave that block first"
            ) from error
        try:
            yield
        except BaseException as error:
            block.__exit__(type(error), error, error.__traceback__)
            raise
        block.__exit__(None, None, None)


def caller_connection(given: Any) -> CallerConnection:
    """Return the connection that the caller has passed as `conn=`."""
    if hasattr(given, "run_sync"):
        raise InvalidInput(
            f"conn= is asynchronous, a {type(given).__qualname__}: await task.using(conn=…).aenqueue(…), or pass the "
            "session that its run_sync() gives to a function"
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
        "conn= must be a sqlite3.Connection, a session or connection of SQLAlchemy or Django, or a transaction of "
        f"app.transaction(), got {type(given).__qualname__}"
    )
