"""What is to be pruned, and what was. Pure data; times are microseconds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..fold import MINUTE
from ..retention import Expiry, Mark

Pruner = Literal["worker", "operator"]
OldKind = Literal["minutes", "failures", "tracebacks", "audit", "batches", "blobs"]
LONG_HISTORY = 1000  # attempts


def rows_of(attempt: int) -> int:
    """Estimate how many rows go with a job that has so many attempts, itself included."""
    return 2 + 3 * attempt


# --- what may go ---


class EndedJob(Struct, frozen=True, gc=False):
    """A job that has ended."""

    id: int
    status: str
    queue: str
    task: str | None
    finished_at: int
    attempt: int
    chain: int
    linked: int  # 1: it belongs to a longer chain or a batch, or others waited for it

    @property
    def mark(self) -> Mark:
        return self.finished_at, self.id

    @property
    def rows(self) -> int:
        return rows_of(self.attempt)


class DoomedChain(Struct, frozen=True):
    """A chain that may go, as a whole."""

    chain: int
    jobs: dict[int, str]  # ids, and how each ended
    rows: int
    ended_at: int
    long: tuple[int, ...] = ()  # of its jobs, those with a long history


# --- what one transaction is to delete ---


class LoneJobs(Struct, frozen=True):
    """Jobs of one status that have nothing to do with others."""

    status: str
    jobs: tuple[EndedJob, ...]


class WholeChains(Struct, frozen=True):
    """Chains, if they still have the same jobs and these have expired."""

    chains: tuple[DoomedChain, ...]
    expiry: Expiry


class EndOfChain(Struct, frozen=True):
    """The last jobs of a chain that is too long for one transaction, the root at the very end."""

    chain: DoomedChain
    limit: int = 0  # rows, about


class PartOfHistory(Struct, frozen=True):
    """Some events and attempts of a job that has too many for one transaction."""

    job: int
    status: str
    ended_at: int
    limit: int = 0  # rows of each


Doomed = LoneJobs | WholeChains | EndOfChain | PartOfHistory


class OldRows(Struct, frozen=True):
    """Rows that belong to no job. One call looks at up to `limit` of them."""

    what: OldKind
    before: int
    limit: int
    after: int | str | None = None  # go on behind this key

    @property
    def bounds(self) -> dict[str, int | str | None]:
        """As the statements take them."""
        before = self.before // MINUTE if self.what == "minutes" else self.before
        return {"before": before, "after": self.after, "limit": self.limit}


# --- what was deleted ---


class Pruned(Struct, frozen=True):
    """What one transaction deleted."""

    counts: dict[str, int]  # jobs by status; batches; old rows by kind
    freed: tuple[int, ...] = ()  # chains that deleted jobs had waited for
    rows: int = 0
    seconds: float = 0.0  # with the write lock
    rest: OldRows | None = None  # where to go on; None: no more old rows


class PruneRun(Struct, frozen=True):
    """Who prunes now, what the last run deleted, and the policy."""

    pid: int | None = None  # None: nobody does
    actor: str | None = None
    kind: str | None = None
    begun_at: int | None = None
    counts: dict[str, int] = {}
    last_at: int | None = None
    last_counts: dict[str, int] = {}
    retention: str | None = None  # JSON, of the last worker that had a policy


# --- what would be deleted ---


class Weight(Struct, frozen=True, gc=False):
    """A job that would go, and what goes with it."""

    id: int
    status: str
    queue: str
    task: str | None
    batch: int | None
    callback_of: tuple[int, ...]  # batches that it was enqueued for
    waited_for: tuple[int, ...]  # chains
    blobs: tuple[str, ...]
    attempts: int
    events: int
    size: int  # bytes, about


class Rest(Struct, frozen=True):
    """What to count besides jobs, in a dry run: old rows, and what is left over when jobs are gone."""

    old: tuple[OldRows, ...]
    members: dict[int, int]  # of batches: how many of them would be gone
    callbacks: dict[int, set[int]]  # of batches: which of these would be gone
    references: dict[str, int]  # of blobs: how many jobs that refer to each would be gone
