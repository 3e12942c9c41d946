"""What `app.transaction()` gives."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from ...errors import TransactionError, UsedAfterFork
from .connection import READ_TEXT


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


class Completion(Transaction):
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


T = TypeVar("T", bound=Transaction)


@contextmanager
def handed_out(connection: sqlite3.Connection, kind: type[T]) -> Iterator[T]:
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
