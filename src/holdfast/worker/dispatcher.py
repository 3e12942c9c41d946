"""The dispatcher: tracks the running attempts, settles the finished ones and claims new jobs.

There is no thread of its own for this. A pool thread without work settles all finished attempts and claims the next
jobs in one transaction. So an idle worker settles each attempt at once, and a busy one settles in large batches.

A worker claims as many jobs as it has free places. If jobs are short it claims more, up to what it can run within
50 ms, so that one transaction serves many jobs.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from time import monotonic, monotonic_ns

from msgspec import Struct
from msgspec.structs import replace

from ..clock import SECOND, Clock, boot_ns
from ..errors import CorruptDatabase, DamagedRow, InvalidInput, StoreClosed, StoreError
from ..failure import Failure, describe
from ..model.job import Claimed, ClaimRequest, SettledAndClaimed, Settlement
from ..store.protocol import Store
from ..text import plural
from ..validate import shown
from .attempt import Attempt, Handler
from .job_log import JobLog

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
            f", got {shown(part)}"
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
        raise InvalidInput(f"a queue name must have 1 to 200 printable characters, got {shown(name)}")
    return name


def _limit(limit: object, name: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise InvalidInput(f"the limit of queue {name!r} must be at least 1, got {shown(limit)}")


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


log = logging.getLogger("holdfast.worker")
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
IDLE_NS = 1_000_000_000


class Dispatcher:
    """The state that the pools of a worker share. All methods are thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        handlers: Mapping[str, Handler],
        job_log: JobLog,
        run_times: RunTimes,
        lease: int,
        claim_requests: Callable[[], list[ClaimRequest]],
        distribute: Callable[[list[Attempt], object], None],
        skipped: SkippedJobs,
    ) -> None:
        self._store, self._clock, self._handlers, self._job_log = store, clock, handlers, job_log
        self._run_times, self._claim_requests, self._distribute = run_times, claim_requests, distribute
        self.start_within_ns = lease * 1000 * 2 // 3  # of a claim or renewal
        self.held: set[Attempt] = set()  # claimed, and neither settled nor lost
        self.skipped = skipped
        self.active: set[Attempt] = set()  # running, or about to start
        self.unsettled: deque[tuple[Attempt, Settlement]] = deque()  # finished, not stored yet
        self._unsettleable: list[tuple[Attempt, Settlement]] = []  # the store raised an unexpected error for them
        self.rounds_begun = self.rounds_ended = 0  # of settling and claiming
        self.was_idle = True  # whether the worker was idle before the last claim
        self._last_claim_ns = 0
        self._oldest_unsettled_ns = 0  # when the first of `unsettled` finished
        self.fatal_error: StoreError | None = None  # the worker cannot continue
        self.lasting_error: StoreError | None = None  # the store has failed for seconds
        self.recoveries = 0  # how often the store worked again after an error
        self._lock = threading.Lock()
        self._backoff_seconds = 0.0
        self._retry_at = 0.0  # monotonic seconds: end of the backoff after a store error

    def start(self, attempt: Attempt) -> None:
        self.active.add(attempt)

    def finish(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Queue the attempt for settling. Returns False if it was settled already: timed out, or cancelled."""
        try:
            self.active.remove(attempt)  # atomic: if two threads try, only one succeeds
        except KeyError:
            return False
        if settlement.transition == "unfit" and self.skipped.add(attempt.claimed.id, settlement.delay):
            settlement = replace(settlement, delay=0)  # other workers may take it at once
        if not self.unsettled:
            self._oldest_unsettled_ns = monotonic_ns()
        if attempt.progress is not None:
            settlement = attempt.with_progress(settlement)
        self.unsettled.append((attempt, attempt.completed or settlement))
        return True

    def finish_with_error(self, attempt: Attempt, error: Exception) -> None:
        """Queue an attempt for a retry because of an error in the worker itself, unless it was settled already."""
        self.note_error(f"running {attempt.handler.name} {attempt.claimed.id}", error)
        failure = Failure("INTERNAL:ERROR", describe(error))
        lease, started_at, now = attempt.claimed.lease, attempt.started_at or None, self._clock.now()
        self.finish(attempt, Settlement(lease, "retry", started_at, now, delay=SECOND, failure=failure))

    def is_busy(self) -> bool:
        """Return whether an attempt is running, being settled or being claimed."""
        return len(self.held) > len(self._unsettleable) or self._lock.locked()

    def give_back_active(self, attempt: Attempt) -> None:
        """Give back an active attempt whose handler was not called, unless it was settled already."""
        with suppress(KeyError):
            self.active.remove(attempt)
            self.give_back(attempt)

    def give_back(self, attempt: Attempt) -> None:
        """Give back an attempt that was claimed but not started. Any worker may then claim the job."""
        self.active.add(attempt)
        self.finish(attempt, Settlement(attempt.claimed.lease, "give_back", None, self._clock.now()))

    def discard_active(self, attempt: Attempt) -> bool:
        """Remove an attempt that lost its lease, without settling it. Returns False if it has finished already."""
        try:
            self.active.remove(attempt)
        except KeyError:
            return False
        self.held.discard(attempt)
        return True

    def is_idle(self) -> bool:
        """Return whether nothing was claimed in the last second."""
        return monotonic_ns() - self._last_claim_ns > IDLE_NS

    def unsettled_age_ns(self) -> int:
        """Return for how long the oldest finished attempt has been waiting to be settled."""
        return monotonic_ns() - self._oldest_unsettled_ns if self.unsettled else 0

    def settle_and_claim(self, claimed_by: object) -> bool | None:
        """Settle finished attempts and claim new jobs, in one transaction. Returns whether any were claimed.

        Returns None if it did neither: another thread is doing it, or the store failed and the backoff is not over.
        claimed_by: the pool of the calling thread, which runs the first claimed job and need not be woken.
        """
        if self._retry_at and monotonic() < self._retry_at:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._settle_and_claim(claimed_by)
        finally:
            self._lock.release()

    def flush(self) -> None:
        """Settle what is left at shutdown. Waits for a thread that is settling, and ignores the backoff."""
        with self._lock:
            self._settle_and_claim(None)

    def retry_unsettleable(self) -> None:
        """Queue settlements again for which the store raised an unexpected error."""
        while self._unsettleable:
            self.unsettled.append(self._unsettleable.pop())

    def note_error(self, what: str, error: Exception) -> None:
        """Log an error that must not end the thread. If it is the database's, wait before the next try."""
        if isinstance(error, StoreError):
            self.back_off(error)
        else:
            self._job_log.error(what, error)

    def _settle_and_claim(self, claimed_by: object) -> bool | None:
        self.rounds_begun += 1
        try:
            return self._settle_all_and_claim(claimed_by)
        finally:
            self.rounds_ended = self.rounds_begun

    def _settle_all_and_claim(self, claimed_by: object) -> bool | None:
        unsettled = self.unsettled
        batch = [unsettled.popleft() for _ in range(len(unsettled))]
        try:
            settled = self._store.jobs.settle_and_claim(*_to_store(batch, self._claim_requests()))
        except StoreError as error:
            if isinstance(error, DamagedRow) and len(batch) > 1:
                self._settle_each(batch)
                return None
            self.unsettled.extendleft(reversed(batch))
            self.back_off(error)
            return None
        except Exception as error:  # noqa: BLE001  one bad settlement must not block the others
            self._job_log.error(f"storing {plural(len(batch), 'settlement')}; storing them one by one", error)
            self._settle_each(batch)
            return None
        self._reset_backoff()
        try:
            if batch:
                self._record(batch, settled)
        finally:
            claimed = self._hand_to_pools(settled.claimed, claimed_by)
        return claimed

    def _record(self, batch: list[tuple[Attempt, Settlement]], settled: SettledAndClaimed) -> None:
        """Measure and log what was settled. Whatever goes wrong here, it is settled."""
        self.held.difference_update([attempt for attempt, _ in batch])
        try:
            self._run_times.measure(batch)
            if settled.otherwise:
                batch = [(attempt, settled.instead_of(settlement)) for attempt, settlement in batch]
            self._job_log.settled(batch, set(map(id, settled.lost)))
        except Exception as error:  # noqa: BLE001  a measurement or a log line is not worth a job
            self._job_log.error("logging settlements", error)

    def _hand_to_pools(self, claimed: list[Claimed], claimed_by: object) -> bool:
        if claimed:
            now = monotonic_ns()
            self.was_idle = now - self._last_claim_ns > IDLE_NS
            self._last_claim_ns = now
            handlers, start_until = self._handlers, boot_ns() + self.start_within_ns
            attempts = [Attempt(one, handlers[one.task or ""], now, start_until) for one in claimed]
            self.held.update(attempts)
            self._distribute(attempts, claimed_by)
        return bool(claimed)

    def back_off(self, error: StoreError) -> None:
        """Wait before the next try. Finished attempts stay in memory: a full disk or a held lock may be temporary."""
        if isinstance(error, (CorruptDatabase, StoreClosed)):
            self.fatal_error = error
        if not self._backoff_seconds:
            log.warning("cannot write to the database, will retry; finished jobs are kept in memory (%s)", error)
        self._backoff_seconds = min(self._backoff_seconds * 2 or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._retry_at = monotonic() + self._backoff_seconds
        self.lasting_error = error if self._backoff_seconds >= MAX_BACKOFF_SECONDS else None

    def _reset_backoff(self) -> None:
        if self._backoff_seconds:
            log.warning("the database is writable again")
            self._backoff_seconds = self._retry_at = 0.0
            self.lasting_error = None
            self.recoveries += 1

    def _settle_each(self, batch: list[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch:
            try:
                self._settle_one(attempt, settlement)
            except StoreError:
                self.unsettled.append((attempt, settlement))
            except Exception as error:  # noqa: BLE001  one bad settlement must not block the others
                self._fail_instead(attempt, settlement, error)

    def _settle_one(self, attempt: Attempt, settlement: Settlement) -> None:
        one = [(attempt, settlement)]
        self._record(one, self._store.jobs.settle_and_claim(*_to_store(one, [])))

    def _fail_instead(self, attempt: Attempt, settlement: Settlement, error: Exception) -> None:
        """Fail a job whose settlement cannot be stored. If that cannot be stored either, try again later."""
        failure = Failure("INTERNAL:NOT_SETTLED", f"{settlement.transition}: {describe(error)}")
        instead = Settlement(settlement.lease, "fail", settlement.started_at, settlement.finished_at, failure=failure)
        try:
            self._settle_one(attempt, instead)
        except StoreError:
            self.unsettled.append((attempt, settlement))
        except Exception as error:  # noqa: BLE001  the last resort must not end the thread
            self._unsettleable.append((attempt, settlement))
            self._job_log.error(f"job {settlement.lease.id} cannot be settled; trying again later", error)


def _to_store(
    batch: list[tuple[Attempt, Settlement]], claim_requests: list[ClaimRequest]
) -> tuple[list[Settlement], list[ClaimRequest]]:
    """Return the arguments for the store. Attempts that ctx.complete() has already settled are left out."""
    return [settlement for attempt, settlement in batch if attempt.completed is None], claim_requests
