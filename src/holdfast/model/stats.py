"""What a store tells of how it is doing. Pure data; times are microseconds."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from ..clock import SECOND


class QueueStats(Struct, frozen=True):
    """The messages of a queue. `total` is all that are still there: the sum of the four states.

    None is unknown: more messages without history are there than are counted one by one.
    """

    total: int | None
    ready: int | None
    scheduled: int | None
    running: int | None
    failed: int | None
    oldest_ready_age: float | None
    """For how long the one that has waited longest could have been received, in seconds; None if none is ready."""
    paused: bool


class QueueOverview(Struct, frozen=True):
    """One queue, its tasks and its messages together."""

    name: str
    ready: int | None
    """None: unknown, since more jobs without history are there than are counted one by one."""
    scheduled: int | None
    blocked: int | None
    running: int | None
    failed: int | None
    oldest_ready_age: float | None
    """For how long the one that has waited longest could have been taken, in seconds; None if none is ready."""
    paused: bool


# All that is in the log.
EVENTS = (
    *("enqueued", "unblocked", "promoted", "claimed", "succeeded", "retry_scheduled", "snoozed", "released"),
    *("interrupted", "returned", "recovered", "completed", "failed", "cancelled", "replaced", "requeued", "run_now"),
    *("edited", "paused", "resumed", "deleted", "purged", "pruned", "vacuumed", "migrated", "repaired"),
    *("retention_changed", "removed"),
    *("schedule_added", "schedule_changed", "schedule_paused", "schedule_resumed", "schedule_removed"),
)


class Count(Struct, frozen=True):
    """The number of jobs of a task, or of messages of a queue, in one state."""

    status: str
    queue: str
    task: str | None  # None: messages
    count: int | None  # None: unknown, since there are too many without history


class CountsRecord(Struct, frozen=True):
    items: list[Count]
    paused: dict[str, bool]  # queues that were ever paused, and whether they are


class WaitingJob(Struct, frozen=True):
    """A job that runs, could be claimed, or is blocked since then."""

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


class MinuteRecord(Struct, frozen=True):
    """What happened in one or several minutes, to one task or to the messages of a queue. See fold.py."""

    minute: int
    queue: str
    task: str | None
    measure: str
    bucket: int
    count: int


class Totals(Struct, frozen=True):
    """Sums since the beginning, which only grow. A message has the task ''."""

    enqueued: int
    """How many jobs and messages there ever were, those without history too."""
    outcomes: dict[tuple[str, str, str], int]
    """Attempts by queue, task and outcome."""
    histograms: dict[tuple[str, str, str], dict[int, int]]
    """By queue, task and measure: the counts of buckets."""
    durations: dict[tuple[str, str, str], int]
    """By queue, task and measure: the sum, in microseconds."""
    errors: dict[tuple[str, str, str], int]
    """Failures by error code, queue and task."""


class StorageRecord(Struct, frozen=True):
    database_bytes: int
    wal_bytes: int
    free_bytes_in_file: int
    page_size: int
    disk_free_bytes: int


class EventRecord(Struct, frozen=True):
    """An entry of the log. Its id is a cursor."""

    id: int
    job_id: int | None
    at: int
    event: str
    attempt: int | None
    actor: str | None
    detail: dict[str, Any]


SHOWN = ("ready", "scheduled", "blocked", "running", "failed")  # of a queue, in an overview


def queue_stats(queue: str, counts: CountsRecord, waiting: Sequence[WaitingJob], now: int) -> QueueStats:
    """The messages of a queue. waiting: those that could be received for longest."""
    found = {one.status: one.count for one in counts.items if one.task is None and one.queue == queue}
    n = {status: found.get(status, 0) for status in ("ready", "scheduled", "running", "failed")}
    messages = [one for one in waiting if one.task is None and one.queue == queue]
    return QueueStats(
        total=_sum(n.values()), **n, oldest_ready_age=_age(messages, now), paused=counts.paused.get(queue, False)
    )


def queue_overviews(counts: CountsRecord, waiting: Sequence[WaitingJob], now: int) -> list[QueueOverview]:
    """Queues that have something waiting, running or failed, or that were ever paused, by name."""
    found: dict[str, dict[str, list[int | None]]] = {name: {} for name in counts.paused}
    for one in counts.items:
        if one.status in SHOWN:
            found.setdefault(one.queue, {}).setdefault(one.status, []).append(one.count)
    return [
        QueueOverview(
            name=name,
            **{status: _sum(found[name].get(status, ())) for status in SHOWN},
            oldest_ready_age=_age([one for one in waiting if one.queue == name], now),
            paused=counts.paused.get(name, False),
        )
        for name in sorted(found)
    ]


def _age(waiting: Sequence[WaitingJob], now: int) -> float | None:
    """Of the oldest, in seconds."""
    return max(0.0, (now - min(one.since for one in waiting)) / SECOND) if waiting else None


def _sum(counts: Collection[int | None]) -> int | None:
    """None where one of them is unknown."""
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None
