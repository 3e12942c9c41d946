"""Taking part in a transaction of the user's own connection: nothing of theirs is committed or rolled back."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ...errors import ForeignConnection, InvalidInput, TransactionError
from .checkpoint import LARGEST_LOG_BYTES
from .faults import translate
from .patience import Patience

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
