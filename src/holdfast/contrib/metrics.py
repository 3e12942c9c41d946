"""The metrics of a database: names, help texts, and how they are read. Shared by Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from .. import fold, validate
from ..clock import SECOND
from ..errors import InvalidInput
from ..fold import BOUNDS, cumulative
from ..model.stats import Totals
from ..supervisor import Holdfast

MOST_PLACES = 500
HIGHEST_PLACES = 1_000_000
MAX_CODES = 200
OTHERS = "_others"
RETRIES = ("retry_scheduled", "recovered")
BOUNDS_SECONDS = tuple(bound / SECOND for bound in BOUNDS)
T = TypeVar("T")
Place = tuple[str, str]
"""A queue and a task. The task of messages is ''."""
Labels = tuple[str, ...]


class Metric(Struct, frozen=True):
    name: str  # without the suffix _total of counters
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: Labels = ()
    unit: str = "1"  # in the notation of OpenTelemetry


PLACE = ("queue", "task")
JOBS = Metric("holdfast_jobs", "gauge", "Jobs and messages, by state.", ("state", *PLACE))
OLDEST = Metric(
    "holdfast_oldest_ready_age_seconds",
    "gauge",
    "Time since the oldest ready job of a queue became due; 0 if none is ready.",
    ("queue",),
    "s",
)
PAUSED = Metric("holdfast_queue_paused", "gauge", "1 if the queue is paused.", ("queue",))
ENQUEUED = Metric("holdfast_enqueued", "counter", "Jobs and messages ever enqueued.")
ATTEMPTS = Metric("holdfast_attempts", "counter", "Finished attempts, by outcome.", (*PLACE, "outcome"))
RETRIED = Metric("holdfast_retries", "counter", "Attempts that failed or were lost, and are retried.", PLACE)
FAILURES = Metric("holdfast_failures", "counter", "Failed attempts and jobs, by error code.", (*PLACE, "code"))
RUN = Metric("holdfast_attempt_run_seconds", "histogram", "Run time of attempts.", PLACE, "s")
WAIT = Metric("holdfast_attempt_wait_seconds", "histogram", "Time from due to start of attempts.", PLACE, "s")
WORKERS = Metric("holdfast_workers", "gauge", "Live workers, by state.", ("state",))
CAPACITY = Metric("holdfast_worker_capacity", "gauge", "Jobs that the live workers can run at the same time.")
CLAIMED = Metric("holdfast_worker_jobs", "gauge", "Jobs that the live workers have claimed.")
DATABASE = Metric("holdfast_database_bytes", "gauge", "Size of the database file.", unit="By")
UNUSED = Metric(
    "holdfast_database_unused_bytes", "gauge", "Free space in the database file, returned by a vacuum.", unit="By"
)
WAL = Metric("holdfast_wal_bytes", "gauge", "Size of the write-ahead log.", unit="By")
DISK = Metric("holdfast_disk_free_bytes", "gauge", "Free space on the disk of the database.", unit="By")
METRICS = (
    JOBS, OLDEST, PAUSED, ENQUEUED, ATTEMPTS, RETRIED, FAILURES, RUN, WAIT, WORKERS, CAPACITY, CLAIMED, DATABASE,
    UNUSED, WAL, DISK,
)  # fmt: skip


class Histogram(Struct, frozen=True):
    """Cumulative counts for each of BOUNDS_SECONDS and in total, and the sum in seconds."""

    counts: list[int]
    sum: float


class Reading:
    """The values of all metrics, by name and labels."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {one.name: {} for one in METRICS}
        self.histograms: dict[str, dict[Labels, Histogram]] = {RUN.name: {}, WAIT.name: {}}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        self.values[metric.name][labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        values = self.values[metric.name]
        values[labels] = values.get(labels, 0) + value


def require_app(value: Any) -> None:
    if not isinstance(value, Holdfast):
        raise InvalidInput(f"app must be a Holdfast, got {validate.shown(value)}")


def require_places(value: Any) -> None:
    validate.integer(value, "most_places", 1, HIGHEST_PLACES)


class MetricsReader:
    """Reads the metrics from the store, with a few short reads.

    Pairs of queue and task beyond the first `most_places` are counted together as _others.
    """

    def __init__(self, app: Holdfast, most_places: int = MOST_PLACES) -> None:
        require_app(app)
        require_places(most_places)
        self._app = app
        self._places = _SeriesLimit[Place](most_places, (OTHERS, OTHERS))
        self._queues = _SeriesLimit[str](most_places, OTHERS)
        self._codes = _SeriesLimit[str](MAX_CODES, OTHERS)

    def read(self) -> Reading:
        reading = Reading()
        self._read_jobs(reading)
        self._read_totals(reading)
        self._read_workers(reading)
        storage = self._app.observe.storage()
        reading.put(DATABASE, storage.database_bytes)
        reading.put(UNUSED, storage.free_bytes_in_file)
        reading.put(WAL, storage.wal_bytes)
        reading.put(DISK, storage.disk_free_bytes)
        return reading

    def _read_jobs(self, reading: Reading) -> None:
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

    def _read_totals(self, reading: Reading) -> None:
        found = self._app.store.statistics.totals()
        reading.put(ENQUEUED, found.enqueued)
        for (queue, task, outcome), n in sorted(found.outcomes.items()):
            place = self._places.of((queue, task))
            reading.add(ATTEMPTS, n, *place, outcome)
            if outcome in RETRIES:
                reading.add(RETRIED, n, *place)
        for (code, queue, task), n in sorted(found.errors.items()):
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

    def _read_workers(self, reading: Reading) -> None:
        present = [one for one in self._app.store.workers.list() if one.is_present]
        suspended = sum(one.state == "suspended" for one in present)
        reading.put(WORKERS, len(present) - suspended, "alive")
        reading.put(WORKERS, suspended, "suspended")
        reading.put(CAPACITY, sum(one.record.concurrency for one in present))
        reading.put(CLAIMED, sum(one.running for one in present))


class _SeriesLimit(Generic[T]):
    """Limits the number of series: names after the first ones are counted as others.

    A name keeps its series, so that counters never decrease.
    """

    def __init__(self, limit: int, others: T) -> None:
        self._limit, self._others = limit, others
        self._names: set[T] = set()

    def of(self, name: T) -> T:
        if name in self._names:
            return name
        if len(self._names) >= self._limit:
            return self._others
        self._names.add(name)
        return name
