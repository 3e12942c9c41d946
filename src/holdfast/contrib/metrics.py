"""What is measured, under which names, and how it is read: the same for Prometheus and for OpenTelemetry."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from .. import fold, validate
from ..clock import SECOND
from ..errors import InvalidInput
from ..histogram import BOUNDS, cumulative
from ..model.stats import Totals
from ..supervisor import Holdfast

MOST_PLACES = 500
HIGHEST_PLACES = 1_000_000
MOST_CODES = 200
OTHERS = "_others"
RETRIES = ("retry_scheduled", "recovered")
BOUNDS_SECONDS = tuple(bound / SECOND for bound in BOUNDS)
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
    """How many were shorter than each of BOUNDS_SECONDS, and how many there were; and their sum."""

    counts: list[int]
    sum: float


class Measurement:
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
        raise InvalidInput(f"app is a Holdfast, not {validate.shown(value)}")


def require_places(value: Any) -> None:
    validate.integer(value, "most_places", 1, HIGHEST_PLACES)


class MetricsReader:
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

    def read(self) -> Measurement:
        reading = Measurement()
        self._read_jobs(reading)
        self._read_totals(reading)
        self._read_workers(reading)
        storage = self._app.observe.storage()
        reading.put(DATABASE, storage.database_bytes)
        reading.put(UNUSED, storage.free_bytes_in_file)
        reading.put(WAL, storage.wal_bytes)
        reading.put(DISK, storage.disk_free_bytes)
        return reading

    def _read_jobs(self, reading: Measurement) -> None:
        store, now = self._app.store, self._app.clock.now()
        with store.snapshot():
            counts, oldest = store.statistics.counts(), store.statistics.oldest(-1, ("ready",))
        for one in counts.items:
            queue, task = self._places.of((one.queue, one.task or ""))
            if one.count is not None:
                reading.add(JOBS, one.count, one.status, queue, task)
            reading.put(OLDEST, 0, self._queues.of(one.queue))
        for waiting in sorted(oldest, key=lambda one: -one.since):
            reading.put(OLDEST, max(0.0, (now - waiting.since) / SECOND), self._queues.of(waiting.queue))
        for (name,) in reading.values[OLDEST.name]:
            reading.put(PAUSED, 0, name)
        for name, is_paused in counts.paused.items():
            if is_paused:
                reading.put(PAUSED, 1, self._queues.of(name))

    def _read_totals(self, reading: Measurement) -> None:
        found = self._app.store.statistics.totals()
        reading.put(ENQUEUED, found.enqueued)
        for (queue, task, outcome), n in found.outcomes.items():
            place = self._places.of((queue, task))
            reading.add(ATTEMPTS, n, *place, outcome)
            if outcome in RETRIES:
                reading.add(RETRIED, n, *place)
        for (code, queue, task), n in found.errors.items():
            reading.add(FAILURES, n, *self._places.of((queue, task)), self._codes.of(code))
        for name, measure in ((RUN.name, fold.RUN), (WAIT.name, fold.WAIT)):
            reading.histograms[name] = self._histograms(found, measure)

    def _histograms(self, found: Totals, measure: str) -> dict[Labels, Histogram]:
        buckets: dict[Place, Counter[int]] = {}
        sums: Counter[Place] = Counter()
        for (queue, task, what), counts in found.histograms.items():
            if what == measure:
                place = self._places.of((queue, task))
                buckets.setdefault(place, Counter()).update(counts)
                sums[place] += found.durations[queue, task, what]
        return {place: Histogram(cumulative(counts), sums[place] / SECOND) for place, counts in buckets.items()}

    def _read_workers(self, reading: Measurement) -> None:
        present = [one for one in self._app.store.workers.list() if one.is_present]
        stopped = sum(one.presence == "stopped" for one in present)
        reading.put(WORKERS, len(present) - stopped, "alive")
        reading.put(WORKERS, stopped, "stopped")
        reading.put(CAPACITY, sum(one.record.concurrency for one in present))
        reading.put(TAKEN, sum(one.running for one in present))


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
