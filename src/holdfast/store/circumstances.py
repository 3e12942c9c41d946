"""What a store knows about why a job is where it is. Pure data; times are microseconds."""

from msgspec import Struct

from ..model import JobRecord, Status, WorkerRecord


class Situation(Struct, frozen=True):
    """A job, how it came to its state, and whether its queue is paused."""

    record: JobRecord
    transition: str  # the last one
    actor: str | None  # who made it
    lease_left: int | None  # until its lease ends; below 0, it has ended
    paused: bool
    unresolved: bool  # something has ended, of whatever job, and those who wait were not told yet


class ChainLink(Struct, frozen=True):
    """A job of a chain, or one that waits for a chain."""

    id: int
    task: str | None
    status: Status
    index: int


class Blocker(Struct, frozen=True):
    """A chain that a job waits for, or waited for, by its last job. `id` is None where that is gone."""

    chain_id: int
    outcome: str | None  # how it ended, once it holds the job no more
    id: int | None
    task: str | None
    status: Status | None
    chain_index: int | None
    external: int | None
    timeout_at: int | None
    error_code: str | None

    @property
    def holds(self) -> bool:
        return self.outcome is None


class Blockers(Struct, frozen=True):
    """Those in whose way most is, first."""

    found: list[Blocker]
    total: int
    holding: int


class LiveWorker(Struct, frozen=True):
    """A worker whose process is there."""

    record: WorkerRecord
    is_stopped: bool  # by a signal: it does nothing until it is continued


class Taken(Struct, frozen=True):
    """How many jobs a worker has taken of one queue and task."""

    worker: str
    queue: str
    task: str | None
    count: int


class Removal(Struct, frozen=True):
    """What would go with a chain, and what is in the way."""

    ids: tuple[int, ...]
    waiting: tuple[int, ...]
    running: tuple[int, ...]
