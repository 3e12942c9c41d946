"""Transactions of the caller: on a connection passed as `conn=`, or opened by `app.transaction()`."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import pq

from ...errors import InvalidInput, TransactionError, UsedAfterFork
from ..transactions import CallerConnection, origin
from .connection import in_transaction
from .dialect import AsyncDriver, AwaitingHandle, Driver, Handle

T = TypeVar("T")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_ENDS_TRANSACTION = re.compile(
    r"(?:^|;)\s*(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|ROLLBACK(?!\s+(WORK\s+|TRANSACTION\s+)?TO\b)"
    r"|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE,
)


class LentDriver(psycopg.Connection[Any]):
    """The connection of `app.transaction()`. What would end the transaction raises TransactionError."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = _GuardedCursor

    is_lent = False  # a block of the caller is open
    refused: str | None = None  # the call that was to undo the transaction
    incarnation: int | None = None  # of the server, when the connection was opened
    pid, begun = 0, 0  # the process of its session, and when it began
    event_bound, bound_at = 0, 0.0  # the first id of an event that it writes, and when that was asked

    def commit(self) -> None:
        if self.is_lent:
            _refuse("commit() is")
        super().commit()

    def rollback(self) -> None:
        if self.is_lent:
            self.refused = "rollback()"
            _refuse("rollback() is")
        super().rollback()

    def close(self) -> None:
        if self.is_lent and not self.broken:
            self.refused = "close()"
            _refuse("close() is")
        super().close()


class _GuardedCursor(psycopg.Cursor[Any]):
    """A cursor of the caller inside `app.transaction()`."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        if getattr(self.connection, "is_lent", False):
            refuse_end(query, self.connection)
        return super().execute(query, params, **options)


def refuse_end(query: Any, driver: Driver) -> None:
    """Raise if the statement would end the transaction."""
    text = (
        query if isinstance(query, str) else query.decode() if isinstance(query, bytes) else query.as_string(driver)
    )
    if _ENDS_TRANSACTION.search(_COMMENT.sub(" ", text)):
        _refuse("BEGIN, COMMIT and ROLLBACK are")


def _refuse(what: str) -> NoReturn:
    raise TransactionError(
        f"{what} not allowed inside app.transaction(): it commits when the block ends, and rolls back if the block "
        "raises. To use a session of your own, pass it: ctx.complete(conn=session)"
    )


class PostgresTransaction:
    """An open transaction on the database: run your own statements in it, and pass it as `conn=`."""

    def __init__(self, caller: CallerConnection) -> None:
        self._caller: CallerConnection | None = caller
        self._pid = os.getpid()

    @property
    def connection(self) -> Driver:
        """The connection itself, for other libraries."""
        return self._own()

    def execute(self, statement: Any, values: Any = None) -> Any:
        return self._own().execute(statement, values)

    def executemany(self, statement: Any, values: Iterable[Any]) -> Any:
        cursor = self._own().cursor()
        cursor.executemany(statement, values)
        return cursor

    def _own(self) -> Driver:
        driver: Driver = self._open_caller().driver()
        return driver

    def _open_caller(self) -> CallerConnection:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction belongs to process {self._pid} and was used in its forked child {os.getpid()}: "
                "open one in the child with app.transaction()"
            )
        if self._caller is None or not in_transaction(self._caller.driver()):
            raise TransactionError("this transaction has ended: open another with app.transaction()")
        return self._caller

    def _end(self) -> None:
        self._caller = None


class CompletingPostgresTransaction(PostgresTransaction):
    """The transaction of `ctx.complete()`: its writes and the success of the job commit together."""

    result: Any = None
    """The result of the job, or `Then(…)` to continue its chain."""


def require_handle(caller: CallerConnection) -> Handle | AwaitingHandle:
    """Return a handle on the caller's connection of psycopg, or say what to pass instead."""
    given = caller.driver()
    if isinstance(given, (psycopg.Connection, psycopg.AsyncConnection)) and given.closed:
        raise InvalidInput("the connection of conn= is closed: pass an open one")
    if isinstance(given, psycopg.Connection):
        return Handle(given, is_own=False)
    if isinstance(given, psycopg.AsyncConnection) and (wait := caller.wait()) is not None:
        return AwaitingHandle(given, wait)
    raise InvalidInput(
        "conn= must be a psycopg.Connection (psycopg 3), for aenqueue also an AsyncConnection, a session or "
        f"connection of SQLAlchemy or Django on it, or a transaction of app.transaction(), got {origin(given)}"
    )


def require_transaction(driver: Driver | AsyncDriver, how_to_begin: str) -> None:
    """Raise unless the connection is in a transaction, or begins one with its next statement."""
    status = driver.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise TransactionError("the transaction of conn= was aborted by an earlier error: roll it back first")
    if driver.autocommit and status == pq.TransactionStatus.IDLE:
        raise TransactionError(
            f"conn= has no open transaction, so the change would be committed at once: {how_to_begin}, or leave out "
            "conn="
        )


def in_savepoint(handle: Handle | AwaitingHandle, work: Callable[[Any], T]) -> T:
    """Run the work inside the caller's transaction, which survives an error."""
    handle.execute("SAVEPOINT holdfast")
    try:
        result = work(handle)
    except BaseException:
        if not handle.driver.closed and in_transaction(handle.driver):
            handle.execute("ROLLBACK TO SAVEPOINT holdfast")
            handle.execute("RELEASE SAVEPOINT holdfast")
        raise
    handle.execute("RELEASE SAVEPOINT holdfast")
    return result
