"""What is measured, under which names, and how it is read: the same for Prometheus and for OpenTelemetry."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from .. import rollup
from ..app import checks
from ..clock import SECOND
from ..errors import InvalidInput
from ..process import Holdfast
from ..tally import ABOVE_ALL, BOUNDS, ERROR, Tally

MOST_PLACES = 500
HIGHEST_PLACES = 1_000_000
MOST_CODES = 200
OTHERS = "_others"

RETRIES = ("retry_scheduled", "recovered")

BOUNDS_SECONDS = tuple(bound / SECOND for bound in BOUNDS if bound != ABOVE_ALL)

T = TypeVar("T")

Place = tuple[str, str]
Labels = tuple[str, ...]


class Measure(Struct, frozen=True):
    name: str  # without the _total of counters
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: Labels = ()
    unit: str = "1"  # as OpenTelemetry writes it


JOBS = Measure("holdfast_jobs", "gauge", "Jobs and messages, by state.", ("state", "queue", "task"))
OLDEST = Measure(
    "holdfast_oldest_ready_age_seconds",
    "gauge",
    "For how long the first of a queue's ready jobs has been due; 0 if none is ready.",
    ("queue",),
    "s",
)
PAUSED = Measure("holdfast_queue_paused", "gauge", "1 for a queue that is paused.", ("queue",))
ENQUEUED = Measure("holdfast_enqueued", "counter", "Jobs and messages that were ever enqueued.")
ATTEMPTS = Measure(
    "holdfast_attempts", "counter", "Attempts that ended, by how they ended.", ("queue", "task", "outcome")
)
RETRIED = Measure(
    "holdfast_retries", "counter", "Attempts that failed or were lost, with another one to come.", ("queue", "task")
)
FAILURES = Measure(
    "holdfast_failures", "counter", "Attempts and jobs that failed, by error code.", ("queue", "task", "code")
)
RUN = Measure(
    "holdfast_attempt_run_seconds", "histogram", "For how long attempts ran.", ("queue", "task"), "s"
)  # fmt: skip
WAIT = Measure(
    "holdfast_attempt_wait_seconds",
    "histogram",
    "For how long attempts waited, from when they were due to when they began.",
    ("queue", "task"),
    "s",
)
WORKERS = Measure("holdfast_workers", "gauge", "Workers whose process is there, by state.", ("state",))
CAPACITY = Measure("holdfast_worker_capacity", "gauge", "How many jobs these workers run at a time, together.")
TAKEN = Measure("holdfast_worker_jobs", "gauge", "Jobs that these workers have taken.")
DATABASE = Measure("holdfast_database_bytes", "gauge", "Size of the database file.", unit="By")
UNUSED = Measure(
    "holdfast_database_unused_bytes", "gauge", "Of the database file, what a vacuum would give back.", unit="By"
)
WAL = Measure("holdfast_wal_bytes", "gauge", "Size of the write-ahead log.", unit="By")
DISK = Measure("holdfast_disk_free_bytes", "gauge", "Room left on the disk of the database.", unit="By")

MEASURES = (
    JOBS, OLDEST, PAUSED, ENQUEUED, ATTEMPTS, RETRIED, FAILURES, RUN, WAIT, WORKERS, CAPACITY, TAKEN, DATABASE,
    UNUSED, WAL, DISK,
)  # fmt: skip


class Histogram(Struct, frozen=True):
    """How many were at most as long as each of BOUNDS_SECONDS, and how many there were; and their sum."""

    counts: list[int]
    sum: float


class Reading:
    """All measures at one time: of each, the values by the values of its labels."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {one.name: {} for one in MEASURES}
        self.histograms: dict[str, dict[Labels, Histogram]] = {RUN.name: {}, WAIT.name: {}}

    def put(self, measure: Measure, value: float, *labels: str) -> None:
        self.values[measure.name][labels] = value

    def add(self, measure: Measure, value: float, *labels: str) -> None:
        values = self.values[measure.name]
        values[labels] = values.get(labels, 0) + value


def require_app(value: Any) -> None:
    if not isinstance(value, Holdfast):
        raise InvalidInput(f"app is a Holdfast, not {checks.shown(value)}")


