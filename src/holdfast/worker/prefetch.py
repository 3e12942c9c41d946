"""How much to take next: as many as can begin soon, of the tasks and queues that this worker serves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random

from msgspec import Struct

from ..errors import InvalidInput
from ..failure import shorten
from ..model.job import ClaimRequest, Settlement
from .attempt import Attempt

SHORT_SECONDS = 0.001
WORK_AHEAD_SECONDS = 0.05
UNKNOWN_SECONDS = 1.0
WEIGHT = 0.1  # of the newest measurement
SAMPLES = 20  # measurements of a batch


class RunTimes:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._mean = UNKNOWN_SECONDS

    def measure(self, batch: Sequence[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch[:: 1 + len(batch) // SAMPLES]:
            if attempt.began:
                took = (settlement.finished_at - attempt.started_at) / 1e6
                name = attempt.handler.name
                known = self._seconds.get(name)
                # One that was slow by chance, since the machine did something else, says little.
                self._seconds[name] = took if known is None else known + WEIGHT * (min(took, 10 * known) - known)
                if attempt.handler.kind != "process":
                    self._mean += WEIGHT * (took - self._mean)

    def is_short(self, task: str) -> bool:
        return self._seconds.get(task, UNKNOWN_SECONDS) < SHORT_SECONDS

    def ahead(self, runners: int) -> int:
        """How many jobs so many free runners do in the time that a job may wait after it was taken."""
        return int(runners * WORK_AHEAD_SECONDS / max(self._mean, 1e-6))


_WRITTEN = re.compile(r"(?P<name>[^*=,]+)(\*(?P<weight>[0-9]{1,6}))?(=(?P<limit>[0-9]{1,6}))?")


class ServedQueue(Struct, frozen=True):
    name: str
    limit: int | None = None
    """At most so many of its jobs at a time."""
    weight: int | None = None
    """How often it comes first, compared with the others; without weights they are served in order."""


Queues = str | Sequence[str | ServedQueue] | Mapping[str, int | None]


def parse_queues(queues: Queues | None) -> tuple[ServedQueue, ...] | None:
    """`"mail=4,default"`, `"critical*5,bulk"`, a list of such, or a dict from names to limits. None: all queues."""
    if queues is None:
        return None
    if isinstance(queues, Mapping):
        served = [ServedQueue(_name(name), _limit(limit, name)) for name, limit in queues.items()]
    else:
        parts = queues.split(",") if isinstance(queues, str) else list(queues)
        served = [part if isinstance(part, ServedQueue) else _parse(part) for part in parts]
    names = [queue.name for queue in served]
    if not names:
        raise InvalidInput("queues names no queue: leave it out to serve all of them")
    if len(set(names)) < len(names):
        raise InvalidInput(f"queues names one of them twice: {', '.join(names)}")
    return tuple(served)


def in_order(queues: Sequence[ServedQueue], random: Random) -> list[ServedQueue]:
    """As listed; or by chance, where weights are given: the heavier, the earlier."""
    if all(queue.weight is None for queue in queues):
        return list(queues)
    # The smallest of these keys is this one's with a probability in proportion to its weight.
    keys = {queue.name: random.expovariate(1.0) / (queue.weight or 1) for queue in queues}
    return sorted(queues, key=lambda queue: keys[queue.name])


def _parse(part: object) -> ServedQueue:
    match = _WRITTEN.fullmatch(part.strip()) if isinstance(part, str) else None
    if match is None:
        raise InvalidInput(
            f"queues has {shorten(repr(part), 100)}: write 'mail', 'mail=4' for at most 4 at a time, 'mail*3' for a "
            "weight of 3, or 'mail*3=4' for both"
        )
    weight = match["weight"]
    if weight is not None and int(weight) == 0:
        raise InvalidInput(f"queues has {part!r}: a weight is at least 1")
    limit = match["limit"]
    return ServedQueue(
        _name(match["name"].strip()),
        None if limit is None else _limit(int(limit), match["name"]),
        None if weight is None else int(weight),
    )


def _name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidInput(f"a queue name has 1 to 200 printable characters, not {shorten(repr(name), 100)}")
    return name


def _limit(limit: object, name: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise InvalidInput(f"the limit of queue {name!r} is at least 1, not {shorten(repr(limit), 100)}")


LARGEST_BATCH = 400
NO_LIMIT = 2**31


class Prefetch:
    """For one kind of runner: its tasks, and how many may run at a time."""

    def __init__(
        self,
        tasks: Collection[str],
        size: int,
        queues: Sequence[ServedQueue] | None,
        run_times: RunTimes,
        random: Random,
        ahead: bool = True,
    ) -> None:
        self._tasks, self._size, self._queues = tasks, size, queues
        self._run_times, self._random, self._ahead = run_times, random, ahead
        self._limited = queues is not None and any(queue.limit is not None for queue in queues)

    def wanted(
        self, running: int, slow: int, waiting: int, held: Callable[[], Iterable[Attempt]], lease: int, worker: str
    ) -> ClaimRequest | None:
        """running, of which `slow` have not been short; waiting to begin. `held` gives all of these."""
        limit = self._size - running - waiting
        free = self._size - slow
        if self._ahead and free > 0:
            limit += max(0, min(self._run_times.ahead(free), LARGEST_BATCH) - waiting)
        if limit <= 0 or not self._tasks:
            return None
        limit = min(limit, LARGEST_BATCH)
        return ClaimRequest(self._tasks, limit, lease, worker, self._shares(held))

    def _shares(self, held: Callable[[], Iterable[Attempt]]) -> list[tuple[str, int]] | None:
        if self._queues is None:
            return None
        used = Counter(attempt.claimed.queue for attempt in held()) if self._limited else Counter()
        return [
            (queue.name, NO_LIMIT if queue.limit is None else max(0, queue.limit - used[queue.name]))
            for queue in in_order(self._queues, self._random)
        ]
