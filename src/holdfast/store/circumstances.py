"""Why a job is where it is, and which workers there are. Pure data; times are microseconds."""

from typing import Literal

from msgspec import Struct

from ..model import JobRecord, Status, WorkerRecord

Presence = Literal[
    "alive",
    "stopped",  # by a signal: it does nothing until it is continued
    "dead",
    "unknown",  # somebody has removed the lock file
    "ended",  # as it said itself, or as others found out
]


class Blocker(Struct, frozen=True):
    """A chain that a job waits for, or waited for, by its last job. `id` is None where that was deleted."""

    chain_id: int
    outcome: str | None  # how it ended, once it does not hold the job any more
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
    """Chains that a job waits for, or waited for."""

    found: list[Blocker]
    total: int  # how many chains there are
    holding: int  # how many of them the job still waits for


class Situation(Struct, frozen=True):
    """A job, how it came to its state, and what keeps it there."""

    record: JobRecord
    transition: str  # the last one
    actor: str | None  # who made it
    lease_left: int | None  # until its lease ends; below 0, it has ended
    paused: bool  # its queue
    unresolved: bool  # some job has ended, and those that wait for it were not told yet
    behind: list[Blocker]  # of a blocked job: chains that it waits for indirectly, the most urgent first


class WaitingJobs(Struct, frozen=True):
    """Jobs that wait for a chain, or waited for it."""

    found: list[JobRecord]
    total: int


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
