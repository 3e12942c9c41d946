"""The only checkpointer: it copies the write-ahead log into the database without the WAL-reset bug.

SQLite 3.7.0 to 3.51.2 can lose commits when one connection checkpoints while another starts the log anew. So no
connection of ours checkpoints by itself; this one does, while a second connection holds the write lock and thus
nobody can start the log anew. It is right on fixed versions too, and costs nothing there.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

CHANGES_PER_CHECKPOINT = 8000
CHANGES_PER_LOOK = 64
LARGEST_LOG_BYTES = 16 * 1024 * 1024


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class Checkpointer:
    """Not for several threads at once: only the thread that leads the writer calls it."""

    def __init__(
        self,
        guard: sqlite3.Connection,
        worker: sqlite3.Connection,
        log: Path,
        tell: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """tell: what each checkpoint has achieved."""
        self._guard, self._worker, self._log, self._tell = guard, worker, log, tell
        self._changes = 0
        self._next_look = 1  # at the first commit already: a program may not live for many

    def count(self, changes: int) -> bool:
        """Add to what was written since; True when a checkpoint is worth it."""
        self._changes += changes
        if self._changes < self._next_look:
            return False
        self._next_look = self._changes + CHANGES_PER_LOOK
        # Few changes can be many bytes. A log that was started anew is cut to the limit: see journal_size_limit.
        return self._changes >= CHANGES_PER_CHECKPOINT or size_of(self._log) > LARGEST_LOG_BYTES

    def run(self, patiently: Callable[[Callable[[], object]], object]) -> tuple[int, int]:
        """Returns the pages in the log, and how many of them are in the database now."""
        patiently(lambda: self._guard.execute("BEGIN IMMEDIATE"))
        try:
            _, pages, moved = self._worker.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            if self._guard.in_transaction:
                self._guard.execute("ROLLBACK")
        self._changes, self._next_look = 0, CHANGES_PER_LOOK
        self._tell(pages, moved)
        return pages, moved
