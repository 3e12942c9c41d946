"""What a store offers for its upkeep besides pruning: space, checks and repairs."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from .examination import Examination, Vitals


class Pages(Struct, frozen=True):
    """How the file is filled."""

    count: int
    free: int
    size: int
    auto_vacuum: int  # 0: none, 1: full, 2: incremental
    file_bytes: int  # as it is on the disk

    @property
    def held_bytes(self) -> int:
        """Bytes of the file behind its last page: they are cut off when the write-ahead log can be emptied."""
        return max(0, self.file_bytes - self.count * self.size)

    @property
    def used_bytes(self) -> int:
        return (self.count - self.free) * self.size

    @property
    def free_bytes(self) -> int:
        return self.free * self.size


class StoreFile(Protocol):
    # --- space ---

    def checkpoint(self) -> tuple[int, int]:
        """Copy the write-ahead log into the database. Returns its pages, and how many of them were copied."""
        ...

    def pages(self) -> Pages: ...

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        """Give free pages back to the system, at most so many, for about so long. Returns how many, and the seconds
        with the write lock."""
        ...

    def vacuum(self, tick: Callable[[], None]) -> None:
        """Rewrite the whole file. tick: called now and then; what it raises aborts it, and nothing has changed."""
        ...

    # --- checks ---

    def examine(self, deep: bool = False) -> Examination:
        """Look for problems; nothing is written. deep: look at all rows, however long it takes."""
        ...

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        """What a health check needs: what waits longest, how attempts ended since a minute, and the live workers."""
        ...

    def left_behind(self) -> int:
        """Count deleted jobs with orphaned rows, as far as a look at the oldest and newest rows tells."""
        ...

    # --- repairs ---

    def note(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        """Log what an operator did to the database itself."""
        ...

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers; returns their names. What was changed is left as it is."""
        ...

    def delete_leftovers(self) -> int:
        """Delete some orphaned rows of deleted jobs. Returns how many, 0 if none is left."""
        ...

    def mend_ends(self) -> int:
        """Set `finished_at` to now where it is missing or lies ahead, of some jobs. Returns how many, 0 if none is
        left."""
        ...

    def recount(self) -> int:
        """Correct wrong counts; returns how many."""
        ...

    def note_missed_endings(self) -> int:
        """Note again what has ended and is still waited for, so that a sweep of endings sees it. Returns how many."""
        ...
