"""Results of `app.observe`. Times are aware datetimes, durations are seconds."""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ..model.stats import Counts, Storage


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
