"""What `app.transaction()` gives."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from ....errors import ForeignConnection, InvalidInput, TransactionError, UsedAfterFork
from .checkpoint import LARGEST_LOG_BYTES
from .connection import READ_TEXT
from .errors import Patience, translate

T = TypeVar("T")


def take_part(
    connection: sqlite3.Connection,
    path: Path,
    patience: Patience,
    guard: bool,
    work: Callable[[sqlite3.Connection], T],
) -> T:
    """Run the work inside the user's transaction, in a savepoint, so that an error leaves theirs usable."""
    try:
        _require_same_file(connection, path)
        if guard:  # its own checkpoints could lose commits: see checkpoint.py
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA journal_size_limit = {LARGEST_LOG_BYTES}")
        _require_transaction(connection, patience)
        with _plain_rows(connection):
            return patience.run(lambda: _in_savepoint(connection, work))
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
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:  # no waiting would help
            raise TransactionError(
                "your transaction began with a read, and another connection has written since, so it cannot write "
                "any more: roll it back, and begin it with BEGIN IMMEDIATE"
            ) from error
        raise
    connection.execute("RELEASE holdfast")
    return result


@contextmanager
def _plain_rows(connection: sqlite3.Connection) -> Iterator[None]:
    """The user's connection may make dictionaries of rows; the store's own statements count columns."""
    rows, text = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = rows, text


def _require_same_file(connection: sqlite3.Connection, path: Path) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidInput(
            f"conn= takes a sqlite3.Connection or what app.transaction() gives, not {type(connection).__qualname__}"
        )
    with _plain_rows(connection):
        files = connection.execute("PRAGMA database_list").fetchall()
    main = next((file for _, name, file in files if name == "main"), "")
    if not main or not _is_same_file(main, path):
        raise ForeignConnection(
            f"conn= is a connection to {main or 'a database in memory'}, and this Holdfast is on {path}: "
            "pass a connection to the same file"
        )


def _is_same_file(first: str, second: Path) -> bool:
    if first == os.fspath(second):
        return True
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def _require_transaction(connection: sqlite3.Connection, patience: Patience) -> None:
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
        raise TransactionError(
            "conn= has no open transaction, so this would be committed at once: execute BEGIN IMMEDIATE on it "
            "first, or leave conn= out"
        )
    # As the sqlite3 module itself does before the first change, but without the upgrade that can fail.
    patience.run(lambda: connection.execute("BEGIN IMMEDIATE"))


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
                    "a transaction is not begun or ended inside app.transaction(): it commits when the block ends, "
                    "and rolls back if the block raises. Nor is another database attached: SQLite would not commit "
                    "both together"
                ) from error
            raise

    def _end(self) -> None:
        """The block is over; the connection may serve another. A cursor with rows left would keep it in the past."""
        if os.getpid() == self._pid:
            for cursor in list(self._cursors):
                cursor.close()
        self._connection = None


class CompletingTransaction(Transaction):
    """The transaction of `ctx.complete()`: with what is done in it, the job succeeds, or neither happens."""

    result: Any = None
    """What the job is to have as its result, or `Then(…)` to go on with."""


def is_open(conn: Any) -> bool:
    """Whether what was passed as `conn=` has a transaction open still."""
    connection = conn._connection if isinstance(conn, Transaction) else conn
    try:
        return connection is not None and bool(connection.in_transaction)
    except sqlite3.ProgrammingError:  # it is closed
        return False


OwnTransaction = TypeVar("OwnTransaction", bound=Transaction)


@contextmanager
def handed_out(connection: sqlite3.Connection, kind: type[OwnTransaction]) -> Iterator[OwnTransaction]:
    """The transaction that is open on the connection, for the user's statements, which must not end it."""
    transaction = kind(connection)
    connection.set_authorizer(_refuse)
    try:
        yield transaction
    finally:
        if os.getpid() == transaction._pid:
            connection.set_authorizer(None)
            connection.row_factory, connection.text_factory = None, READ_TEXT
        transaction._end()


REFUSED = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}


def _refuse(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action in REFUSED else sqlite3.SQLITE_OK