def require_places(value: Any) -> None:
    checks.integer(value, "most_places", 1, HIGHEST_PLACES)


class Reader:
    """Reads them from the store. Each reading is a handful of short reads.

    Names that come up when there are `most_places` of them already are counted together, as _others.
    """

    def __init__(self, app: Holdfast, most_places: int = MOST_PLACES) -> None:
        require_app(app)
        require_places(most_places)
        self._app = app
        self._places = _Known[Place](most_places, (OTHERS, OTHERS))
        self._queues = _Known[str](most_places, OTHERS)
        self._codes = _Known[str](MOST_CODES, OTHERS)

    def read(self) -> Reading:
        reading = Reading()
        self._read_jobs(reading)
        self._read_tallies(reading)
        self._read_workers(reading)
        storage = self._app.observe.storage()
        reading.put(DATABASE, storage.database_bytes)
        reading.put(UNUSED, storage.free_bytes_in_file)
        reading.put(WAL, storage.wal_bytes)
        reading.put(DISK, storage.disk_free_bytes)
        return reading

    def _read_jobs(self, reading: Reading) -> None:
        store, now = self._app.store, self._app.clock.now()
        counts = store.counts()
        for one in counts:
            queue, task = self._places.of((one.queue, one.task or ""))
            reading.add(JOBS, one.count, one.status, queue, task)
            reading.put(OLDEST, 0, self._queues.of(one.queue))
        for waiting in reversed(store.longest_ready()):
            reading.put(OLDEST, max(0.0, (now - waiting.since) / SECOND), self._queues.of(waiting.queue))

    def _read_tallies(self, reading: Reading) -> None:
        found = self._app.store.tallies()
        reading.put(ENQUEUED, found.enqueued)
        for (name,) in reading.values[OLDEST.name]:
            reading.put(PAUSED, 0, name)
        for name in found.paused:
            reading.put(PAUSED, 1, self._queues.of(name))
        sums = {rollup.RUN: _Sums(), rollup.WAIT: _Sums()}
        for one in found.rows:
            place = self._places.of((one.queue, one.task))
            if one.what.startswith(ERROR):
                reading.add(FAILURES, one.count, *place, self._codes.of(one.what.removeprefix(ERROR)))
            elif one.what in sums:
                sums[one.what].add(place, one)
            else:
                reading.add(ATTEMPTS, one.count, *place, one.what)
                if one.what in RETRIES:
                    reading.add(RETRIED, one.count, *place)
        reading.histograms[RUN.name] = sums[rollup.RUN].histograms()
        reading.histograms[WAIT.name] = sums[rollup.WAIT].histograms()

    def _read_workers(self, reading: Reading) -> None:
        store = self._app.store
        living = store.live_workers()
        taken = store.running_by_worker()
        stopped = sum(one.is_stopped for one in living)
        reading.put(WORKERS, len(living) - stopped, "alive")
        reading.put(WORKERS, stopped, "stopped")
        reading.put(CAPACITY, sum(one.record.concurrency for one in living))
        reading.put(TAKEN, sum(taken.get(one.record.id, 0) for one in living))


class _Sums:
    """Of one histogram, at each place."""

    def __init__(self) -> None:
        self._counts: dict[Place, Counter[int]] = {}
        self._totals: Counter[Place] = Counter()

    def add(self, place: Place, one: Tally) -> None:
        self._counts.setdefault(place, Counter())[one.upto] += one.count
        self._totals[place] += one.total

    def histograms(self) -> dict[Labels, Histogram]:
        return {
            place: Histogram(list(accumulate(counts[bound] for bound in BOUNDS)), self._totals[place] / SECOND)
            for place, counts in self._counts.items()
        }


class _Known(Generic[T]):
    """The first so many names that came up; the rest are one. A name is never moved, or counters would jump."""

    def __init__(self, most: int, others: T) -> None:
        self._most, self._others = most, others
        self._names: set[T] = set()

    def of(self, name: T) -> T:
        if name in self._names:
            return name
        if len(self._names) >= self._most:
            return self._others
        self._names.add(name)
        return name
