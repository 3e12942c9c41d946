"""What a store tells of how it is doing. Pure data; times are microseconds."""

from typing import Any

from msgspec import Struct

# All that is in the log.
EVENTS = (
    *("enqueued", "unblocked", "promoted", "claimed", "succeeded", "retry_scheduled", "snoozed", "released"),
    *("interrupted", "returned", "recovered", "completed", "failed", "cancelled", "replaced", "requeued", "run_now"),
    *("edited", "paused", "resumed", "deleted", "purged", "pruned", "vacuumed", "migrated", "repaired"),
    *("retention_changed", "removed"),
    *("schedule_added", "schedule_changed", "schedule_paused", "schedule_resumed", "schedule_removed"),
)


class Count(Struct, frozen=True):
    """So many jobs of a task, or messages of a queue, in one state."""

    status: str
    queue: str
    task: str | None  # None: messages
    count: int


class WaitingJob(Struct, frozen=True):
    """A job that could be taken since then, or waits for others since then."""

    id: int
    queue: str
    task: str | None  # None: a message
    since: int


class FailureRecord(Struct, frozen=True):
    error_code: str
    queue: str
    task: str | None
    fingerprint: str | None
    first_seen: int
    last_seen: int
    last_job_id: int
    count: int


class Slice(Struct, frozen=True):
    """What happened in some minutes, to one task or to the messages of a queue."""

    minute: int
    queue: str
    task: str | None
    what: str
    count: int


class HistogramRecord(Struct, frozen=True):
    queue: str
    task: str | None
    what: str
    buckets: dict[int, int]


class StorageRecord(Struct, frozen=True):
    database_bytes: int
    wal_bytes: int
    free_bytes_in_file: int
    page_size: int
    disk_free_bytes: int


class EventRecord(Struct, frozen=True):
    """A line of the log. Its id is a place in it."""

    id: int
    job_id: int | None
    at: int
    event: str
    attempt: int | None
    actor: str | None
    detail: dict[str, Any]
