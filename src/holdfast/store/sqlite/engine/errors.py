"""Translate SQLite's errors into Holdfast's exceptions."""

import os
import sqlite3
from pathlib import Path

from ....errors import CannotOpen, CorruptDatabase, DiskFull, NotADatabase, ReadOnlyDatabase, StoreBusy, StoreError

_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def code_of(error: sqlite3.Error) -> int:
    """Return the primary result code, or 0 if the error was not raised by SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code_of(error) in _BUSY_CODES


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the exception to raise instead; its message says what to do."""
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_disk_full(path)):
        return DiskFull(f"the disk that holds {path} is full: free some space, then try again")
    if code in _BUSY_CODES:
        return StoreBusy(
            f"another connection keeps {path} locked: find the program with a long write transaction on it. If it is "
            "this program, pass its connection as conn="
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
    return StoreError(f"SQLite reported an error on {path}: {error}")


def _is_disk_full(path: Path) -> bool:
    usage = os.statvfs(path.parent)
    return usage.f_bavail * usage.f_frsize < 1024 * 1024
