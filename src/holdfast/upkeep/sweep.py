"""What belongs to no job, each by its own rule: rollups, failures with their tracebacks, the audit, empty batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ..clock import SECOND
from ..retention import Retention
from ..store.base import Store
from ..store.pruned import Pruned

SOME = 1000
SOME_TRACEBACKS = 100

Do = Callable[[str, "Counter[str]"], Pruned | None]


class Sweep:
    """count: does something with the token of the run, and adds up what it did."""

    def __init__(self, store: Store, retention: Retention, now: int, count: Callable[[Do], Pruned]) -> None:
        self._store, self._retention, self._now, self._count = store, retention, now, count

    def steps(self) -> Iterator[float]:
        for part in (self._rollups, self._failures, self._tracebacks, self._audit, self._batches):
            yield from part()
        self._store.prune_totals()

    def _rollups(self) -> Iterator[float]:
        before = self._retention.rollups_before(self._now)
        if before is None:
            return
        minute = before // (60 * SECOND)
        while self._store.minutes_before(minute):
            yield self._do(lambda token, counts: self._store.prune_minutes(token, minute, SOME, counts))

    def _failures(self) -> Iterator[float]:
        before = self._retention.failures_before(self._now)
        while before is not None and (rows := self._store.failures_before(before, SOME)):
            yield self._do(self._bound(self._store.prune_failures, rows, before))

    def _tracebacks(self) -> Iterator[float]:
        before, after = self._retention.failures_before(self._now), ""
        while before is not None and (rows := self._store.tracebacks_after(after, before, SOME_TRACEBACKS)):
            after = rows[-1][0]
            loose = [fingerprint for fingerprint, is_loose in rows if is_loose]
            yield self._do(self._bound(self._store.prune_tracebacks, loose, before)) if loose else 0.0

    def _audit(self) -> Iterator[float]:
        before = self._retention.audit_before(self._now)
        while before is not None and (rows := self._store.audit_before(before, SOME)):
            done = self._count(self._bound(self._store.prune_audit, rows))
            yield done.seconds
            if not done.rows:
                return  # the newest event of all stays, however old

    def _batches(self) -> Iterator[float]:
        before, after = self._retention.batches_before(self._now), 0
        while before is not None and (rows := self._store.batches_after(after, before, SOME)):
            after = rows[-1][0]
            empty = [batch for batch, is_empty in rows if is_empty]
            yield self._do(self._bound(self._store.prune_empty_batches, empty)) if empty else 0.0

    def _do(self, do: Do) -> float:
        return self._count(do).seconds

    @staticmethod
    def _bound(prune: Callable[..., Pruned | None], *values: Any) -> Do:
        return lambda token, counts: prune(token, *values, counts)
