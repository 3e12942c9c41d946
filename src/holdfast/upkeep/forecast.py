"""What a run of pruning would delete: each job by its rule, and all that goes along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TypeVar

from msgspec import Struct

from ..clock import SECOND
from ..retention import Retention, rule_in_words
from ..store.base import Store
from ..store.pruned import BatchFate

T = TypeVar("T")

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
    def __init__(self, store: Store, retention: Retention) -> None:
        self._store, self._retention = store, retention
        self._groups: Counter[tuple[bool, str, str, str | None]] = Counter()
        self._members: dict[int, int] = {}  # of batches: how many would be gone
        self._callbacks: dict[int, set[int]] = {}
        self._blobs: Counter[str] = Counter()  # how many of those that refer to them would be gone
        self.attempts = self.events = self.freed_bytes = 0
        self.is_estimate = False

    def add(self, ids: Collection[int], by_size: bool) -> Counter[str]:
        """These would go. Returns how many of each status."""
        found = self._store.weigh(ids)
        self.is_estimate = self.is_estimate or by_size
        self._groups.update((by_size, one.status, one.queue, one.task) for one in found)
        for one in found:
            self.attempts += one.attempts
            self.events += one.events
            self.freed_bytes += one.size
            if one.blobs:
                self._blobs.update(one.blobs)
            if one.batch is not None:
                self._members[one.batch] = self._members.get(one.batch, 0) + 1
        for batch, job in self._store.callbacks_among(ids):
            self._callbacks.setdefault(batch, set()).add(job)
        return Counter(one.status for one in found)

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

    def others(self, now: int) -> dict[str, int]:
        """What belongs to no job, or to several."""
        rules = self._retention
        before = {
            "minutes": None if (moment := rules.rollups_before(now)) is None else moment // (60 * SECOND),
            "failures": rules.failures_before(now),
            "tracebacks": rules.failures_before(now),
            "audit": rules.audit_before(now),
        }
        counts = {what: self._store.count_old(what, moment) for what, moment in before.items() if moment is not None}
        return counts | {"batches": self._count_batches(now), "blobs": self._count_blobs()}

    def _count_batches(self, now: int) -> int:
        touched, before, after = {*self._members, *self._callbacks}, self._retention.batches_before(now), 0
        while before is not None and (rows := self._store.batches_after(after, before, SOME)):
            after = rows[-1][0]
            touched.update(batch for batch, is_empty in rows if is_empty)
        fates = (one for some in _some_at_a_time(sorted(touched)) for one in self._store.fates_of_batches(some))
        return sum(map(self._would_go, fates))

    def _would_go(self, batch: BatchFate) -> bool:
        callbacks = self._callbacks.get(batch.id, set())
        return batch.members == self._members.get(batch.id, 0) and callbacks.issuperset(batch.callbacks)

    def _count_blobs(self) -> int:
        """Those to which nothing refers any more, and those to which nothing does already."""
        return self._store.count_unused_blobs() + sum(
            self._blobs[name] == references
            for some in _some_at_a_time(sorted(self._blobs))
            for name, references in self._store.references_to(some).items()
        )


def _some_at_a_time(things: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(things), SOME):
        yield things[start : start + SOME]
