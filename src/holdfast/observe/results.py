"""What `app.observe` answers with. Pure data; times are aware datetimes, spans are seconds."""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct


class CountInfo(Struct, frozen=True):
    """So many jobs of a task, or messages of a queue, in one state."""

    status: str
    queue: str
    task: str | None
    """None: messages."""
    count: int | None
    """None: unknown, since more jobs without history are there than are counted one by one."""


class Counts(Struct, frozen=True):
    """How many jobs there are, in each state, by queue and task."""

    items: list[CountInfo]

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
    def unknown(self) -> list[CountInfo]:
        """What could not be counted, and is in none of the sums."""
        return [one for one in self.items if one.count is None]

    def _by(self, name: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in self.items:
            place = getattr(one, name)
            found[place] = found.get(place, 0) + (one.count or 0)
        return found


class WorkerHealth(Struct, frozen=True):
    """A worker, and whether its process is there."""

    id: str
    pid: int
    host: str
    alive: bool
    """By the lock that it holds for as long as it lives, not by its heartbeat."""
    stopped: bool
    """By a signal: it does nothing until it is continued."""
    started_at: datetime
    heartbeat_at: datetime
    running: int
    """How many jobs it has taken."""
    concurrency: int
    queues: tuple[str, ...] | None
    """None: all of them."""
    ended_at: datetime | None
    ending: Literal["stopped", "lost"] | None

    @property
    def state(self) -> Literal["alive", "halted", "stopped", "lost"]:
        """alive, halted (suspended by a signal), stopped (shut down) or lost (its process died)."""
        if self.ended_at is not None:
            return self.ending or "stopped"
        if not self.alive:
            return "lost"
        return "halted" if self.stopped else "alive"


class OldestJob(Struct, frozen=True):
    """A job that has been in its state for long."""

    job_id: int
    status: str
    queue: str
    task: str | None
    since: datetime
    """When it was claimed, if it is running; when it was enqueued or due, if it waits."""
    age: float
    attempt: int
    worker: WorkerHealth | None
    """Who runs it."""


class TaskAttempts(Struct, frozen=True):
    """With how many attempts the jobs of a task ended, and how many attempts there were."""

    queue: str
    task: str | None
    by_attempt: dict[int, int]
    """How many jobs ended with their first attempt, their second, and so on."""
    succeeded: int
    retried: int
    """Attempts that failed and were, or will be, tried again."""
    failed: int
    """Jobs that failed for good."""

    @property
    def jobs(self) -> int:
        return sum(self.by_attempt.values())

    @property
    def failure_rate(self) -> float:
        """Of all attempts that ended well or badly, the share that did not succeed."""
        tried = self.succeeded + self.retried + self.failed
        return (self.retried + self.failed) / tried if tried else 0.0

    @property
    def keeps_failing(self) -> bool:
        """Whether at least five attempts did not succeed, and those are at least half of all."""
        return self.retried + self.failed >= 5 and self.failure_rate >= 0.5


class FailureInfo(Struct, frozen=True):
    """Failures of one kind at one place."""

    error_code: str
    queue: str
    task: str | None
    count: int
    first_seen: datetime
    last_seen: datetime
    last_job_id: int
    """It may be gone by now."""
    fingerprint: str | None
    traceback: str | None


class ThroughputPoint(Struct, frozen=True):
    """What ended in one step of time, of one task or of the messages of a queue."""

    at: datetime
    queue: str
    task: str | None
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0


class Percentiles(Struct, frozen=True):
    """Seconds; None where nothing was measured. From histograms, whose buckets are a quarter wide."""

    p50: float | None
    p95: float | None
    p99: float | None


class Latency(Struct, frozen=True):
    """How long attempts of a task waited from when they were due to when they began, and how long they ran."""

    queue: str
    task: str | None
    count: int
    wait: Percentiles
    run: Percentiles


class Storage(Struct, frozen=True):
    """How big it is. Bytes."""

    database_bytes: int
    wal_bytes: int
    free_bytes_in_file: int
    """Pages that are not in use, and that a vacuum would give back."""
    page_size: int
    disk_free_bytes: int


class Kept(Struct, frozen=True):
    """How long things are kept, what goes next, and whether deleting leaves something behind."""

    rules: str | None
    """In words. None: they are of another version of Holdfast, and nothing is deleted."""
    automatic: bool
    """Whether workers delete by themselves."""
    due: int
    """How many jobs are to be deleted now, by their age."""
    more_due: bool
    """There are more than were counted."""
    next_job_id: int | None
    next_at: datetime | None
    """When the next one is to be deleted."""
    last_pruned_at: datetime | None
    last_pruned_jobs: int
    left_behind: int
    """Deleted jobs of which rows are left, as far as a short look tells. `holdfast doctor` has more."""


class Event(Struct, frozen=True):
    """A line of the log. Its id is a cursor: pass it as `after`."""

    id: int
    job_id: int | None
    at: datetime
    event: str
    attempt: int | None
    actor: str | None
    detail: dict[str, Any]
    """What is in it depends on the event. Times in it are datetimes."""


class Snapshot(Struct, frozen=True):
    """All of it, at one time."""

    at: datetime
    counts: Counts
    oldest: list[OldestJob]
    attempts: list[TaskAttempts]
    failures: list[FailureInfo]
    workers: list[WorkerHealth]
    latency: list[Latency]
    storage: Storage
    kept: Kept
