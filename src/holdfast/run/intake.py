"""How much to take next: as many as can begin soon, of the tasks and queues that this worker serves."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random

from ..model import Wanted
from .attempt import Attempt
from .queues import ServedQueue, in_order
from .speeds import Speeds

LARGEST_BATCH = 200
NO_LIMIT = 2**31


class Intake:
    """For one kind of runner: its tasks, and how many may run at a time."""

    def __init__(
        self,
        tasks: Collection[str],
        size: int,
        queues: Sequence[ServedQueue] | None,
        speeds: Speeds,
        random: Random,
        ahead: bool = True,
    ) -> None:
        self._tasks, self._size, self._queues = tasks, size, queues
        self._speeds, self._random, self._ahead = speeds, random, ahead
        self._limited = queues is not None and any(queue.limit is not None for queue in queues)

    def wanted(
        self, running: int, slow: int, waiting: int, held: Callable[[], Iterable[Attempt]], lease: int, worker: str
    ) -> Wanted | None:
        """running, of which `slow` have not been short; waiting to begin. `held` gives all of these."""
        limit = self._size - running - waiting
        free = self._size - slow
        if self._ahead and free > 0:
            limit += max(0, min(self._speeds.ahead(free), LARGEST_BATCH) - waiting)
        if limit <= 0 or not self._tasks:
            return None
        limit = min(limit, LARGEST_BATCH)
        return Wanted(self._tasks, limit, lease, worker, self._shares(held))

    def _shares(self, held: Callable[[], Iterable[Attempt]]) -> list[tuple[str, int]] | None:
        if self._queues is None:
            return None
        used = Counter(attempt.claimed.queue for attempt in held()) if self._limited else Counter()
        return [
            (queue.name, NO_LIMIT if queue.limit is None else max(0, queue.limit - used[queue.name]))
            for queue in in_order(self._queues, self._random)
        ]
