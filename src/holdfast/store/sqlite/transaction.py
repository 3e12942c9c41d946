"""What `app.transaction()` gives."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import TransactionError, UsedAfterFork
from .connection import READ_TEXT


class Transaction:
    """An open write transaction on the database: run your own statements in it, and pass it as `conn=`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection
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
            return method(statement, values)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH:
                raise TransactionError(
                    "a transaction is not begun or ended inside app.transaction(): it commits when the block ends, "
                    "and rolls back if the block raises"
                ) from error
            raise

    def _end(self) -> None:
        """The block is over; the connection may serve another."""
        self._connection = None


@contextmanager
def handed_out(connection: sqlite3.Connection) -> Iterator[Transaction]:
    """The transaction that is open on the connection, for the user's statements, which must not end it."""
    transaction = Transaction(connection)
    connection.set_authorizer(_refuse_ending)
    try:
        yield transaction
    finally:
        if os.getpid() == transaction._pid:
            connection.set_authorizer(None)
            connection.row_factory, connection.text_factory = None, READ_TEXT
        transaction._end()


def _refuse_ending(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
