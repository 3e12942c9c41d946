"""Relations between jobs: blockers, chains and batches. Pure data; times are microseconds."""

from typing import Literal, get_args

from msgspec import Struct

from .job import JobRecord, Status

BatchState = Literal["open", "running", "done", "abandoned"]
"""open: members can be added. running: sealed, with unfinished members. done: all have finished. abandoned: sealed
although its block had not ended; it is also running or done."""
BATCH_STATES: frozenset[str] = frozenset(get_args(BatchState))


class BatchRecord(Struct, frozen=True):
    """A batch as it was read. Times are microseconds."""

    id: int
    created_at: int
    sealed_at: int | None
    done_at: int | None
    success_job_id: int | None
    done_job_id: int | None
    deleted: int
    creator: str | None
    abandoned_at: int | None
    counts: dict[str, int]  # chains of its members by status
    more: bool = False  # whether there are more members than were counted


class Deletion(Struct, frozen=True):
    """The result of deleting a chain: the deleted jobs, or the jobs that prevented it."""

    ids: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()  # unfinished jobs that wait for the chain: nothing was deleted
    running: tuple[int, ...] = ()


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
