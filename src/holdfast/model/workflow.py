"""Relations between jobs: blockers, chains and batches. Pure data."""

from typing import Literal, get_args

from msgspec import Struct

OnBlockerFailure = Literal["hold", "fail", "cancel", "run"]
BatchState = Literal["open", "running", "done", "abandoned"]
"""open: members can be added. running: sealed, with unfinished members. done: all have finished. abandoned: sealed
although its block had not ended; it is also running or done."""
BATCH_STATES: frozenset[str] = frozenset(get_args(BatchState))
ON_BLOCKER_FAILURE: frozenset[str] = frozenset(get_args(OnBlockerFailure))


class Links(Struct, frozen=True):
    """The relations of a new job to others."""

    after: tuple[int, ...] = ()  # ids of jobs; it waits for their chains
    on_blocker_failure: OnBlockerFailure = "hold"
    batch_id: int | None = None
    external: bool = False

    @property
    def holds(self) -> bool:
        """Whether the job starts out blocked."""
        return self.external or bool(self.after)


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
