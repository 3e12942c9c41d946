"""What pruning would delete: counted by reads, and nothing is deleted."""

from collections.abc import Collection
from typing import Any

from ..pruned import BatchFate, Weight
from .criteria import as_json
from .part import Part

BYTES_OF_A_JOB = 210  # measured, with what its indexes have of it; of an attempt and an event likewise
BYTES_OF_AN_ATTEMPT = 65
BYTES_OF_AN_EVENT = 52


class Forecasting(Part):
    def weigh(self, ids: Collection[int]) -> list[Weight]:
        """What would go with each of these jobs."""
        found = []
        for id, status, queue, task, batch, args, result, attempts, events, size in self._rows(
            self._sql.weigh_jobs, {"batch": as_json(sorted(ids))}
        ):
            blobs = tuple(name for name in (args, result) if name is not None)
            size += BYTES_OF_A_JOB + attempts * BYTES_OF_AN_ATTEMPT + events * BYTES_OF_AN_EVENT
            found.append(Weight(id, status, queue, task, batch, blobs, attempts, events, size))
        return found

    def callbacks_among(self, ids: Collection[int]) -> list[tuple[int, int]]:
        """Batches, and those of these jobs that were enqueued for them."""
        return self._rows(self._sql.callbacks_of_batches, {"batch": as_json(sorted(ids))})

    def fates_of_batches(self, batches: Collection[int]) -> list[BatchFate]:
        """Of those of these batches that are done."""
        rows = self._rows(self._sql.fates_of_batches, {"batches": as_json(sorted(batches))})
        return [BatchFate(id, members, tuple(one for one in jobs if one is not None)) for id, members, *jobs in rows]

    def references_to(self, blobs: Collection[str]) -> dict[str, int]:
        """How many jobs refer to each of them."""
        return dict(self._rows(self._sql.references_to_blobs, {"names": as_json(sorted(blobs))}))

    def count_unused_blobs(self) -> int:
        """That no job refers to, as far as it is known."""
        return self._number(self._sql.count_unused_blobs, {})

    def count_old(self, what: str, before: int) -> int:
        """what: minutes, failures, tracebacks or audit."""
        names = {"tracebacks": "loose_tracebacks"}
        return self._number(getattr(self._sql, f"count_{names.get(what, f'old_{what}')}"), {"before": before})

    def _number(self, statement: str, values: Any) -> int:
        return int(self._rows(statement, values)[0][0])
