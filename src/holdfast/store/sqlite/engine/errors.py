"""Translate SQLite's errors into Holdfast's exceptions, and retry while SQLite reports BUSY."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from ....errors import (
    CannotOpen,
    CorruptDatabase,
    DamagedRow,
    DatabaseMoved,
    DiskFull,
    FileReplaced,
    FlushFailed,
    NotADatabase,
    ReadOnlyDatabase,
    StoreBusy,
    StoreError,
    TransactionError,
)
from ...database import MOVED

SELF_WAIT_SECONDS = 0.05  # other processes hold the lock for less, most often
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DISK_CODES = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_READONLY,
}
_VALUE_CODES = {sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_CONSTRAINT_NOTNULL}


def code_of(error: sqlite3.Error) -> int:
    """Return the primary result code, or 0 if the error was not raised by SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code_of(error) in _BUSY_CODES


# The sqlite3 module cannot decode a message that quotes a damaged schema, and raises UnicodeDecodeError instead.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def is_from_sqlite(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return False for a UnicodeDecodeError that code of the user has raised, in an iterable that is being stored."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    caller = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return isinstance(error, sqlite3.Error) or caller.startswith("holdfast.store.")


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Return whether the disk or the file is the cause, and not the statement."""
    return code_of(error) in _DISK_CODES


def is_failed_flush(error: BaseException | None) -> bool:
    """Return whether the disk could not flush the log or the database."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_FSYNC


def flush_failed(path: Path, reason: object) -> FlushFailed:
    return FlushFailed(
        f"the disk could not flush {path} ({reason}), so nothing that must be on disk is accepted until its log was "
        "written again: check the disk and the system log, and do it again, with the same key"
    )


def file_replaced(path: Path) -> FileReplaced:
    return FileReplaced(
        f"{path} or its -wal was deleted, moved or replaced while this process had it open, so this process does not "
        "use it any more: find out what did that, and start the program again"
    )


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """Return the exception to raise instead; its message says what to do."""
    if not is_from_sqlite(error):
        raise error
    if isinstance(error, UnicodeDecodeError):
        return _damaged(path, error.object.decode(errors="backslashreplace"))
    if is_failed_flush(error):
        return flush_failed(path, error)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED:
        return file_replaced(path)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER and str(error).startswith(MOVED):
        return DatabaseMoved(str(error).removeprefix(MOVED))
    code = code_of(error)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) and _is_disk_full(path):
        return DiskFull(f"the disk that holds {path} is full: free some space, then try again")
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(
            f"{path} cannot grow, although its disk has free space: look for a quota, for PRAGMA max_page_count, and "
            f"for a row with the largest possible id, {2**63 - 1}, after which there is none for a new row"
        )
    if code in _BUSY_CODES:
        return StoreBusy(
            f"another connection keeps {path} locked: find the program with a long write transaction on it. If it is "
            "this program, pass its connection as conn="
        )
    if code == sqlite3.SQLITE_CONSTRAINT and error.sqlite_errorcode in _VALUE_CODES:
        return DamagedRow(
            f"a constraint of {path} does not allow this change ({error}): the row may hold a value that was written "
            "with constraints switched off; run 'holdfast doctor'"
        )
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyDatabase(
            f"{path} cannot be written: check the permissions of the file, its folder and its mount"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{path} is not an SQLite database: choose another path, or move that file away")
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, error)
    if code == sqlite3.SQLITE_CANTOPEN:
        return CannotOpen(f"{path} cannot be opened ({error}): check the path and its permissions")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"reading or writing {path} failed ({error}): check the disk and the system log")
    return StoreError(f"SQLite reported an error on {path}: {error}")


def _damaged(path: Path, found: object) -> CorruptDatabase:
    return CorruptDatabase(
        f"{path} is damaged ({found}): stop writing to it, keep a copy with its -wal file, and restore a backup or "
        "use the sqlite3 shell's .recover"
    )


def _is_disk_full(path: Path) -> bool:
    try:
        usage = os.statvfs(path.parent)
    except OSError:
        return False
    return usage.f_bavail * usage.f_frsize < 1024 * 1024


T = TypeVar("T")


class BusyRetry:
    """Runs an action again after a random pause, while SQLite reports BUSY, until a timeout."""

    def __init__(
        self,
        random: Random,
        timeout: float,
        self_wait: Callable[[], TransactionError | None] = lambda: None,
        is_held_here: Callable[[], bool] = lambda: False,
    ) -> None:
        """self_wait: called less and less often during a wait; returns an error if this thread holds the lock itself.

        is_held_here: tells whether a connection of this process holds the lock, for the error message.
        """
        self._random, self.timeout, self.self_wait, self._is_held_here = random, timeout, self_wait, is_held_here

    def run(self, action: Callable[[], T], timeout: float | None = None) -> T:
        """Run the action until it succeeds. `timeout` overrides the default, in seconds."""
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return self._retry(action, self.timeout if timeout is None else timeout)

    def _retry(self, action: Callable[[], T], timeout: float) -> T:
        start = time.monotonic()
        next_check = SELF_WAIT_SECONDS
        while True:
            # SQLite's own busy handler sleeps longer each time, so the longest waiter starves. A short random pause
            # gives every waiter the same chance.
            time.sleep(self._random.uniform(0.0002, 0.003))
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                waited = time.monotonic() - start
                if waited > timeout:
                    raise self.busy(timeout) from error
                if waited > next_check:  # not only once: a short transaction of another thread may hide the answer
                    next_check = 2 * waited
                    if (problem := self.self_wait()) is not None:
                        raise problem from error

    def busy(self, timeout: float | None) -> StoreBusy:
        """Return the error of a call that has waited for so long for the write lock of another connection."""
        timeout = self.timeout if timeout is None else timeout
        if self._is_held_here():
            return StoreBusy(
                f"a connection of this program has held the write lock for {timeout:g} seconds, in a long write "
                "transaction. If this call belongs to it, pass that connection, or its session, as conn=. Otherwise "
                "commit it sooner, or raise busy_timeout"
            )
        return StoreBusy(
            f"another connection has held the write lock for {timeout:g} seconds. If it belongs to this program and "
            "has a transaction open, pass it as conn=. Otherwise find the program with a long write transaction on "
            "this database, or raise busy_timeout"
        )
