"""What `holdfast top` shows, read in one go. Each part is a short read, of what the screen has room for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from ...clock import SECOND, as_microseconds
from ...model.job import Criteria

if TYPE_CHECKING:
    from ...model.job import JobRecord
    from ...model.stats import Count
    from ...observe.results import FailureInfo, ThroughputPoint, WorkerHealth
    from ...supervisor import Holdfast


MINUTES = 60  # of the sparkline
FAILURES = 200
RUNNING = 500
DONE = ("succeeded", "failed", "cancelled")
RECENT = timedelta(days=1)  # failures that nobody has seen since are not news


class QueueLine(NamedTuple):
    name: str
    counts: dict[str, int]
    per_minute: float
    oldest: float | None  # seconds that the oldest ready job waits
    paused: bool


class FailureLine(NamedTuple):
    info: FailureInfo
    status: str | None  # of the last job that failed so; None if it is gone


class Glance(NamedTuple):
    at: datetime
    counts: dict[str, int]
    done: list[int]  # jobs that ended in each of the last minutes, the newest last
    failed: list[int]
    queues: list[QueueLine]
    running: list[JobRecord]
    failures: list[FailureLine]
    workers: list[WorkerHealth]

    @property
    def done_per_minute(self) -> float:
        return per_minute(self.done, self.at)

    @property
    def failed_per_minute(self) -> float:
        return per_minute(self.failed, self.at)


def per_minute(minutes: list[int], now: datetime) -> float:
    """Of the last sixty seconds, as if the minute before had been even."""
    share = (now.second + now.microsecond / 1_000_000) / 60
    return minutes[-1] + minutes[-2] * (1 - share)


def fits(wanted: str, queue: str, task: str | None) -> bool:
    """Whether the text is in the name of the queue or of the task."""
    text = wanted.casefold()
    return text in queue.casefold() or text in (task or "message").casefold()


def take_glance(app: Holdfast, wanted: str = "") -> Glance:
    """wanted: only what has this in the name of its queue or task."""
    now = datetime.now(UTC)
    items = [one for one in app.store.statistics.counts().items if fits(wanted, one.queue, one.task)]
    points = [
        one for one in app.observe.throughput(timedelta(minutes=MINUTES - 1)) if fits(wanted, one.queue, one.task)
    ]
    return Glance(
        at=now,
        counts=_sum(items),
        done=_by_minute(points, now, *DONE),
        failed=_by_minute(points, now, "failed", "retried"),
        queues=_queues(app, wanted, items, points, now),
        running=_running(app, wanted),
        failures=_failures(app, wanted),
        workers=[one for one in app.observe.workers() if one.ended_at is None],
    )


def _sum(items: Iterable[Count]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in items:
        found[one.status] = found.get(one.status, 0) + (one.count or 0)
    return found


def _by_minute(points: Iterable[ThroughputPoint], now: datetime, *names: str) -> list[int]:
    found = [0] * MINUTES
    this = now.replace(second=0, microsecond=0)
    for one in points:
        ago = round((this - one.at).total_seconds() / 60)
        if 0 <= ago < MINUTES:
            found[MINUTES - 1 - ago] += sum(getattr(one, name) for name in names)
    return found


def _queues(
    app: Holdfast, wanted: str, items: list[Count], points: list[ThroughputPoint], now: datetime
) -> list[QueueLine]:
    """Those that have a job, be it one that has ended; and those that are paused."""
    is_paused = app.store.statistics.counts().paused
    paused = {name for name in is_paused if is_paused[name] and fits(wanted, name, "")}
    ready = sorted(app.store.statistics.oldest(-1, ("ready",)), key=lambda one: -one.since)
    oldest = {one.queue: one.since for one in ready if fits(wanted, one.queue, one.task)}
    found = []
    for name in sorted({one.queue for one in items} | paused):
        counts = _sum(one for one in items if one.queue == name)
        done = _by_minute((one for one in points if one.queue == name), now, *DONE)
        since = oldest.get(name)
        waits = None if since is None else max(0.0, (as_microseconds(now) - since) / SECOND)
        found.append(QueueLine(name, counts, per_minute(done, now), waits, name in paused))
    return found


def _running(app: Holdfast, wanted: str) -> list[JobRecord]:
    """The longest first. Those that were taken and have not begun come last."""
    ids = tuple(one.id for one in app.store.statistics.oldest(RUNNING, ("running",)))
    found = app.store.jobs.list(Criteria(ids=ids, status=("running",)), RUNNING).records if ids else []
    found = [job for job in found if fits(wanted, job.queue, job.task)]
    return sorted(found, key=lambda job: (job.started_at is None, job.started_at or 0, job.id))


def _failures(app: Holdfast, wanted: str) -> list[FailureLine]:
    found = app.observe.failures(RECENT, FAILURES, with_tracebacks=False)
    found = [one for one in found if fits(wanted, one.queue, one.task)]
    ids = tuple({one.last_job_id for one in found})
    records = app.store.jobs.list(Criteria(ids=ids), len(ids)).records if ids else []
    statuses: dict[int, str] = {record.id: record.status for record in records}
    return [FailureLine(one, statuses.get(one.last_job_id)) for one in found]
