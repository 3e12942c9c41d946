"""What a run of pruning would delete: each job by its rule, and all that goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import Struct

from ..model.pruning import Doomed, EndOfChain, LoneJobs, OldRows, PartOfHistory, Pruned, Rest
from ..retention import ENDED, Retention, rule_in_words
from ..store.protocol import Store

SOME = 1000
HOW = "by the bytes of each job, its attempts and its events; pages that are freed only in part count as free"


class PruneGroup(Struct, frozen=True):
    """Jobs that would go by one rule."""

    rule: str
    status: str
    queue: str
    task: str | None
    jobs: int


class Forecast:
    """Counts what a run finds, and deletes nothing: in place of a Deleter."""

    def __init__(self, store: Store, retention: Retention) -> None:
        self._store, self._retention = store, retention
        self._groups: Counter[tuple[bool, str, str, str | None]] = Counter()
        self._old: list[OldRows] = []
        self._members: Counter[int] = Counter()
        self._callbacks: dict[int, set[int]] = {}
        self._references: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.gone: set[int] = set()  # jobs that count as deleted: those of chains, and those that waited for chains
        self.attempts = self.events = self.gone_bytes = self.archived = 0
        self.is_estimate = False

    # --- for the run ---

    @property
    def gone_jobs(self) -> int:
        return sum(self.counts[status] for status in ENDED)

    def archive(self, ids: Collection[int]) -> None:
        """Nothing is archived."""

    def delete(self, doomed: Doomed, by_size: bool) -> Pruned:
        """Weigh the jobs; of a long chain, all of them."""
        if isinstance(doomed, PartOfHistory):
            return Pruned({})
        if isinstance(doomed, LoneJobs):
            return Pruned({}, tuple(self._weigh([job.id for job in doomed.jobs], by_size)))
        chains = [doomed.chain] if isinstance(doomed, EndOfChain) else doomed.chains
        ids = [job for one in chains for job in one.jobs]
        freed = self._weigh([job for job in ids if job not in self.gone], by_size)
        self.gone.update(ids)
        return Pruned({}, tuple(freed - {one.chain for one in chains}))

    def _weigh(self, ids: list[int], by_size: bool) -> set[int]:
        """Returns the chains that they waited for."""
        freed: set[int] = set()
        for start in range(0, len(ids), SOME):
            for one in self._store.pruning.weigh(ids[start : start + SOME]):
                self._groups[by_size, one.status, one.queue, one.task] += 1
                self.counts[one.status] += 1
                self.attempts += one.attempts
                self.events += one.events
                self.gone_bytes += one.size
                self._references.update(one.blobs)
                if one.batch is not None:
                    self._members[one.batch] += 1
                for batch in one.callback_of:
                    self._callbacks.setdefault(batch, set()).add(one.id)
                if one.waited_for:
                    self.gone.add(one.id)
                    freed.update(one.waited_for)
        self.is_estimate = self.is_estimate or by_size
        return freed

    def delete_old(self, rows: OldRows) -> Pruned:
        """Remember the rule: what it would delete is counted at the end."""
        self._old.append(rows)
        return Pruned({})

    def count_rest(self) -> None:
        """Count what would go besides jobs."""
        rest = Rest(tuple(self._old), dict(self._members), self._callbacks, dict(self._references))
        self.counts.update(self._store.pruning.weigh_rest(rest))

    # --- for the report ---

    def groups(self) -> list[PruneGroup]:
        """The largest first."""
        return [
            PruneGroup(self._rule(by_size, status, queue, task), status, queue, task, jobs)
            for (by_size, status, queue, task), jobs in self._groups.most_common()
        ]

    def _rule(self, by_size: bool, status: str, queue: str, task: str | None) -> str:
        if by_size:
            return f"at most {self._retention.max_bytes:,} bytes"
        return rule_in_words(self._retention, status, queue, task)
