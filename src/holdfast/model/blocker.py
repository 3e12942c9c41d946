"""Blockers of jobs, and the details that `app.jobs.explain` needs. Pure data; times are microseconds."""

from msgspec import Struct

from .job import JobRecord, Status


class Blocker(Struct, frozen=True):
    """A chain that a job waits for or waited for, with the state of its last job. `id` is None if it was deleted."""

    chain_id: int
    outcome: str | None  # the final status, once it does not block the job any more
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
    """The chains that a job waits for or waited for."""

    found: list[Blocker]
    total: int  # number of chains
    holding: int  # number of chains that still block the job


class JobDetails(Struct, frozen=True):
    """A job, its last transition, and what it waits for."""

    record: JobRecord
    transition: str  # the last transition
    actor: str | None  # of the last transition
    reason: str | None  # of the last transition
    lease_left: int | None  # time until the lease expires; negative if it has expired
    paused: bool  # whether its queue is paused
    unresolved: bool  # a job has finished whose waiting jobs were not released yet
    behind: list[Blocker]  # indirect blockers of a blocked job, most urgent first


class WaitingJobs(Struct, frozen=True):
    """Jobs that wait for a chain or waited for it."""

    found: list[JobRecord]
    total: int
