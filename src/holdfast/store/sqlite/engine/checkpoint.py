"""The checkpointer, which copies the write-ahead log (WAL) into the database and avoids SQLite's WAL-reset bug.

SQLite 3.7.0 to 3.51.2 can lose commits when one connection checkpoints while another resets the WAL, that is, starts
to write it from its beginning again. So Holdfast's connections never checkpoint automatically. The checkpointer takes
the write lock on one connection, so that no writer can reset the WAL, and checkpoints on another. On fixed versions
this is correct too, and costs nothing. See docs/internals/wal-reset.md.

Checkpoints also keep flushes short. A flush that makes the WAL file longer also writes metadata of the file system,
and takes about twice as long as one that overwrites existing space. After a checkpoint the WAL is reset and uses the
existing space again. So the checkpointer runs early when flushed commits make the file longer, and the file grows
only as large as the traffic needs.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from .connection import MAX_WAL_BYTES
from .database_file import file_size
from .file_users import LockObserver, command_of

CHANGES_PER_CHECKPOINT = 32_000
CHANGES_PER_SIZE_CHECK = 64
FLUSHES_PER_SIZE_CHECK = 8  # about what a checkpoint costs, in flushes that make the WAL longer
MAX_FLUSHES_PER_SIZE_CHECK = 1024
ALARM_BYTES = 4 * MAX_WAL_BYTES
ALARM_INTERVAL_SECONDS = 60.0
log = logging.getLogger("holdfast.store")


class Checkpointer:
    """Not thread-safe: only the leader of the group commit calls it."""

    def __init__(
        self,
        lock_connection: sqlite3.Connection,
        checkpoint_connection: sqlite3.Connection,
        wal: Path,
        on_checkpoint: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """on_checkpoint: called with the result of each checkpoint, as `run` returns it."""
        self._lock_connection, self._checkpoint_connection = lock_connection, checkpoint_connection
        self._wal, self._on_checkpoint = wal, on_checkpoint
        self._changes = 0
        self._next_size_check = 1  # after the first commit, because a short-lived program may make no more
        self._size = file_size(wal)
        self._flushes, self._flushes_per_size_check = 0, FLUSHES_PER_SIZE_CHECK
        self._had_grown = False

    def count(self, changes: int, flushed: bool) -> bool:
        """Count a commit. Return whether to checkpoint now."""
        self._changes += changes
        if flushed:
            self._flushes += 1
            if self._flushes >= self._flushes_per_size_check and self._has_grown():
                return True
        if self._changes < self._next_size_check:
            return False
        self._next_size_check = self._changes + CHANGES_PER_SIZE_CHECK
        return self.is_due()

    def is_due(self) -> bool:
        """Return whether the WAL is so large that a checkpoint is worth waiting for the write lock."""
        # Few changes can be many bytes. When the WAL is reset, journal_size_limit truncates the file.
        return self._changes >= CHANGES_PER_CHECKPOINT or file_size(self._wal) > MAX_WAL_BYTES

    def _has_grown(self) -> bool:
        """Return whether the WAL file is longer than at the last check."""
        size = file_size(self._wal)
        has_grown, self._size, self._flushes = size > self._size, size, 0
        # Twice in a row: a reader has kept the WAL from being reset after the last checkpoint.
        was_in_vain = has_grown and self._had_grown
        self._flushes_per_size_check = (
            min(2 * self._flushes_per_size_check, MAX_FLUSHES_PER_SIZE_CHECK)
            if was_in_vain
            else FLUSHES_PER_SIZE_CHECK
        )
        self._had_grown = has_grown
        return has_grown

    def run(self, retry: Callable[[Callable[[], object]], object]) -> tuple[int, int]:
        """Checkpoint. Return the number of pages in the WAL, and how many of them are in the database now.

        retry: runs the action that takes the write lock.
        """
        retry(lambda: self._lock_connection.execute("BEGIN IMMEDIATE"))
        try:
            _, pages, copied = self._checkpoint_connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            if self._lock_connection.in_transaction:
                self._lock_connection.execute("ROLLBACK")
        self._changes, self._next_size_check = 0, CHANGES_PER_SIZE_CHECK
        self._on_checkpoint(pages, copied)
        return pages, copied


class LogAlarm:
    """Warns about a write-ahead log that a long read transaction keeps from shrinking. For one thread only."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, Path(f"{path}-wal")
        self._locks: LockObserver | None = None
        self._quiet_until = 0.0

    def after_checkpoint(self, pages: int, moved: int) -> None:
        """pages: in the log; moved: of these, into the database. Pages that a reader needs stay in the log."""
        size = file_size(self._log)
        if moved >= pages or size <= ALARM_BYTES:
            if self._locks is not None:
                log.info("%s can shrink again", self._log.name)
            self._locks = None
            return
        if self._locks is None:
            self._locks = LockObserver(self._path)
            return  # a reader that is still there at the next checkpoint is a long one
        self._locks.observe()
        if not self._locks.readers:
            self._locks = LockObserver(self._path)
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + ALARM_INTERVAL_SECONDS
            log.warning(
                "%s has %s bytes and cannot shrink: a read transaction has been open since it was smaller, %s. "
                "End it: a query whose rows were not all fetched, or a transaction that waits for something",
                self._log.name,
                f"{size:,}",
                _described(self._locks.readers),
            )


def _described(readers: list[int]) -> str:
    if not readers:
        return "in a process that the system does not name"
    return " or ".join(
        "in this process" if pid == os.getpid() else f"in process {pid} ({command_of(pid) or 'unknown'})"
        for pid in readers
    )
