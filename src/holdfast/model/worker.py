"""model.worker."""

from typing import Literal

from msgspec import Struct


class WorkerLimits(Struct, frozen=True, omit_defaults=True):
    """What holds a worker back besides its concurrency."""

    queues: dict[str, int] = {}  # at most so many of a queue's jobs at a time
    weighted: bool = False  # its queues are served by chance, not in their order
    pool: int = 0  # how many may run of those tasks that run in processes
    pool_tasks: tuple[str, ...] = ()


class WorkerRecord(Struct, frozen=True):
    """A worker, as it enlists and as it is listed."""

    id: str
    pid: int
    host: str
    queues: tuple[str, ...] | None  # None: all of them
    tasks: tuple[str, ...]
    concurrency: int
    lease: int
    started_at: int
    heartbeat_at: int
    ended_at: int | None = None
    ending: str | None = None
    limits: WorkerLimits = WorkerLimits()


Presence = Literal[
    "alive",
    "stopped",  # by a signal: it does nothing until it is continued
    "dead",
    "unknown",  # somebody has removed the lock file
    "ended",  # as it said itself, or as others found out
]


class Attendance(Struct, frozen=True):
    """A worker, whether its process is there, and what it has claimed."""

    record: WorkerRecord
    presence: Presence
    taken: list[tuple[str, str | None, int]] = []  # queue, task and number of jobs

    @property
    def is_present(self) -> bool:
        """Whether its process is there, as far as that can be known."""
        return self.presence in ("alive", "stopped", "unknown")

    @property
    def running(self) -> int:
        return sum(count for _, _, count in self.taken)
