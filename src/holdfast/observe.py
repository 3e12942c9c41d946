"""`app.observe`: counts, oldest jobs, attempts, failures, workers, rates, sizes, retention and the event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from . import validate
from .clock import SECOND, Clock, as_datetime, as_microseconds, with_datetimes, with_times
from .errors import InvalidInput
from .fold import ATTEMPT, ENQUEUED, MINUTE, RUN, UNTRIED, WAIT, percentile
from .model.job import Criteria
from .model.stats import (
    Counts,
    Event,
    FailureInfo,
    Latency,
    OldestJob,
    Percentiles,
    RetentionStatus,
    Snapshot,
    Storage,
    TaskAttempts,
    ThroughputPoint,
    TimelinePoint,
    WorkerHealth,
)
from .model.worker import WorkerStatus
from .retention import AFTER_ALL, BEFORE_ALL, FINISHED, Retention, expiry, matching_limit
from .store.protocol import Store

Since = timedelta | datetime
Rollup = dict[tuple[str, str | None], dict[str, Counter[int]]]  # counts by bucket, by queue and task, by measure
MAX_INTEGER = 2**63 - 1
MICROSECOND, ONE_MINUTE, HOUR = timedelta(microseconds=1), timedelta(minutes=1), timedelta(hours=1)
MAX_EVENTS = 1000
MAX_POINTS = 10_000  # of a timeline
MAX_PARTS = 1000  # of the trend of a failure
DAY_MINUTES = 24 * 60
MAX_DUE = 1000  # counted, of each status
NEXT_CANDIDATES = 100  # of each status, examined for the next job to expire
ALL_MINUTES = DAY_MINUTES * 2**30  # one step for all of them, in whole days
WAITING = ("running", "ready", "scheduled", "blocked")

# Transitions by the name of the outcome in charts. A message that is released is not counted as an attempt.
ATTEMPTED = {
    "succeeded": "succeeded",
    "completed": "succeeded",
    "failed": "failed",
    "retry_scheduled": "retried",
    "recovered": "retried",
    "cancelled": "cancelled",
}
# The same for jobs that ended without running.
OUTCOMES = ATTEMPTED | {UNTRIED + what: name for what, name in ATTEMPTED.items()}
POINTS = OUTCOMES | {ENQUEUED: "enqueued"}


class Observe:
    """Each result is a short read, by an index or from a small table, however many jobs there are."""

    def __init__(self, store: Callable[[], Store], clock: Clock, retention: Callable[[], Retention | None]) -> None:
        self._find_store, self._clock, self._retention = store, clock, retention

    @property
    def _store(self) -> Store:
        return self._find_store()

    def snapshot(self) -> Snapshot:
        """Return all results, read at one point in time. Rates are those of the last hour."""
        with self._store.snapshot():
            workers = self.workers()
            rollup = self._rollup(HOUR)
            return Snapshot(
                at=as_datetime(self._clock.now()),
                counts=self.counts(),
                oldest=self._oldest(10, workers),
                attempts=_attempts(rollup),
                failures=self.failures(),
                workers=workers,
                latency=_latency(rollup),
                storage=self.storage(),
                retention=self.retention(),
            )

    def counts(self) -> Counts:
        """Return the number of jobs in each state, by queue and task."""
        return self._store.statistics.counts()

    def oldest(self, limit: int = 10) -> list[OldestJob]:
        """Return the jobs that have been running, ready, due or blocked longest: in this order, the longest first.

        If there are more than the limit, the result has some of each state.
        """
        return self._oldest(_integer(limit, "limit"), self.workers())

    def attempts(self, since: Since = HOUR, *, whole: bool = False) -> list[TaskAttempts]:
        """Return the attempts of each task, with the most failures first. whole: as of `latency`."""
        return _attempts(self._rollup(since, timed=False, whole=whole))

    def failures(
        self,
        since: Since | None = None,
        limit: int = 20,
        with_tracebacks: bool = True,
        *,
        task: str | None = None,
        queue: str | None = None,
        parts: int = 0,
    ) -> list[FailureInfo]:
        """Return the most frequent failures, by error code and place in the code, with their tracebacks.

        task, queue: only those of one task or queue.
        parts: also count them in this many equal parts of the period, or of the last day if there is none: `trend`.
        """
        begin, limit = None if since is None else self._minute(since), _integer(limit, "limit")
        store, names = self._store, (_name(task, "task"), _name(queue, "queue"))

        def traceback(fingerprint: str | None) -> str | None:
            return store.jobs.traceback(fingerprint) if with_tracebacks and fingerprint else None

        last = self._clock.now() // MINUTE
        first, count = last - DAY_MINUTES if begin is None else begin, validate.integer(parts, "parts", 0, MAX_PARTS)
        step = -(-(last + 1 - first) // count) if count else 0
        found = store.statistics.failures(begin, limit, *names, (first, step) if count else None)
        begins = range(first // step * step, last + 1, step)[-count:] if count else ()
        return [
            with_times(
                FailureInfo,
                one,
                traceback=traceback(one.fingerprint),
                trend=[one.minutes.get(minute, 0) for minute in begins],
            )
            for one in found
        ]

    def workers(self) -> list[WorkerHealth]:
        """Return the live workers and the most recent of the others, the newest first."""
        return list(map(_health, self._store.workers.list()))

    def throughput(self, since: Since = HOUR, step: timedelta = ONE_MINUTE) -> list[ThroughputPoint]:
        """Return how many jobs were enqueued and attempts ended in each step of time, by queue and task.

        Empty steps are left out.
        """
        minutes = _step(step)
        points: dict[tuple[int, str, str | None], Counter[str]] = {}
        for one in self._store.statistics.minutes(self._minute(since) // minutes * minutes, minutes, timed=False):
            if one.measure in POINTS:
                points.setdefault((one.minute, one.queue, one.task), Counter())[POINTS[one.measure]] += one.count
        return [
            ThroughputPoint(as_datetime(minute * MINUTE), queue, task, **counts)
            for (minute, queue, task), counts in sorted(points.items(), key=lambda item: (item[0][0], str(item[0])))
        ]

    def timeline(self, since: Since = HOUR, step: timedelta = ONE_MINUTE) -> list[TimelinePoint]:
        """Return, for each step of time, how many attempts ended, and how long they waited and ran. For charts.

        Empty steps are included, so that a chart shows them.
        """
        minutes = _step(step)
        begin = self._minute(since) // minutes * minutes
        measures: dict[int, dict[str, Counter[int]]] = {}
        for one in self._store.statistics.minutes(begin, minutes, merged=True):
            measures.setdefault(one.minute, {}).setdefault(one.measure, Counter())[one.bucket] += one.count
        last = self._clock.now() // MINUTE
        return [_point(minute, measures.get(minute, {})) for minute in range(begin, last + 1, minutes)[-MAX_POINTS:]]

    def latency(
        self, task: str | None = None, queue: str | None = None, since: Since = HOUR, *, whole: bool = False
    ) -> list[Latency]:
        """Return how long attempts waited and ran, of all tasks or of one task or queue.

        whole: a period of half a day or more begins at a full hour, and one of three days or more at midnight UTC.
            Then it is read from sums of hours and days alone, which takes half as long.
        """
        return _latency(self._rollup(since, task, queue, timed=True, whole=whole))

    def storage(self) -> Storage:
        """Return the size of the database and its write-ahead log, and the free space."""
        return self._store.statistics.size()

    def retention(self) -> RetentionStatus:
        """Return the retention rules, what they delete next, and whether deletions were complete.

        Considers ages only. `app.prune(dry_run=True)` tells what limits on number or size would delete.
        """
        store, rules, now = self._store, self._retention(), self._clock.now()
        state = store.pruning.state()
        due, more_due = (0, False) if rules is None else _due(store, rules, now)
        upcoming = None if rules is None else min(_expirations(store, rules), default=None)
        return RetentionStatus(
            rules=None if rules is None else rules.in_words(),
            automatic=rules is not None and rules.automatic,
            due=due,
            more_due=more_due,
            next_job_id=None if upcoming is None else upcoming[1],
            next_at=None if upcoming is None else as_datetime(upcoming[0]),
            last_pruned_at=None if state.last_at is None else as_datetime(state.last_at),
            last_pruned_jobs=sum(state.last_counts.get(status, 0) for status in FINISHED),
            left_behind=store.file.count_orphaned(),
        )

    def events(self, after: int = 0, limit: int = 100, job: int | None = None) -> list[Event]:
        """Return events after a cursor: the id of the last event seen."""
        return self._events(limit, job, after=_integer(after, "after"))

    def last_events(self, limit: int = 20, job: int | None = None, before: int | None = None) -> list[Event]:
        """Return the last events, or those before an event, in order: so the log can be read backwards."""
        return self._events(limit, job, before=None if before is None else _integer(before, "before"))

    def last_event(self) -> int:
        """Return the id of the newest event: a cursor from which to follow the log."""
        return next((one.id for one in self._store.statistics.events(1)), 0)

    def _events(self, limit: int, job: int | None, **place: int | None) -> list[Event]:
        job_id = None if job is None else _integer(job, "job")
        records = self._store.statistics.events(min(_integer(limit, "limit"), MAX_EVENTS), job_id=job_id, **place)
        return [with_times(Event, one, detail=with_datetimes(one.detail)) for one in records]

    def _oldest(self, limit: int, workers: list[WorkerHealth]) -> list[OldestJob]:
        store, now = self._store, self._clock.now()
        by_id = {worker.id: worker for worker in workers}
        waiting = {one.id: one.since for one in store.statistics.oldest(limit)}
        jobs = store.jobs.list(Criteria(ids=tuple(waiting)), len(waiting)).records if waiting else []
        found = []
        for job in jobs:
            # The job may have changed its state since it was found.
            is_running = job.status == "running"
            since = (job.claimed_at if is_running else waiting.get(job.id)) or job.created_at
            age = max(0.0, (now - since) / SECOND)
            worker = by_id.get(job.worker or "") if is_running else None
            found.append(
                OldestJob(job.id, job.status, job.queue, job.task, as_datetime(since), age, job.attempt, worker)
            )
        return _some_of_each(found, limit)

    def _rollup(
        self,
        since: Since,
        task: str | None = None,
        queue: str | None = None,
        timed: bool | None = None,
        whole: bool = False,
    ) -> Rollup:
        found: Rollup = {}
        names = _name(task, "task"), _name(queue, "queue")
        first = self._minute(since)
        if validate.flag(whole, "whole"):
            first = _whole(first, self._clock.now() // MINUTE)
        for one in self._store.statistics.minutes(first, ALL_MINUTES, *names, timed=timed):
            measures = found.setdefault((one.queue, one.task), {})
            measures.setdefault(one.measure, Counter())[one.bucket] += one.count
        return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")))

    def _minute(self, since: object) -> int:
        """Return the minute of a point in time. A timedelta counts back from now."""
        now = self._clock.now()
        if isinstance(since, timedelta):
            return min(max(0, now - since // MICROSECOND), MAX_INTEGER) // MINUTE
        if isinstance(since, datetime) and since.utcoffset() is not None:
            return max(0, as_microseconds(since)) // MINUTE
        raise InvalidInput(
            "since must be a timedelta, such as timedelta(hours=1), or a datetime with a time zone, "
            f"got {validate.shown(since)}"
        )


def _whole(first: int, now: int) -> int:
    """Return the begin of the hour or day of a minute, if the period since then is long."""
    length = DAY_MINUTES if now - first >= 3 * DAY_MINUTES else 60 if now - first >= DAY_MINUTES // 2 else 1
    return first // length * length


# --- arguments ---


def _integer(value: Any, name: str) -> int:
    return validate.integer(value, name, 0, MAX_INTEGER)


def _step(step: object) -> int:
    """Return the step in minutes."""
    if not isinstance(step, timedelta) or step < ONE_MINUTE or step % ONE_MINUTE:
        raise InvalidInput(f"step must be a timedelta of one or more whole minutes, got {validate.shown(step)}")
    return step // ONE_MINUTE


def _name(value: object, kind: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{kind} must be the name of a {kind}, got {validate.shown(value)}")
    return value.encode("utf-8", "replace").decode()  # lone surrogates match no name


# --- results ---


def _health(worker: WorkerStatus) -> WorkerHealth:
    ending = worker.record.ending
    return with_times(
        WorkerHealth,
        worker.record,
        alive=worker.is_present,
        state="alive" if worker.state == "unknown" else worker.state,
        running=worker.running,
        ending=ending if ending in (None, "stopped") else "lost",
        limits=worker.record.limits.queues,
    )


def _attempts(rollup: Rollup) -> list[TaskAttempts]:
    found: list[TaskAttempts] = []
    for (queue, task), measures in rollup.items():
        counts = dict.fromkeys(ATTEMPTED.values(), 0)
        for measure, name in ATTEMPTED.items():
            counts[name] += sum(measures.get(measure, {}).values())
        del counts["cancelled"]
        by_attempt = dict(sorted(measures.get(ATTEMPT, {}).items()))
        if by_attempt or any(counts.values()):
            found.append(TaskAttempts(queue, task, by_attempt, **counts))
    return sorted(found, key=lambda one: -(one.retried + one.failed))


def _latency(rollup: Rollup) -> list[Latency]:
    found = []
    for (queue, task), measures in rollup.items():
        if run := measures.get(RUN):
            wait = _percentiles(measures.get(WAIT, Counter()))
            found.append(Latency(queue, task, run.total(), wait, _percentiles(run)))
    return found


def _point(minute: int, measures: dict[str, Counter[int]]) -> TimelinePoint:
    counts = dict.fromkeys(OUTCOMES.values(), 0)
    for measure, name in OUTCOMES.items():
        counts[name] += measures.get(measure, Counter()).total()
    wait, run = (_percentiles(measures.get(measure, Counter())) for measure in (WAIT, RUN))
    return TimelinePoint(as_datetime(minute * MINUTE), wait=wait, run=run, **counts)


def _percentiles(histogram: Counter[int]) -> Percentiles:
    values = (percentile(histogram, share) for share in (0.50, 0.95, 0.99))
    return Percentiles(*(None if value is None else value / SECOND for value in values))


def _some_of_each(found: list[OldestJob], limit: int) -> list[OldestJob]:
    """Take the longest of each state in turn until there are enough, so that no state hides the others."""
    longest = sorted(found, key=lambda one: (-one.age, one.job_id))
    by_state = [[one for one in longest if one.status == status] for status in WAITING]
    in_turn = [one for turn in zip_longest(*by_state) for one in turn if one is not None]
    return sorted(in_turn[:limit], key=lambda one: (WAITING.index(one.status), -one.age, one.job_id))


def _due(store: Store, rules: Retention, now: int) -> tuple[int, bool]:
    """Count the jobs that have expired by age. Return also whether there are more than were counted."""
    cutoffs, due, more = expiry(rules, now), 0, False
    for status in FINISHED:
        jobs = store.pruning.finished_after(status, BEFORE_ALL, cutoffs.latest(status), MAX_DUE)
        due += sum(job.has_expired(cutoffs) for job in jobs)
        more = more or len(jobs) == MAX_DUE
    return due, more


def _expirations(store: Store, rules: Retention) -> list[tuple[int, int]]:
    """Return when each of the oldest jobs expires, and its id."""
    found = []
    for status in FINISHED:
        limits = rules.limits(status)
        for job in store.pruning.finished_after(status, BEFORE_ALL, AFTER_ALL, NEXT_CANDIDATES):
            age = limits[matching_limit(limits, job.queue, job.task)].age
            if age is not None:
                found.append((job.finished_at + age, job.id))
    return found
