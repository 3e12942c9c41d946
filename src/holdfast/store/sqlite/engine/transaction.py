"""Transactions of the caller: on a connection passed as `conn=`, or opened by `app.transaction()`."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from ....errors import ForeignConnection, TransactionError, UsedAfterFork
from ...transactions import CallerConnection, caller_connection, not_a_connection
from .connection import MAX_WAL_BYTES, READ_TEXT, ObservedConnection, ObservedCursor
from .errors import BusyRetry, translate

T = TypeVar("T")


def run_in_caller_transaction(
    connection: sqlite3.Connection, path: Path, busy_retry: BusyRetry, work: Callable[[sqlite3.Connection], T]
) -> T:
    """Run the work inside the caller's transaction, in a savepoint, so that the transaction survives an error."""
    try:
        with plain_rows(connection):
            return busy_retry.run(lambda: in_savepoint(connection, work))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def guard(connection: sqlite3.Connection) -> None:
    """Turn off automatic checkpoints, which could lose commits: see checkpoint.py."""
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")


def in_savepoint(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
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
def plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """Turn off the row and text factories of the caller's connection: the store needs plain tuples."""
    rows, text = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = rows, text


def require_connection(connection: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise not_a_connection(connection)


def require_same_file(connection: sqlite3.Connection, path: Path) -> None:
    main = main_file(connection)
    if not main or not is_same_file(main, path):
        raise ForeignConnection(
            f"conn= must be a connection to {path}, got one to {main or 'a database in memory'}: "
            "pass a connection to the same file. In a test, put the app on your connection with "
            "holdfast.testing.on_connection"
        )


def main_file(connection: sqlite3.Connection) -> str:
    """Return the file of the connection, or "" for a database in memory."""
    cursor = sqlite3.Connection.cursor(connection)
    cursor.row_factory = None
    files = cursor.execute("PRAGMA database_list").fetchall()
    return next((os.fsdecode(file) for _, name, file in files if name in ("main", b"main")), "")


def is_same_file(first: str, second: Path) -> bool:
    if first == os.fspath(second):
        return True
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def require_transaction(connection: sqlite3.Connection, busy_retry: BusyRetry, how_to_begin: str) -> None:
    """Begin a transaction if none is open, unless the connection commits each statement."""
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
        raise TransactionError(
            f"conn= has no open transaction, so the change would be committed at once: {how_to_begin}, or leave out "
            "conn="
        )
    # The sqlite3 module begins a deferred transaction here, whose upgrade to a write lock can fail.
    begin(connection, busy_retry)


def begin(connection: sqlite3.Connection, busy_retry: BusyRetry) -> None:
    """Begin a write transaction, unless one is open."""
    if connection.in_transaction:
        return
    with plain_rows(connection):
        (timeout,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")  # busy_retry waits, and finds out if waiting is useless
    try:
        busy_retry.run(lambda: connection.execute("BEGIN IMMEDIATE"))
    finally:
        connection.execute(f"PRAGMA busy_timeout = {timeout}")


# --- app.transaction() ---

FORBIDDEN_ACTIONS = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}
TEMPORARY_ACTIONS = {
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_CREATE_VTABLE,
}


class LentConnection(ObservedConnection):
    """The connection of `app.transaction()`. Whatever the caller does to it ends with the block.

    What would end the transaction raises TransactionError. If the caller could have changed anything else, such as a
    function or a pragma, the engine closes the connection after the block instead of using it again.
    """

    is_lent = False  # a block of the caller is open
    was_changed = False  # it may differ from a new connection
    _refused: str | None = None  # the call that was to undo the transaction

    # The authorizer is asked when a statement is prepared, and the sqlite3 module keeps prepared statements by their
    # text. So these must differ from what a caller writes.
    BEGIN, COMMIT, ROLLBACK = (f"{action} -- by Holdfast" for action in ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_authorizer(self._authorize)  # once: setting it makes SQLite prepare all statements again

    def lend(self) -> None:
        self._open_cursors: WeakSet[Any] = WeakSet()
        self.is_lent = True

    def take_back(self) -> None:
        """Undo what could disturb the commit. An unread row would keep an old snapshot open, a write lock stay."""
        self.is_lent = False
        for one in list(self._open_cursors):
            one.close()
        self.row_factory, self.text_factory = None, READ_TEXT
        if self.was_changed:
            self.set_progress_handler(None, 0)
            self.set_trace_callback(None)
            self.execute("PRAGMA wal_autocheckpoint = 0")

    def require_intact(self) -> None:
        if self._refused is not None:
            raise TransactionError(
                f"{self._refused} was called on the connection of app.transaction(), so nothing was stored: let the "
                "block raise to roll it back. To use a session of your own, pass it: ctx.complete(conn=session)"
            )

    def _authorize(self, action: int, _: str | None, value: str | None, *__: str | None) -> int:
        if not self.is_lent:
            return sqlite3.SQLITE_OK
        if action in FORBIDDEN_ACTIONS:
            return sqlite3.SQLITE_DENY
        if action in TEMPORARY_ACTIONS or (action == sqlite3.SQLITE_PRAGMA and value is not None):
            self.was_changed = True
        return sqlite3.SQLITE_OK

    # --- what the caller may call ---

    def cursor(self, factory: Any = None) -> Any:
        default = ObservedCursor if hasattr(self, "observer") else _LentCursor
        cursor = super().cursor(default if factory is None else factory)
        if self.is_lent:
            self._open_cursors.add(cursor)
        return cursor

    def execute(self, *arguments: Any) -> Any:
        cursor = self.cursor()
        return self._run(cursor, cursor.execute, arguments)

    def executemany(self, *arguments: Any) -> Any:
        cursor = self.cursor()
        return self._run(cursor, cursor.executemany, arguments)

    def executescript(self, *arguments: Any) -> Any:
        cursor = self.cursor()
        return self._run(cursor, cursor.executescript, arguments)

    def blobopen(self, *arguments: Any, **options: Any) -> Any:
        blob = super().blobopen(*arguments, **options)
        if self.is_lent:
            self._open_cursors.add(blob)
        return blob

    def _run(self, cursor: Any, method: Callable[..., Any], arguments: Any) -> Any:
        try:
            return method(*arguments)
        except sqlite3.DatabaseError as error:
            cursor.close()  # the traceback keeps it, and a statement keeps a closed connection open
            if self.is_lent and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH:
                _refuse("BEGIN, COMMIT, ROLLBACK, ATTACH and DETACH are", error)
            raise

    def set_authorizer(self, *arguments: Any, **options: Any) -> None:
        if self.is_lent:
            _refuse("set_authorizer() is")
        super().set_authorizer(*arguments, **options)

    def commit(self) -> None:
        if self.is_lent:
            _refuse("commit() is")
        super().commit()

    def rollback(self) -> None:
        if self.is_lent:
            self._refused = "rollback()"
            _refuse("rollback() is")
        super().rollback()

    def close(self) -> None:
        if self.is_lent:
            self._refused = "close()"
            _refuse("close() is")
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any:
        if not self.is_lent:
            return super().__exit__(kind, error, trace)
        if error is None:
            _refuse("commit() is")
        self._refused = "rollback()"
        return False


class _LentCursor(sqlite3.Cursor):
    @property
    def connection(self) -> sqlite3.Connection:
        found: LentConnection = super().connection  # type: ignore[assignment]
        found.was_changed = True
        return found


def _refuse(what: str, cause: Exception | None = None) -> NoReturn:
    raise TransactionError(
        f"{what} not allowed inside app.transaction(): it commits when the block ends, and rolls back if the block "
        "raises. To use a session of your own, pass it: ctx.complete(conn=session)"
    ) from cause


class Transaction:
    """An open write transaction on the database: run your own statements in it, and pass it as `conn=`."""

    def __init__(self, caller: CallerConnection) -> None:
        self._caller: CallerConnection | None = caller
        self._pid = os.getpid()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection itself, for other libraries. Whatever you do to it ends with the block."""
        connection = self._own()
        if isinstance(connection, LentConnection):
            connection.was_changed = True
        return connection

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self._own().execute(statement, values)

    def executemany(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        return self._own().executemany(statement, values)

    def _own(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = self._open_caller().driver()
        return connection

    def _open_caller(self) -> CallerConnection:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction belongs to process {self._pid} and was used in its forked child {os.getpid()}: "
                "open one in the child with app.transaction()"
            )
        if self._caller is None or not self._caller.driver().in_transaction:
            raise TransactionError("this transaction has ended: open another with app.transaction()")
        return self._caller

    def _end(self) -> None:
        self._caller = None


class CompletingTransaction(Transaction):
    """The transaction of `ctx.complete()`: its writes and the success of the job commit together."""

    result: Any = None
    """The result of the job, or `Then(…)` to continue its chain."""


def is_open(conn: Any) -> bool:
    """Return whether a value passed as `conn=` still has a transaction that can be used."""
    try:
        caller = conn._caller if isinstance(conn, Transaction) else caller_connection(conn)
        return caller is not None and bool(caller.driver().in_transaction)
    except Exception:  # noqa: BLE001  it is closed, or a session of SQLAlchemy that has to be rolled back first
        return False


K = TypeVar("K", bound=Transaction)


@contextmanager
def lend(connection: LentConnection, kind: type[K]) -> Iterator[K]:
    """Yield the open transaction for the caller's own statements, which must not end it."""
    transaction = kind(CallerConnection(connection))
    connection.lend()
    try:
        yield transaction
        connection.require_intact()
    finally:
        if os.getpid() == transaction._pid:
            connection.take_back()
        transaction._end()
