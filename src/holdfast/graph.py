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


class BlockerRecord(Struct, frozen=True):
    """A chain that a job waits for, or waited for."""

    chain_id: int
    outcome: str | None  # how it ended, once it holds the job no more
    last_id: int  # of its last job; there may be no such job any more


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
    """What came of deleting a chain. Where somebody waits for it, or runs, nothing was deleted."""

    deleted: int = 0
    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
