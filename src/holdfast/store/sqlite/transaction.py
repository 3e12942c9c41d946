"""What `app.transaction()` gives."""

import os
import sqlite3
from collections.abc import Iterable
from typing import Any

from ...errors import TransactionError, UsedAfterFork

_FORBIDDEN = ("begin", "commit", "end", "rollback")


class Transaction:
    """An open write transaction on the database: run your own statements in it, and pass it as `conn=`."""

    def __init__(self, connection: sqlite3.Connection, pid: int) -> None:
        self._connection, self._pid = connection, pid

    @property
    def connection(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction belongs to process {self._pid} and was used in its forked child {os.getpid()}: "
                "open one in the child with app.transaction()"
            )
        if not self._connection.in_transaction:
            raise TransactionError("this transaction has ended: open another with app.transaction()")
        return self._connection

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        _refuse_ending(statement)
        return self.connection.execute(statement, values)

    def executemany(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        _refuse_ending(statement)
        return self.connection.executemany(statement, values)


def _refuse_ending(statement: str) -> None:
    word = statement.lstrip().split(None, 1)[0].rstrip(";").lower() if statement.strip() else ""
    if word in _FORBIDDEN and "to" not in statement.lower().split():
        raise TransactionError(
            f"{word.upper()} inside app.transaction(): it commits when the block ends and rolls back if it raises"
        )
