"""What a store does to keep itself small: finding what is old, deleting it a little at a time, giving space back.

Each method that deletes takes the token of a run, and the sum of what the run has deleted before; it returns None
where another run has taken over, and then nothing was deleted.
"""

from __future__ import annotations  # so that they cost nothing at import

import builtins
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from ..retention import Expiry, Mark
from .pruned import BatchFate, DoomedChain, Ended, Pages, Pruned, Pruner, Upkeep, Weight


class Keeping(Protocol):
    # --- who does it, and by which rule ---

    def begin_upkeep(self, kind: Pruner, actor: str, note: dict[str, Any]) -> str | None:
        """A token for the run; None where another is at it. An operator takes it from a worker."""
        ...

    def end_upkeep(self, token: str, interrupted: bool) -> None:
        """Leaves the event, if the run has deleted something, or an operator asked for it."""
        ...

    def upkeep(self) -> Upkeep:
        """Who prunes now, and what the last one did."""
        ...

    def retention(self) -> str | None:
        """The policy, as JSON, of the last worker that had one."""
        ...

    def put_retention(self, text: str, actor: str, detail: dict[str, Any]) -> bool:
        """False if it was the same already."""
        ...

    # --- to find what may go ---

    def ended_after(self, status: str, after: Mark, until: Mark, limit: int) -> builtins.list[Ended]:
        """Those that ended in one way, in the order in which they did, from one place in that line up to another."""
        ...

    def doomed_chains(
        self, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()
    ) -> builtins.list[DoomedChain]:
        """Of these chains, those that may go. gone: jobs that are to be taken for deleted."""
        ...

    def edges_of(self, ids: Collection[int]) -> dict[int, set[int]]:
        """Which of these jobs waited for which chains."""
        ...

    def whole_jobs(self, ids: Collection[int]) -> Iterator[bytes]:
        """Each as a line of JSON, with its attempts, events and what it waited for."""
        ...

    # --- what would go, of whom nothing does ---

    def weigh(self, ids: Collection[int]) -> builtins.list[Weight]:
        """What would go with each of these jobs."""
        ...

    def callbacks_among(self, ids: Collection[int]) -> builtins.list[tuple[int, int]]:
        """Batches, and those of these jobs that were enqueued for them."""
        ...

    def fates_of_batches(self, batches: Collection[int]) -> builtins.list[BatchFate]:
        """Of those of these batches that are done."""
        ...

    def references_to(self, blobs: Collection[str]) -> dict[str, int]:
        """How many jobs refer to each of them."""
        ...

    def count_unused_blobs(self) -> int:
        """That no job refers to, as far as it is known."""
        ...

    def count_old(self, what: str, before: int) -> int:
        """what: minutes, failures, tracebacks or audit."""
        ...

    # --- succeeded, failed, cancelled -> gone ---

    def prune_alone(self, token: str, status: str, jobs: Sequence[Ended], counts: dict[str, int]) -> Pruned | None:
        """Jobs that have nothing to do with others, unless that has changed."""
        ...

    def prune_chains(
        self, token: str, chains: Sequence[DoomedChain], expiry: Expiry, counts: dict[str, int]
    ) -> Pruned | None:
        """Those of them that may go still, and have the same jobs."""
        ...

    def prune_end_of_chain(self, token: str, one: DoomedChain, limit: int, counts: dict[str, int]) -> Pruned | None:
        """Of a chain that is too long for one transaction, the last jobs; the first goes last."""
        ...

    def prune_history(
        self, token: str, job: int, status: str, finished_at: int, limit: int, counts: dict[str, int]
    ) -> Pruned | None:
        """Some of the events and attempts of a job that has a great many, before it goes itself."""
        ...

    # --- what belongs to no job ---

    def minutes_before(self, before: int) -> bool: ...

    def prune_minutes(self, token: str, before: int, limit: int, counts: dict[str, int]) -> Pruned | None: ...

    def failures_before(self, before: int, limit: int) -> builtins.list[Any]: ...

    def prune_failures(self, token: str, rows: Any, before: int, counts: dict[str, int]) -> Pruned | None: ...

    def tracebacks_after(self, after: str, before: int, limit: int) -> builtins.list[tuple[str, bool]]:
        """In order, and whether each is old and nothing leads to it."""
        ...

    def prune_tracebacks(self, token: str, rows: Any, before: int, counts: dict[str, int]) -> Pruned | None: ...

    def audit_before(self, before: int, limit: int) -> builtins.list[int]:
        """The oldest events that belong to no job."""
        ...

    def prune_audit(self, token: str, rows: Any, counts: dict[str, int]) -> Pruned | None: ...

    def batches_after(self, after: int, before: int, limit: int) -> builtins.list[tuple[int, bool]]:
        """In order, and whether each is done and has no members."""
        ...

    def prune_empty_batches(self, token: str, rows: Any, counts: dict[str, int]) -> Pruned | None: ...

    def prune_totals(self) -> int:
        """Of queues and tasks of which no ended job is left."""
        ...

    def collect_blobs(self, limit: int = 1000) -> int:
        """Delete what no job refers to, at most so many, a little at a time. Returns how many."""
        ...

    # --- space ---

    def pages(self) -> Pages:
        """How the file is filled."""
        ...

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        """Give so many free pages back to the system, or fewer, as time allows. Returns how many, and the seconds."""
        ...

    def vacuum(self, tick: Callable[[], None]) -> None:
        """Write the whole file anew. tick: called now and then; what it raises ends it, and nothing has happened."""
        ...

    def note_deed(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        """What an operator did to the database itself."""
        ...
