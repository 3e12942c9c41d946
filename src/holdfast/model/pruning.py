"""Values of pruning: candidates, deletions and their results. Times are microseconds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..fold import MINUTE
from ..retention import Expiry, Position

Initiator = Literal["worker", "operator"]
RowKind = Literal["minutes", "failures", "tracebacks", "audit", "batches", "blobs"]
LONG_HISTORY = 1000  # attempts


def estimated_rows(attempt: int) -> int:
    """Estimate the rows of a job with this many attempts, its own included."""
    return 2 + 3 * attempt


# --- candidates ---


class FinishedJob(Struct, frozen=True, gc=False):
    id: int
    status: str
    queue: str
    task: str | None
    finished_at: int
    attempt: int
    chain: int
    linked: int  # 1: part of a longer chain or a batch, or other jobs waited for it

    @property
    def position(self) -> Position:
        return self.finished_at, self.id

    @property
    def rows(self) -> int:
        return estimated_rows(self.attempt)

    def has_expired(self, expiry: Expiry) -> bool:
        return self.position <= expiry.cutoff(self.status, self.queue, self.task)


class ExpiredChain(Struct, frozen=True):
    """A chain in which every job has expired."""

    chain: int
    jobs: dict[int, str]  # status by id
    rows: int
    finished_at: int
    long: tuple[int, ...] = ()  # jobs with a long history


class RowScan(Struct, frozen=True):
    """A search for expired rows that belong to no job. One call examines up to `limit` of them."""

    kind: RowKind
    before: int
    limit: int
    after: int | str | None = None  # continue after this key

    @property
    def parameters(self) -> dict[str, int | str | None]:
        before = self.before // MINUTE if self.kind == "minutes" else self.before
        return {"before": before, "after": self.after, "limit": self.limit}


# --- deletions: one transaction each ---


class DeleteJobs(Struct, frozen=True):
    """Delete standalone jobs of one status."""

    status: str
    jobs: tuple[FinishedJob, ...]


class DeleteChains(Struct, frozen=True):
    """Delete chains, if they still consist of these jobs and all have expired."""

    chains: tuple[ExpiredChain, ...]
    expiry: Expiry


class DeleteChainTail(Struct, frozen=True):
    """Delete the last jobs of a chain that is too long for one transaction. The first job goes last."""

    chain: ExpiredChain
    limit: int = 0  # rows, approximately


class TrimHistory(Struct, frozen=True):
    """Delete events and attempts of a job that has too many for one transaction."""

    job: int
    status: str
    finished_at: int
    limit: int = 0  # rows of each


class DeleteRows(Struct, frozen=True):
    """Delete rows that belong to no job, if they are still expired."""

    scan: RowScan
    keys: tuple[int | str, ...]


class CollectBlobs(Struct, frozen=True):
    """Delete payload files that no job refers to. Not part of the transaction."""

    limit: int


PruneStep = DeleteJobs | DeleteChains | DeleteChainTail | TrimHistory | DeleteRows | CollectBlobs


class Deleted(Struct, frozen=True):
    """The result of one transaction."""

    counts: dict[str, int]  # jobs by status; other rows by kind
    freed: tuple[int, ...] = ()  # chains that the deleted jobs had waited for
    rows: int = 0
    seconds: float = 0.0  # with the write lock


class PruneState(Struct, frozen=True):
    """The current run, the result of the last one, and the stored policy."""

    pid: int | None = None  # None: no run is active
    actor: str | None = None
    begun_at: int | None = None
    last_at: int | None = None
    last_counts: dict[str, int] = {}
    retention: str | None = None  # JSON, of the last worker that declared a policy


# --- dry run ---


class JobFootprint(Struct, frozen=True, gc=False):
    """A job that would be deleted, and what would be deleted with it."""

    id: int
    status: str
    queue: str
    task: str | None
    batch: int | None
    callback_of: tuple[int, ...]  # batches whose callback it is
    waited_for: tuple[int, ...]  # chains
    blobs: tuple[str, ...]
    attempts: int
    events: int
    size: int  # bytes, approximately


class Dependents(Struct, frozen=True):
    """What a dry run counts besides jobs: expired rows, and batches, callbacks and blobs of the deleted jobs."""

    scans: tuple[RowScan, ...]
    members: dict[int, int]  # deleted members by batch
    callbacks: dict[int, set[int]]  # deleted callbacks by batch
    references: dict[str, int]  # deleted references by blob
