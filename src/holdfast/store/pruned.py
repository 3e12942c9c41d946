"""What is to be pruned, and what was. Pure data; times are microseconds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..retention import Mark

Pruner = Literal["worker", "operator"]


class Ended(Struct, frozen=True, gc=False):
    """A job that has ended, as a line of those that did shows it."""

    id: int
    queue: str
    task: str | None
    finished_at: int
    attempt: int
    chain: int
    linked: int  # it belongs to a longer chain or a batch, or somebody waited for it

    @property
    def mark(self) -> Mark:
        return self.finished_at, self.id

    @property
    def rows(self) -> int:
        """About so many go with it, itself among them."""
        return rows_of(self.attempt)


LONG_HISTORY = 1000  # attempts


def rows_of(attempt: int) -> int:
    return 2 + 3 * attempt


class DoomedChain(Struct, frozen=True):
    """A chain that may go, as a whole."""

    chain: int
    jobs: dict[int, str]  # ids, and how each ended
    rows: int
    ended_at: int
    long: tuple[int, ...] = ()  # of its jobs, those with a long history


class Pruned(Struct, frozen=True):
    """What one transaction did."""

    counts: dict[str, int]  # jobs by status; batches
    freed: tuple[int, ...] = ()  # chains that some of them had waited for
    rows: int = 0
    seconds: float = 0.0  # with the write lock


class Upkeep(Struct, frozen=True):
    """Who prunes now, and what the last one did."""

    pid: int | None  # None: nobody does
    actor: str | None
    kind: str | None
    begun_at: int | None
    counts: dict[str, int]
    last_at: int | None
    last_counts: dict[str, int]


class Pages(Struct, frozen=True):
    """How the file is filled."""

    count: int
    free: int
    size: int
    auto_vacuum: int  # 0: none, 1: full, 2: incremental
    file_bytes: int  # as it is on the disk

    @property
    def held_bytes(self) -> int:
        """Of the file, behind its last page: they are cut off when the log can be emptied."""
        return max(0, self.file_bytes - self.count * self.size)

    @property
    def used_bytes(self) -> int:
        return (self.count - self.free) * self.size

    @property
    def free_bytes(self) -> int:
        return self.free * self.size


class Weight(Struct, frozen=True, gc=False):
    """A job that would go, and what goes with it."""

    id: int
    status: str
    queue: str
    task: str | None
    batch: int | None
    blobs: tuple[str, ...]
    attempts: int
    events: int
    size: int  # bytes, about


class BatchFate(Struct, frozen=True):
    """A batch that is done, and what is left of it."""

    id: int
    members: int
    callbacks: tuple[int, ...]
