"""Statistics: counts, failures, rates, sizes and events, as the store reads them and as `app.observe` returns them.

In records of the store times are microseconds; in results they are aware datetimes, and durations are seconds.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ..clock import SECOND, as_datetime


class QueueStats(Struct, frozen=True):
    """The messages of a queue. `total` is the sum of the four states.

    None is unknown: there are too many messages without history to count them.
    """

    total: int | None
    ready: int | None
    scheduled: int | None
    running: int | None
    failed: int | None
    oldest_ready_age: float | None
    """Seconds for which the longest waiting message has been ready. None if none is ready."""
    paused: bool


class QueueOverview(Struct, frozen=True):
    """The jobs and messages of a queue."""

    name: str
    ready: int | None
    """None is unknown: there are too many messages without history to count them."""
    scheduled: int | None
    blocked: int | None
    running: int | None
    failed: int | None
    oldest_ready_age: float | None
    """Seconds for which the longest waiting job has been ready. None if none is ready."""
    paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    """As given by the operator who paused it."""


# The names of all events.
EVENTS = (
    *("enqueued", "unblocked", "promoted", "claimed", "succeeded", "retry_scheduled", "snoozed", "released"),
    *("interrupted", "returned", "recovered", "completed", "failed", "cancelled", "replaced", "requeued", "run_now"),
    *("edited", "paused", "resumed", "deleted", "purged", "pruned", "vacuumed", "migrated", "repaired"),
    *("retention_changed", "removed", "batch_abandoned", "batch_sealed"),
    *("operation_started", "operation_finished", "operation_stopped", "operation_failed"),
    *("schedule_added", "schedule_changed", "schedule_paused", "schedule_resumed", "schedule_removed"),
    *("schedule_run", "stop_requested", "moved"),
)


class Count(Struct, frozen=True):
    """The number of jobs of a task, or of messages of a queue, in one state."""

    status: str
    queue: str
    task: str | None
    """None: messages."""
    count: int | None
    """None is unknown: there are too many messages without history to count them."""


class Pause(Struct, frozen=True):
    """Since when a queue is paused, in microseconds, by whom and why."""

    at: int
    by: str | None = None
    reason: str | None = None


class Counts(Struct, frozen=True):
    """The number of jobs in each state, by queue and task."""

    items: list[Count]
    paused: dict[str, bool]
    """Queues that were ever paused, and whether they are paused now."""
    pauses: dict[str, "Pause"] = {}
    """Since when queues are paused, by whom and why."""

    @property
    def by_status(self) -> dict[str, int]:
        return self._by("status")

    @property
    def by_queue(self) -> dict[str, int]:
        return self._by("queue")

    @property
    def total(self) -> int:
        return sum(one.count or 0 for one in self.items)

    @property
    def unknown(self) -> list[Count]:
        """Items whose number is unknown. They are not part of the sums."""
        return [one for one in self.items if one.count is None]

    def _by(self, name: str) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for one in self.items:
            sums[getattr(one, name)] += one.count or 0
        return dict(sums)


class WaitingJob(Struct, frozen=True):
    """A job that has been running, ready, due or blocked since a point in time."""

    id: int
    queue: str
    task: str | None  # None: a message
    since: int
    status: str


class FailureRecord(Struct, frozen=True):
    error_code: str
    queue: str
    task: str | None
    fingerprint: str | None
    first_seen: int
    last_seen: int
    last_job_id: int
    count: int
    minutes: dict[int, int] = {}  # counts by the first minute of each step, if they were asked for


class MinuteRecord(Struct, frozen=True):
    """A measure of one or several minutes, of one task or of the messages of a queue. See fold.py."""

    minute: int
    queue: str
    task: str | None
    measure: str
    bucket: int
    count: int


class Totals(Struct, frozen=True):
    """Lifetime sums, which only grow. The task of messages is ''."""

    enqueued: int
    """All jobs and messages ever enqueued, including those without history."""
    outcomes: dict[tuple[str, str, str], int]
    """Attempts by queue, task and outcome."""
    histograms: dict[tuple[str, str, str], dict[int, int]]
    """Counts by bucket, by queue, task and measure."""
    durations: dict[tuple[str, str, str], int]
    """Sums in microseconds, by queue, task and measure."""
    errors: dict[tuple[str, str, str], int]
    """Failures by error code, queue and task."""


class Storage(Struct, frozen=True):
    """Sizes in bytes."""

    database_bytes: int
    wal_bytes: int
    free_bytes_in_file: int
    """Unused pages, which a vacuum would return to the file system."""
    page_size: int
    disk_free_bytes: int


class EventRecord(Struct, frozen=True):
    """An entry of the event log. Its id is a cursor."""

    id: int
    job_id: int | None
    at: int
    event: str
    attempt: int | None
    actor: str | None
    detail: dict[str, Any]
    queue: str | None = None  # of its job
    task: str | None = None


OVERVIEW = ("ready", "scheduled", "blocked", "running", "failed")


def queue_stats(queue: str, counts: Counts, waiting: Sequence[WaitingJob], now: int) -> QueueStats:
    """Sum up the messages of a queue. waiting: the longest waiting ones that are ready."""
    found = {one.status: one.count for one in counts.items if one.task is None and one.queue == queue}
    n = {status: found.get(status, 0) for status in ("ready", "scheduled", "running", "failed")}
    messages = [one for one in waiting if one.task is None and one.queue == queue]
    return QueueStats(
        total=_sum(n.values()), **n, oldest_ready_age=_age(messages, now), paused=counts.paused.get(queue, False)
    )


def queue_overviews(counts: Counts, waiting: Sequence[WaitingJob], now: int) -> list[QueueOverview]:
    """Sum up the queues that have jobs waiting, running or failed, or that were ever paused, by name."""
    found: dict[str, dict[str, list[int | None]]] = {name: {} for name in counts.paused}
    for one in counts.items:
        if one.status in OVERVIEW:
            found.setdefault(one.queue, {}).setdefault(one.status, []).append(one.count)
    return [
        QueueOverview(
            name=name,
            **_counted(found[name]),
            oldest_ready_age=_age([one for one in waiting if one.queue == name], now),
            paused=counts.paused.get(name, False),
            **_pause(counts.pauses.get(name)),
        )
        for name in sorted(found)
    ]


def _counted(found: dict[str, list[int | None]]) -> dict[str, Any]:
    return {status: _sum(found.get(status, ())) for status in OVERVIEW}


def _pause(pause: Pause | None) -> dict[str, Any]:
    if pause is None:
        return {}
    return {"paused_at": as_datetime(pause.at), "paused_by": pause.by, "pause_reason": pause.reason}


def _age(waiting: Sequence[WaitingJob], now: int) -> float | None:
    """Return the age of the oldest in seconds."""
    return max(0.0, (now - min(one.since for one in waiting)) / SECOND) if waiting else None


def _sum(counts: Collection[int | None]) -> int | None:
    """Return None if one of them is unknown."""
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


class WorkerHealth(Struct, frozen=True):
    """A worker, and whether its process is alive."""

    id: str
    pid: int
    host: str
    alive: bool
    """By the lock that the process holds while it lives, not by its heartbeat."""
    state: Literal["alive", "suspended", "stopped", "lost"]
    """alive, suspended by a signal, stopped (shut down), or lost (its process died)."""
    started_at: datetime
    heartbeat_at: datetime
    running: int
    """Jobs that it has claimed."""
    concurrency: int
    queues: tuple[str, ...] | None
    """None: all queues."""
    ended_at: datetime | None
    ending: Literal["stopped", "lost"] | None
    limits: dict[str, int] = {}
    """The most jobs of a queue that it runs at a time."""
    version: str | None = None
    """Of Holdfast."""
    memory: int | None = None
    """Resident bytes of its process at the last heartbeat."""
    stop_at: datetime | None = None
    """When an operator asked it to stop."""


class OldestJob(Struct, frozen=True):
    """One of the jobs that have been in their state for longest."""

    job_id: int
    status: str
    queue: str
    task: str | None
    since: datetime
    """When it was claimed, if it is running; when it was enqueued or due, if it is waiting."""
    age: float
    attempt: int
    worker: WorkerHealth | None
    """The worker that runs it."""


class TaskAttempts(Struct, frozen=True):
    """The number of attempts of a task, and how many of them its jobs needed."""

    queue: str
    task: str | None
    by_attempt: dict[int, int]
    """Finished jobs by attempt number at completion."""
    succeeded: int
    retried: int
    """Failed attempts that were, or will be, retried."""
    failed: int
    """Jobs that failed permanently."""

    @property
    def jobs(self) -> int:
        return sum(self.by_attempt.values())

    @property
    def failure_rate(self) -> float:
        """The share of attempts that did not succeed."""
        tried = self.succeeded + self.retried + self.failed
        return (self.retried + self.failed) / tried if tried else 0.0

    @property
    def keeps_failing(self) -> bool:
        """Whether at least five attempts did not succeed, and those are at least half of all."""
        return self.retried + self.failed >= 5 and self.failure_rate >= 0.5


class FailureInfo(Struct, frozen=True):
    """Failures with one error code at one place in the code."""

    error_code: str
    queue: str
    task: str | None
    count: int
    first_seen: datetime
    last_seen: datetime
    last_job_id: int
    """This job may have been deleted since."""
    fingerprint: str | None
    traceback: str | None
    trend: list[int] = []
    """How often it occurred in each part of the period, oldest first, if that was asked for."""


class ThroughputPoint(Struct, frozen=True):
    """Jobs enqueued, and attempts that ended, in one step of time, of one task or of the messages of a queue."""

    at: datetime
    queue: str
    task: str | None
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    enqueued: int = 0


class Percentiles(Struct, frozen=True):
    """Seconds; None if nothing was measured. Read from histograms with buckets up to a quarter wide."""

    p50: float | None
    p95: float | None
    p99: float | None


class Latency(Struct, frozen=True):
    """How long attempts of a task waited from when they were due until they started, and how long they ran."""

    queue: str
    task: str | None
    count: int
    wait: Percentiles
    run: Percentiles


class TimelinePoint(Struct, frozen=True):
    """The attempts that ended in one step of time, of all tasks, and how long they waited and ran."""

    at: datetime
    succeeded: int
    failed: int
    retried: int
    cancelled: int
    wait: Percentiles
    run: Percentiles


class RetentionStatus(Struct, frozen=True):
    """The retention rules, what they delete next, and whether deletions were complete."""

    rules: str | None
    """In words. None: they are from another version of Holdfast, and nothing is deleted."""
    automatic: bool
    """Whether workers prune in the background."""
    due: int
    """Jobs that have expired by their age."""
    more_due: bool
    """There are more than were counted."""
    next_job_id: int | None
    next_at: datetime | None
    """When the next job expires."""
    last_pruned_at: datetime | None
    last_pruned_jobs: int
    left_behind: int
    """Deleted jobs with orphaned rows, found by a short check. `holdfast doctor` checks more."""


class Event(Struct, frozen=True):
    """An entry of the event log. Its id is a cursor: pass it as `after`."""

    id: int
    job_id: int | None
    at: datetime
    event: str
    attempt: int | None
    actor: str | None
    detail: dict[str, Any]
    """Depends on the event. Times in it are datetimes."""
    queue: str | None = None
    """Of its job; None if the event is not about a job."""
    task: str | None = None
    """Of its job; None for a message."""


class Snapshot(Struct, frozen=True):
    """All results, read at one point in time."""

    at: datetime
    counts: Counts
    oldest: list[OldestJob]
    attempts: list[TaskAttempts]
    failures: list[FailureInfo]
    workers: list[WorkerHealth]
    latency: list[Latency]
    storage: Storage
    retention: RetentionStatus
