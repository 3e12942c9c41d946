"""What ties jobs together: the chains they wait for, the batch they belong to. Pure data."""

from typing import Literal, get_args

from msgspec import Struct

OnBlockerFailure = Literal["hold", "fail", "cancel", "run"]
ON_BLOCKER_FAILURE: frozenset[str] = frozenset(get_args(OnBlockerFailure))


class Links(Struct, frozen=True):
    """What a new job has to do with others. Times are microseconds."""

    after: tuple[int, ...] = ()  # ids of jobs, whose chains it waits for
    on_blocker_failure: OnBlockerFailure = "hold"
    batch_id: int | None = None
    external: bool = False
    timeout_at: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the job is blocked at first."""
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
    counts: dict[str, int]  # its chains, by status


class Deletion(Struct, frozen=True):
    """The jobs that were deleted with a chain, or would be; or those that are in the way: then none was deleted."""

    ids: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()  # unfinished jobs that wait for the chain
    running: tuple[int, ...] = ()
