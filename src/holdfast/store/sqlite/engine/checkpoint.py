"""The only checkpointer: it copies the write-ahead log into the database without the WAL-reset bug.

SQLite 3.7.0 to 3.51.2 can lose commits when one connection checkpoints while another starts the log anew. So no
connection of ours checkpoints by itself; this one does, while a second connection holds the write lock and thus
nobody can start the log anew. It is right on fixed versions too, and costs nothing there.

It also keeps flushes short. A flush of a commit that makes the log longer writes metadata of the file system as well,
and takes about twice as long as one that overwrites what is there. After a checkpoint the log starts anew, in the
space that it has. So a log that flushed commits make longer is checkpointed early. It gets as long as the traffic
needs, and no longer.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

CHANGES_PER_CHECKPOINT = 8000
CHANGES_PER_LOOK = 64
FLUSHES_PER_LOOK = 8  # about what a checkpoint costs, in flushes that make the log longer
MOST_FLUSHES_PER_LOOK = 1024
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
        self._size = size_of(log)
        self._flushes, self._flushes_per_look = 0, FLUSHES_PER_LOOK
        self._had_grown = False

    def count(self, changes: int, flushed: bool) -> bool:
        """Add a commit to what was written since; True when a checkpoint is worth it."""
        self._changes += changes
        if flushed:
            self._flushes += 1
            if self._flushes >= self._flushes_per_look and self._has_grown():
                return True
        if self._changes < self._next_look:
            return False
        self._next_look = self._changes + CHANGES_PER_LOOK
        return self.is_due()

    def is_due(self) -> bool:
        """Whether there is enough in the log that a checkpoint is worth waiting for."""
        # Few changes can be many bytes. A log that was started anew is cut to the limit: see journal_size_limit.
        return self._changes >= CHANGES_PER_CHECKPOINT or size_of(self._log) > LARGEST_LOG_BYTES

    def _has_grown(self) -> bool:
        """Whether the log is longer than at the last look, so that it is better started anew."""
        size = size_of(self._log)
        grown, self._size, self._flushes = size > self._size, size, 0
        # Twice in a row: it was not started anew after the last checkpoint, since somebody reads from it.
        in_vain = grown and self._had_grown
        self._flushes_per_look = (
            min(2 * self._flushes_per_look, MOST_FLUSHES_PER_LOOK) if in_vain else FLUSHES_PER_LOOK
        )
        self._had_grown = grown
        return grown

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
