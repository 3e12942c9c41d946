"""`app.observe`: how many, stuck on whom, tried how often, failing why, how big; and how fast."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import zip_longest

from ..clock import SECOND, Clock, as_datetime, as_microseconds, with_datetimes
from ..errors import InvalidInput
from ..fold import ATTEMPT, MINUTE, RUN, UNTRIED, WAIT
from ..histogram import percentile
from ..model.job import Criteria, JobRecord
from ..model.stats import Count, EventRecord
from ..model.worker import WorkerStatus
from ..retention import ENDED, LAST_ID, NOTHING, Retention, decider, expiry
from ..store.protocol import Store
from .results import (
    CountInfo,
    Counts,
    Event,
    FailureInfo,
    Kept,
    Latency,
    OldestJob,
    Percentiles,
    Snapshot,
    Storage,
    TaskAttempts,
    ThroughputPoint,
    WorkerHealth,
)

Since = timedelta | datetime
LARGEST = 2**63 - 1  # of SQLite
MICROSECOND, ONE_MINUTE = timedelta(microseconds=1), timedelta(minutes=1)


def whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise InvalidInput(f"{what} is a whole number from 0, not {_shown(value)}")
    return value


def optional_whole(value: object, what: str) -> int | None:
    return None if value is None else whole(value, what)


def optional_name(value: object, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is the name of a {what}, not {type(value).__qualname__}")
    return value.encode("utf-8", "replace").decode()  # what no name can have, none has


def moment(since: object, now: int) -> int:
    """Microseconds. A timedelta is counted back from now."""
    if isinstance(since, timedelta):
        return min(max(0, now - since // MICROSECOND), LARGEST)
    if isinstance(since, datetime) and since.utcoffset() is not None:
        return max(0, as_microseconds(since))
    raise InvalidInput("since is a timedelta, such as timedelta(hours=1), or a datetime with a time zone")


def minutes(step: object) -> int:
    if not isinstance(step, timedelta) or step < ONE_MINUTE or step % ONE_MINUTE:
        raise InvalidInput(f"step is a timedelta of one or more whole minutes, not {_shown(step)}")
    return step // ONE_MINUTE


def _shown(value: object) -> str:
    return str(value) if isinstance(value, int | timedelta) else type(value).__qualname__


MOST_DUE = 1000  # are counted, of each status
FIRST = 100  # of each status are looked at, for the one that goes next
ALL = (2**63 - 1, LAST_ID)


def look(store: Store, rules: Retention | None, now: int) -> Kept:
    """Look at ages only: what a limit on numbers or bytes would delete is told by a dry run."""
    last = store.pruning.state()
    due, more = (0, False) if rules is None else _due(store, rules, now)
    upcoming = min(_upcoming(store, rules), default=None) if rules is not None else None
    return Kept(
        rules=None if rules is None else rules.in_words(),
        automatic=rules is not None and rules.automatic,
        due=due,
        more_due=more,
        next_job_id=None if upcoming is None else upcoming[1],
        next_at=None if upcoming is None else as_datetime(upcoming[0]),
        last_pruned_at=None if last.last_at is None else as_datetime(last.last_at),
        last_pruned_jobs=sum(last.last_counts.get(status, 0) for status in ENDED),
        left_behind=store.file.left_behind(),
    )


def _due(store: Store, rules: Retention, now: int) -> tuple[int, bool]:
    marks, found, more = expiry(rules, now), 0, False
    for status in ENDED:
        ended = store.pruning.ended_after(status, NOTHING, marks.latest(status), MOST_DUE)
        found += sum(one.mark <= marks.until(status, one.queue, one.task) for one in ended)
        more = more or len(ended) == MOST_DUE
    return found, more


def _upcoming(store: Store, rules: Retention) -> list[tuple[int, int]]:
    """Return when each of the oldest jobs expires, and its id."""
    found = []
    for status in ENDED:
        limits = list(rules.limits(status))
        for one in store.pruning.ended_after(status, NOTHING, ALL, FIRST):
            age_limit = limits[decider(limits, one.queue, one.task)].age
            if age_limit is not None:
                found.append((one.finished_at + age_limit, one.id))
    return found


HOUR = timedelta(hours=1)
MOST = 1000
ALL_MINUTES = 2**40  # one step for all of them
STUCK = ("running", "ready", "scheduled", "blocked")

# From the names of transitions to what a chart calls them. A message that is released was not tried in vain.
TRIED = {
    "succeeded": "succeeded",
    "completed": "succeeded",
    "failed": "failed",
    "retry_scheduled": "retried",
    "recovered": "retried",
    "cancelled": "cancelled",
}

# And of jobs that ended and were not running: nobody tried them.
OUTCOMES = TRIED | {UNTRIED + what: name for what, name in TRIED.items()}
Rolled = dict[tuple[str, str | None], dict[str, dict[int, int]]]  # by queue and task, by what, by bucket


class Observe:
    """Each answer is a short read, by an index or of a table that stays small, however many jobs there are."""

    def __init__(self, store: Callable[[], Store], clock: Clock, retention: Callable[[], Retention | None]) -> None:
        self._find_store, self._clock, self._retention = store, clock, retention

    @property
    def _store(self) -> Store:
        return self._find_store()

    def snapshot(self) -> Snapshot:
        """The five answers at once, all of one moment; what is about a time, of the last hour."""
        with self._store.reading():
            workers = self.workers()
            rolled = self._rolled(HOUR)
            return Snapshot(
                at=as_datetime(self._clock.now()),
                counts=self.counts(),
                oldest=self._oldest(10, workers),
                attempts=_attempts(rolled),
                failures=self.failures(),
                workers=workers,
                latency=_latency(rolled),
                storage=self.storage(),
                kept=self.kept(),
            )

    def counts(self) -> Counts:
        """How many jobs there are, in each state, by queue and task."""
        return _counts(self._store.statistics.counts().items)

    def oldest(self, limit: int = 10) -> list[OldestJob]:
        """What has been running, ready or blocked the longest, and on which worker: in this order, since what runs is
        on somebody, and what is blocked may be meant to wait. Each the longest first; of many, some of each."""
        return self._oldest(whole(limit, "limit"), self.workers())

    def attempts(self, since: Since = HOUR) -> list[TaskAttempts]:
        """How often jobs were tried; the task that fails most, first."""
        return _attempts(self._rolled(since))

    def failures(
        self,
        since: Since | None = None,
        limit: int = 20,
        with_tracebacks: bool = True,
        *,
        task: str | None = None,
        queue: str | None = None,
    ) -> list[FailureInfo]:
        """Why they fail: the most frequent error codes, each place of failure apart, with its traceback.

        task, queue: of one task, or of one queue.
        """
        begin, most = None if since is None else self._minute(since), whole(limit, "limit")
        store, of = self._store, (optional_name(task, "task"), optional_name(queue, "queue"))
        return [
            FailureInfo(
                error_code=one.error_code,
                queue=one.queue,
                task=one.task,
                count=one.count,
                first_seen=as_datetime(one.first_seen),
                last_seen=as_datetime(one.last_seen),
                last_job_id=one.last_job_id,
                fingerprint=one.fingerprint,
                traceback=store.jobs.traceback(one.fingerprint) if with_tracebacks and one.fingerprint else None,
            )
            for one in store.statistics.failures(begin, most, *of)
        ]

    def workers(self) -> list[WorkerHealth]:
        """Those that are there, and the last ones that were. The newest first."""
        return list(map(_health, self._store.workers.list()))

    def throughput(self, since: Since = HOUR, step: timedelta = timedelta(minutes=1)) -> list[ThroughputPoint]:
        """How many ended in each step of time, by queue and task. Steps in which nothing ended are left out."""
        wide = minutes(step)
        points: dict[tuple[int, str, str | None], dict[str, int]] = {}
        for one in self._store.statistics.minutes(self._minute(since) // wide * wide, wide):
            if one.measure in OUTCOMES:
                counted = points.setdefault((one.minute, one.queue, one.task), {})
                name = OUTCOMES[one.measure]
                counted[name] = counted.get(name, 0) + one.count
        return [
            ThroughputPoint(as_datetime(minute * MINUTE), queue, task, **counted)
            for (minute, queue, task), counted in sorted(points.items(), key=lambda item: (item[0][0], str(item[0])))
        ]

    def latency(self, task: str | None = None, queue: str | None = None, since: Since = HOUR) -> list[Latency]:
        """How long attempts waited and ran: of one task, of one queue, or of all."""
        return _latency(self._rolled(since, task, queue))

    def storage(self) -> Storage:
        """How big the file is, and its log, and how much room there is."""
        found = self._store.statistics.size()
        return Storage(
            found.database_bytes, found.wal_bytes, found.free_bytes_in_file, found.page_size, found.disk_free_bytes
        )

    def kept(self) -> Kept:
        """How long things are kept, what is to be deleted now and next, and whether deleting leaves something."""
        return look(self._store, self._retention(), self._clock.now())

    def events(self, after: int = 0, limit: int = 100, job: int | None = None) -> list[Event]:
        """The log, from a cursor on: the id of the last event that was seen."""
        place, most = whole(after, "after"), min(whole(limit, "limit"), MOST)
        found = self._store.statistics.events(most, after=place, job_id=optional_whole(job, "job"))
        return list(map(_event, found))

    def last_events(self, limit: int = 20, job: int | None = None, before: int | None = None) -> list[Event]:
        """The end of the log, in order; or what comes before an event, by its id: so the log is read backwards."""
        place, most = optional_whole(before, "before"), min(whole(limit, "limit"), MOST)
        found = self._store.statistics.events(most, before=place, job_id=optional_whole(job, "job"))
        return list(map(_event, found))

    def last_event(self) -> int:
        """Where the log ends now: a cursor to follow it from."""
        return next((one.id for one in self._store.statistics.events(1)), 0)

    def _oldest(self, limit: int, workers: list[WorkerHealth]) -> list[OldestJob]:
        store, now = self._store, self._clock.now()
        by_id = {worker.id: worker for worker in workers}
        since = {one.id: one.since for one in store.statistics.oldest(limit)}
        ids = tuple(since)
        records = store.jobs.list(Criteria(ids=ids), len(ids)).records if ids else []
        found = [
            OldestJob(
                job_id=record.id,
                status=record.status,
                queue=record.queue,
                task=record.task,
                since=as_datetime(_since(record, since)),
                age=max(0.0, (now - _since(record, since)) / SECOND),
                attempt=record.attempt,
                worker=by_id.get(record.worker or "") if record.status == "running" else None,
            )
            for record in records
        ]
        return _some_of_each(found, limit)

    def _rolled(self, since: Since, task: str | None = None, queue: str | None = None) -> Rolled:
        found: Rolled = {}
        of = optional_name(task, "task"), optional_name(queue, "queue")
        for one in self._store.statistics.minutes(self._minute(since), ALL_MINUTES, *of):
            buckets = found.setdefault((one.queue, one.task), {}).setdefault(one.measure, {})
            buckets[one.bucket] = buckets.get(one.bucket, 0) + one.count
        return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")))

    def _minute(self, since: Since) -> int:
        return moment(since, self._clock.now()) // MINUTE


def _counts(counted: list[Count]) -> Counts:
    return Counts([CountInfo(one.status, one.queue, one.task, one.count) for one in counted])


def _attempts(rolled: Rolled) -> list[TaskAttempts]:
    found: list[TaskAttempts] = []
    for (queue, task), kinds in rolled.items():
        ended = dict.fromkeys(TRIED.values(), 0)
        for what, name in TRIED.items():
            ended[name] += sum(kinds.get(what, {}).values())
        del ended["cancelled"]
        by_attempt = dict(sorted(kinds.get(ATTEMPT, {}).items()))
        if by_attempt or any(ended.values()):  # else nobody tried
            found.append(TaskAttempts(queue, task, by_attempt, **ended))
    return sorted(found, key=lambda one: -(one.retried + one.failed))


def _latency(rolled: Rolled) -> list[Latency]:
    return [
        Latency(
            queue=queue,
            task=task,
            count=sum(kinds.get(RUN, {}).values()),
            wait=_percentiles(kinds.get(WAIT, {})),
            run=_percentiles(kinds.get(RUN, {})),
        )
        for (queue, task), kinds in rolled.items()
        if RUN in kinds
    ]


def _some_of_each(found: list[OldestJob], limit: int) -> list[OldestJob]:
    """By state, the longest first. No state crowds out the others: they take turns until there are enough."""
    longest = sorted(found, key=lambda one: (-one.age, one.job_id))
    by_state = [[one for one in longest if one.status == status] for status in STUCK]
    in_turn = [one for turn in zip_longest(*by_state) for one in turn if one is not None]
    return sorted(in_turn[:limit], key=lambda one: (STUCK.index(one.status), -one.age, one.job_id))


def _since(record: JobRecord, waiting: dict[int, int]) -> int:
    """When it was claimed, or could have been; it may have been moved on since that was looked at."""
    if record.status == "running":
        return record.claimed_at or record.created_at
    return waiting.get(record.id, record.created_at)


def _health(worker: WorkerStatus) -> WorkerHealth:
    record = worker.record
    return WorkerHealth(
        id=record.id,
        pid=record.pid,
        host=record.host,
        alive=worker.is_present,
        stopped=worker.presence == "stopped",
        started_at=as_datetime(record.started_at),
        heartbeat_at=as_datetime(record.heartbeat_at),
        running=worker.running,
        concurrency=record.concurrency,
        queues=record.queues,
        ended_at=None if record.ended_at is None else as_datetime(record.ended_at),
        ending=None if record.ending is None else "stopped" if record.ending == "stopped" else "lost",
    )


def _percentiles(histogram: dict[int, int]) -> Percentiles:
    p50, p95, p99 = (percentile(histogram, share) for share in (0.50, 0.95, 0.99))
    return Percentiles(*(None if one is None else one / SECOND for one in (p50, p95, p99)))


def _event(one: EventRecord) -> Event:
    detail = with_datetimes(one.detail)
    return Event(one.id, one.job_id, as_datetime(one.at), one.event, one.attempt, one.actor, detail)
