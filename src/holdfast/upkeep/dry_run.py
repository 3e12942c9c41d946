"""Dry run: count what pruning would delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from ..model.pruning import DeleteChains, DeleteChainTail, Deleted, DeleteJobs, Dependents, PruneStep, RowScan
from ..retention import FINISHED, Retention, rule_in_words
from ..store.protocol import Store

CHUNK_JOBS = 1000
ESTIMATE = "by the bytes of each job, its attempts and its events; pages that become partly free count as free"


class PruneGroup(Struct, frozen=True):
    """Jobs that one rule would delete."""

    rule: str
    status: str
    queue: str
    task: str | None
    jobs: int


class DryRun:
    """Counts what a run finds, in place of a Deleter.

    The database still contains the counted jobs, so the run is told which of them to treat as deleted.
    """

    def __init__(self, store: Store, retention: Retention) -> None:
        self._store, self._retention = store, retention
        self._groups: Counter[tuple[bool, str, str, str | None]] = Counter()
        self._scans: list[RowScan] = []
        self._members: Counter[int] = Counter()
        self._callbacks: dict[int, set[int]] = {}
        self._references: Counter[str] = Counter()
        self._attempts = self._events = 0
        self._is_estimate = False
        self.counts: Counter[str] = Counter()
        self.hidden: set[int] = set()  # counted jobs that are part of a chain, or that waited for one
        self.hidden_bytes = 0

    @property
    def hidden_jobs(self) -> int:
        return sum(self.counts[status] for status in FINISHED)

    def archive(self, ids: Collection[int]) -> None:
        """A dry run archives nothing."""

    def delete(self, step: PruneStep, by_size: bool) -> Deleted:
        """Count the jobs; of a long chain, all of them at once."""
        match step:
            case DeleteJobs():
                return Deleted({}, tuple(self._count([job.id for job in step.jobs], by_size)))
            case DeleteChains() | DeleteChainTail():
                chains = [step.chain] if isinstance(step, DeleteChainTail) else step.chains
                ids = [job for one in chains for job in one.jobs]
                freed = self._count([job for job in ids if job not in self.hidden], by_size)
                self.hidden.update(ids)
                return Deleted({}, tuple(freed - {one.chain for one in chains}))
            case _:
                return Deleted({})

    def _count(self, ids: list[int], by_size: bool) -> set[int]:
        """Return the chains that these jobs waited for."""
        freed: set[int] = set()
        for start in range(0, len(ids), CHUNK_JOBS):
            for one in self._store.pruning.footprints(ids[start : start + CHUNK_JOBS]):
                self._groups[by_size, one.status, one.queue, one.task] += 1
                self.counts[one.status] += 1
                self._attempts += one.attempts
                self._events += one.events
                self.hidden_bytes += one.size
                self._references.update(one.blobs)
                if one.batch is not None:
                    self._members[one.batch] += 1
                for batch in one.callback_of:
                    self._callbacks.setdefault(batch, set()).add(one.id)
                if one.waited_for:
                    self.hidden.add(one.id)
                    freed.update(one.waited_for)
        self._is_estimate = self._is_estimate or by_size
        return freed

    def delete_rows(self, scan: RowScan) -> tuple[float, RowScan | None]:
        """Note the scan: its rows are counted at the end."""
        self._scans.append(scan)
        return 0.0, None

    def end(self, interrupted: bool) -> None:
        if not interrupted:
            found = Dependents(tuple(self._scans), dict(self._members), self._callbacks, dict(self._references))
            self.counts.update(self._store.pruning.count_dependents(found))

    def report(self) -> dict[str, Any]:
        """Return the fields of a PruneReport that only a dry run has. The largest group is first."""
        groups = tuple(
            PruneGroup(self._rule(by_size, status, queue, task), status, queue, task, jobs)
            for (by_size, status, queue, task), jobs in self._groups.most_common()
        )
        estimate = ESTIMATE if self._is_estimate else None
        counts = {"archived": 0, "attempts": self._attempts, "events": self._events}
        return counts | {"groups": groups, "estimate": estimate}

    def _rule(self, by_size: bool, status: str, queue: str, task: str | None) -> str:
        if by_size:
            return f"at most {self._retention.max_bytes:,} bytes"
        return rule_in_words(self._retention, status, queue, task)
