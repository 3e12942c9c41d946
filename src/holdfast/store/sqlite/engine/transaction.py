"""Transactions of the caller: on a connection passed as `conn=`, or opened by `app.transaction()`."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from ....errors import ForeignConnection, InvalidInput, TransactionError, UsedAfterFork
from .checkpoint import MAX_WAL_BYTES
from .connection import READ_TEXT
from .errors import BusyRetry, translate

T = TypeVar("T")


def run_in_caller_transaction(
    connection: sqlite3.Connection,
    path: Path,
    busy_retry: BusyRetry,
    guard: bool,
    work: Callable[[sqlite3.Connection], T],
) -> T:
    """Run the work inside the caller's transaction, in a savepoint, so that the transaction survives an error.

    guard: turn off automatic checkpoints on the connection.
    """
    try:
        _require_same_file(connection, path)
        if guard:  # automatic checkpoints could lose commits: see checkpoint.py
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        _require_transaction(connection, busy_retry)
        with _plain_rows(connection):
            return busy_retry.run(lambda: _in_savepoint(connection, work))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _in_savepoint(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("SAVEPOINT holdfast")
    try:
        result = work(connection)
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO holdfast")
            connection.execute("RELEASE holdfast")
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:  # waiting would not help
            raise TransactionError(
                "the transaction of conn= began with a read, and another connection has written since, so it cannot "
                "write: roll it back, and begin it with BEGIN IMMEDIATE"
            ) from error
        raise
    connection.execute("RELEASE holdfast")
    return result


@contextmanager
def _plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn off the row and text factories of the caller's connection: the store needs plain tuples."""
    rows, text = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = rows, text


def _require_same_file(connection: sqlite3.Connection, path: Path) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidInput(
            "conn= must be a sqlite3.Connection or a transaction of app.transaction(), "
            f"got {type(connection).__qualname__}"
        )
    with _plain_rows(connection):
        files = connection.execute("PRAGMA database_list").fetchall()
    main = next((file for _, name, file in files if name == "main"), "")
    if not main or not _is_same_file(main, path):
        raise ForeignConnection(
            f"conn= must be a connection to {path}, got one to {main or 'a database in memory'}: "
            "pass a connection to the same file"
        )


def _is_same_file(first: str, second: Path) -> bool:
    if first == os.fspath(second):
        return True
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def _require_transaction(connection: sqlite3.Connection, busy_retry: BusyRetry) -> None:
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
        raise TransactionError(
            "conn= has no open transaction, so the change would be committed at once: execute BEGIN IMMEDIATE on it "
            "first, or leave out conn="
        )
    # The sqlite3 module begins a deferred transaction here, whose upgrade to a write lock can fail.
    busy_retry.run(lambda: connection.execute("BEGIN IMMEDIATE"))


class Transaction:
    """An open write transaction on the database: run your own statements in it, and pass it as `conn=`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self._pid = os.getpid()

    @property
    def connection(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction belongs to process {self._pid} and was used in its forked child {os.getpid()}: "
                "open one in the child with app.transaction()"
            )
        if self._connection is None or not self._connection.in_transaction:
            raise TransactionError("this transaction has ended: open another with app.transaction()")
        return self._connection

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self._run(self.connection.execute, statement, values)

    def executemany(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        return self._run(self.connection.executemany, statement, values)

    def _run(self, method: Callable[[str, Any], sqlite3.Cursor], statement: str, values: Any) -> sqlite3.Cursor:
        try:
            cursor = method(statement, values)
            self._cursors.add(cursor)
            return cursor
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH:
                raise TransactionError(
                    "BEGIN, COMMIT, ROLLBACK, ATTACH and DETACH are not allowed inside app.transaction(): it commits "
                    "when the block ends, and rolls back if the block raises"
                ) from error
            raise

    def _end(self) -> None:
        """Close the cursors: one with unread rows would keep an old snapshot open on the connection."""
        if os.getpid() == self._pid:
            for cursor in list(self._cursors):
                cursor.close()
        self._connection = None


class CompletingTransaction(Transaction):
    """The transaction of `ctx.complete()`: its writes and the success of the job commit together."""

    result: Any = None
    """The result of the job, or `Then(…)` to continue its chain."""


def is_open(conn: Any) -> bool:
    """Return whether a value passed as `conn=` still has an open transaction."""
    connection = conn._connection if isinstance(conn, Transaction) else conn
    try:
        return connection is not None and bool(connection.in_transaction)
    except sqlite3.ProgrammingError:  # it is closed
        return False


K = TypeVar("K", bound=Transaction)


@contextmanager
def caller_transaction(connection: sqlite3.Connection, kind: type[K]) -> Iterator[K]:
    """Yield the open transaction for the caller's own statements, which must not end it."""
    transaction = kind(connection)
    connection.set_authorizer(_authorize)
    try:
        yield transaction
    finally:
        if os.getpid() == transaction._pid:
            connection.set_authorizer(None)
            connection.row_factory, connection.text_factory = None, READ_TEXT
        transaction._end()


FORBIDDEN_ACTIONS = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action in FORBIDDEN_ACTIONS else sqlite3.SQLITE_OK
