"""Why a job is where it is, and which workers there are. Pure data; times are microseconds."""

from msgspec import Struct

from .job import JobRecord, Status


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
