"""Decide how many jobs to claim next, and from which queues.

A worker claims as many jobs as it has free places. If jobs are short it claims more, up to what it can run within
50 ms, so that one transaction serves many jobs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from time import monotonic_ns

from msgspec import Struct

from ..errors import InvalidInput
from ..failure import shorten
from ..model.job import ClaimRequest, Settlement
from ..validate import shown
from .attempt import Attempt

SHORT_SECONDS = 0.001
PREFETCH_SECONDS = 0.05
ASSUMED_SECONDS = 1.0  # for a task that has not run yet
WEIGHT = 0.1  # of a new measurement in the moving average
SAMPLES = 20  # measured attempts of a batch


class RunTimes:
    """Moving averages of run times: of each task, and of all of them."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._mean = ASSUMED_SECONDS

    def measure(self, batch: Sequence[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch[:: 1 + len(batch) // SAMPLES]:
            if attempt.started_ns:
                took = (settlement.finished_at - attempt.started_at) / 1e6
                name = attempt.handler.name
                known = self._seconds.get(name)
                # Limited, so that one outlier, as on a busy machine, does not change the average much.
                self._seconds[name] = took if known is None else known + WEIGHT * (min(took, 10 * known) - known)
                if attempt.handler.kind != "process":
                    self._mean += WEIGHT * (took - self._mean)

    def is_short(self, task: str) -> bool:
        return self._seconds.get(task, ASSUMED_SECONDS) < SHORT_SECONDS

    def prefetch_count(self, places: int) -> int:
        """Return how many jobs can be run in this many places within PREFETCH_SECONDS."""
        return int(places * PREFETCH_SECONDS / max(self._mean, 1e-6))


MAX_SKIPPED = 500


class SkippedJobs:
    """Jobs whose payload does not fit this worker's code. It leaves them to other workers for a while.

    All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._until: dict[int, int] = {}  # monotonic nanoseconds

    def add(self, job_id: int, delay: int) -> bool:
        """Skip a job for a time in microseconds. Returns False if there are too many."""
        if len(self._until) >= MAX_SKIPPED:
            return False
        self._until[job_id] = monotonic_ns() + delay * 1000
        return True

    def ids(self) -> Collection[int]:
        return tuple(self._until)

    def forget_due(self) -> bool:
        """Forget the jobs whose time is over, so that they are claimed again. Returns whether there were any."""
        now = monotonic_ns()
        due = [job_id for job_id, until in list(self._until.items()) if until <= now]
        for job_id in due:
            self._until.pop(job_id, None)
        return bool(due)


_QUEUE = re.compile(r"(?P<name>[^*=,]+)(\*(?P<weight>[0-9]{1,6}))?(=(?P<limit>[0-9]{1,6}))?")


class ServedQueue(Struct, frozen=True):
    """A queue that a worker serves."""

    name: str
    limit: int | None = None
    """The maximum number of its jobs that the worker runs at a time."""
    weight: int | None = None
    """How often it is served first, relative to the others. Without weights, queues are served as listed."""


Queues = str | Sequence[str | ServedQueue] | Mapping[str, int | None]


def parse_queues(queues: Queues | None) -> tuple[ServedQueue, ...] | None:
    """Parse `"mail=4,default"`, `"critical*5,bulk"`, a list of such, or a dict of limits. None: all queues."""
    if queues is None:
        return None
    if isinstance(queues, Mapping):
        served = [ServedQueue(_name(name), _limit(limit, name)) for name, limit in queues.items()]
    else:
        if not isinstance(queues, Iterable):
            raise InvalidInput(f"queues must be text, a list or a dict, like 'mail=4,default', got {shown(queues)}")
        parts = queues.split(",") if isinstance(queues, str) else list(queues)
        served = [part if isinstance(part, ServedQueue) else _parse(part) for part in parts]
    names = [queue.name for queue in served]
    if not names:
        raise InvalidInput("queues must name at least one queue: omit it to serve all queues")
    if len(set(names)) < len(names):
        raise InvalidInput(f"queues must name each queue once, got {', '.join(names)}")
    return tuple(served)


def in_serving_order(queues: Sequence[ServedQueue], random: Random) -> list[ServedQueue]:
    """Return the queues in the order to serve them: as listed, or random by weight if there are weights."""
    if all(queue.weight is None for queue in queues):
        return list(queues)
    # The probability that a queue has the smallest key is proportional to its weight.
    keys = {queue.name: random.expovariate(1.0) / (queue.weight or 1) for queue in queues}
    return sorted(queues, key=lambda queue: keys[queue.name])


def _parse(part: object) -> ServedQueue:
    match = _QUEUE.fullmatch(part.strip()) if isinstance(part, str) else None
    if match is None:
        raise InvalidInput(
            "queues must contain names like 'mail', 'mail=4' (at most 4 at a time), 'mail*3' (weight 3) or 'mail*3=4'"
            f", got {shorten(repr(part), 100)}"
        )
    weight = match["weight"]
    if weight is not None and int(weight) == 0:
        raise InvalidInput(f"the weight of a queue must be at least 1, got {part!r}")
    limit = match["limit"]
    return ServedQueue(
        _name(match["name"].strip()),
        None if limit is None else _limit(int(limit), match["name"]),
        None if weight is None else int(weight),
    )


def _name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidInput(f"a queue name must have 1 to 200 printable characters, got {shorten(repr(name), 100)}")
    return name


def _limit(limit: object, name: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise InvalidInput(f"the limit of queue {name!r} must be at least 1, got {shorten(repr(limit), 100)}")


MAX_BATCH = 400
NO_LIMIT = 2**31


class ClaimPlanner:
    """Plans the claims of one pool.

    tasks: the tasks that run there, and versions: of those that have one. size: how many may run at a time.
    skipped: jobs not to claim. prefetch: whether to claim short jobs ahead.
    """

    def __init__(
        self,
        tasks: Collection[str],
        size: int,
        queues: Sequence[ServedQueue] | None,
        run_times: RunTimes,
        random: Random,
        versions: Mapping[str, int],
        skipped: SkippedJobs,
        prefetch: bool = True,
    ) -> None:
        self._tasks, self._size, self._queues, self._versions, self._skipped = tasks, size, queues, versions, skipped
        self._run_times, self._random, self._prefetch = run_times, random, prefetch
        self._limited = queues is not None and any(queue.limit is not None for queue in queues)

    def request(
        self, running: int, slow: int, waiting: int, held: Callable[[], Iterable[Attempt]], lease: int, worker: str
    ) -> ClaimRequest | None:
        """Return what to claim now, or None.

        running: attempts in the pool, of which `slow` are not short. waiting: claimed but not started.
        held: returns all attempts of the worker.
        """
        limit = self._size - running - waiting
        free = self._size - slow
        if self._prefetch and free > 0:
            limit += max(0, min(self._run_times.prefetch_count(free), MAX_BATCH) - waiting)
        if limit <= 0 or not self._tasks:
            return None
        limit = min(limit, MAX_BATCH)
        return ClaimRequest(
            self._tasks,
            limit,
            lease,
            worker,
            self._queue_limits(held),
            versions=self._versions,
            skip=self._skipped.ids(),
        )

    def _queue_limits(self, held: Callable[[], Iterable[Attempt]]) -> list[tuple[str, int]] | None:
        if self._queues is None:
            return None
        used = Counter(attempt.claimed.queue for attempt in held()) if self._limited else Counter()
        return [
            (queue.name, NO_LIMIT if queue.limit is None else max(0, queue.limit - used[queue.name]))
            for queue in in_serving_order(self._queues, self._random)
        ]
