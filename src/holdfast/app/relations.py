"""`app.jobs.relations(id)`: the chain of a job, the jobs that it waits for, those that wait for it, and its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ..errors import BatchNotFound
from ..model.job import JobRecord
from ..model.workflow import Blocker
from .workflows import BatchProgress

if TYPE_CHECKING:
    from .app import App
    from .job import Job

MAX_WAITING = 10
MAX_BY_LEVEL = (10, 5, 5, 3, 3)  # blockers on each level of the tree
MAX_NODES = 60
CHAIN_JOBS = 1000


class BlockerNode(Struct):
    """A blocker, and the blockers it waits for itself."""

    blocker: Blocker
    children: list[BlockerNode]
    more: int = 0  # children that are left out
    is_repeated: bool = False  # shown earlier, with its children


class Relations(Struct):
    """How a job relates to others."""

    chain: list[JobRecord]
    blockers: list[BlockerNode]
    more_blockers: int
    waiting: list[JobRecord]
    more_waiting: int
    batch_id: int | None
    is_callback: bool
    progress: BatchProgress | None

    @property
    def chain_length(self) -> int:
        return self.chain[-1].chain_index + 1 if self.chain else 1


def find_relations(app: App, job: Job[object]) -> Relations:
    """Read the relations of a job. Large graphs are cut: blockers that need attention come first."""
    blockers, more_blockers = _BlockerWalk(app).from_job(job.id)
    workflows = app.store.workflows
    waiting = workflows.waiting_for(job.chain_id, MAX_WAITING)
    callback_of = workflows.batch(callback=job.id) if job.batch_id is None else None
    batch_id = job.batch_id if callback_of is None else callback_of.id
    return Relations(
        chain=workflows.chain(job.chain_id, near=job.chain_index, each_side=CHAIN_JOBS // 2),
        blockers=blockers,
        more_blockers=more_blockers,
        waiting=waiting.found,
        more_waiting=waiting.total - len(waiting.found),
        batch_id=batch_id,
        is_callback=callback_of is not None,
        progress=None if batch_id is None else _batch_progress(app, batch_id),
    )


def _batch_progress(app: App, batch_id: int) -> BatchProgress | None:
    try:
        return app.batches.get(batch_id).progress()
    except BatchNotFound:  # deleted with plain SQL
        return None


class _BlockerWalk:
    """Walks from a job to its blockers and theirs, within MAX_NODES and MAX_BY_LEVEL."""

    def __init__(self, app: App) -> None:
        self._workflows, self._nodes_left = app.store.workflows, MAX_NODES
        self._seen: dict[int, int] = {}  # chain id -> the level from which on it is not shown again

    def from_job(self, job_id: int, level: int = 0) -> tuple[list[BlockerNode], int]:
        """Return the blockers of a job, and how many are left out."""
        limit = min(MAX_BY_LEVEL[level], self._nodes_left) if level < len(MAX_BY_LEVEL) else 0
        blockers = self._workflows.blockers(job_id, limit, urgent_first=True)
        if level == 0:
            return [self._node(one, level) for one in blockers.found], blockers.total - len(blockers.found)
        # Blockers of a blocker matter only while they block it.
        unfinished = [one for one in blockers.found if one.status != "succeeded"]
        left_out = blockers.holding - sum(one.holds for one in unfinished)
        return [self._node(one, level) for one in unfinished], max(0, left_out)

    def _node(self, blocker: Blocker, level: int) -> BlockerNode:
        if self._seen.get(blocker.chain_id, level + 1) <= level:
            return BlockerNode(blocker, [], is_repeated=True)
        self._nodes_left = max(0, self._nodes_left - 1)
        if blocker.id is None or blocker.status == "succeeded":
            self._seen[blocker.chain_id] = 0
            return BlockerNode(blocker, [])
        children, more = self.from_job(blocker.id, level + 1)
        is_cut = more > 0 and not children  # further up, there may be space for its children
        self._seen[blocker.chain_id] = level if is_cut else 0
        return BlockerNode(blocker, children, more)
