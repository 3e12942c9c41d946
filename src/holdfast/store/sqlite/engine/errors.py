"""Waiting for another process's write lock: no fixed order, so nobody starves."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from ....errors import CannotOpen, CorruptDatabase, DiskFull, NotADatabase, ReadOnlyDatabase, StoreBusy, StoreError

_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def code_of(error: sqlite3.Error) -> int:
    """The primary result code; 0 where the error did not come from SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code_of(error) in _BUSY_CODES


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The exception to raise instead, which says what to do."""
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_space(path)):
        return DiskFull(f"the disk that holds {path} is full: free some space, then try again")
    if code in _BUSY_CODES:
        return StoreBusy(
            f"another connection keeps {path} locked: find the program with a long write transaction on it, "
            "and if it is this one, pass its connection as conn="
        )
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyDatabase(
            f"{path} cannot be written: check the permissions of the file, its folder and its mount"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{path} is not an SQLite database: choose another path, or move that file away")
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptDatabase(
            f"{path} is damaged ({error}): stop writing to it, keep a copy with its -wal file, and restore a "
            "backup or use the sqlite3 shell's .recover"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return CannotOpen(f"{path} cannot be opened ({error}): check the path and its permissions")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"reading or writing {path} failed ({error}): check the disk and the system log")
    return StoreError(f"SQLite could not do this on {path}: {error}")


def _has_no_space(path: Path) -> bool:
    usage = os.statvfs(path.parent)
    return usage.f_bavail * usage.f_frsize < 1024 * 1024


T = TypeVar("T")


class Patience:
    """Runs an action again, after a random moment, for as long as SQLite says BUSY."""

    def __init__(self, random: Random, limit_seconds: float) -> None:
        self._random, self.limit = random, limit_seconds

    def run(self, action: Callable[[], T], limit: float | None = None) -> T:
        """limit: other than usual, in seconds."""
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return self._run_until_free(action, self.limit if limit is None else limit)

    def _run_until_free(self, action: Callable[[], T], limit: float) -> T:
        deadline = time.monotonic() + limit
        while True:
            # SQLite's own busy handler sleeps ever longer and starves whoever waited; a short random nap does not.
            time.sleep(self._random.uniform(0.0002, 0.003))
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"another connection has held the write lock for {limit:g} seconds. If it is one of "
                        "this program's own, in a transaction, pass it as conn=; else find the program with a long "
                        "write transaction on this database, or raise busy_timeout"
                    ) from error
