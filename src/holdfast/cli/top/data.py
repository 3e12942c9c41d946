"""Read what `holdfast top` shows, with a few short queries."""

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


SPARKLINE_MINUTES = 60
MAX_FAILURES = 200
MAX_RUNNING = 500
MAX_BATCHES = 1000
FINISHED = ("succeeded", "failed", "cancelled")
FAILURE_WINDOW = timedelta(days=1)


class QueueLine(NamedTuple):
    name: str
    counts: dict[str, int]
    per_minute: float
    oldest: float | None  # age of the oldest ready job, in seconds
    paused: bool


class FailureLine(NamedTuple):
    info: FailureInfo
    status: str | None  # of the last job with this failure; None if it was deleted


class TopData(NamedTuple):
    at: datetime
    counts: dict[str, int]
    done: list[int]  # finished jobs per minute, oldest first
    failed: list[int]  # failed attempts per minute, oldest first
    queues: list[QueueLine]
    running: list[JobRecord]
    failures: list[FailureLine]
    workers: list[WorkerHealth]
    batches: int = 0  # not done

    @property
    def done_per_minute(self) -> float:
        return per_minute(self.done, self.at)

    @property
    def failed_per_minute(self) -> float:
        return per_minute(self.failed, self.at)


def per_minute(minutes: list[int], now: datetime) -> float:
    """Estimate the rate of the last 60 seconds, assuming that the previous minute was even."""
    share = (now.second + now.microsecond / 1_000_000) / 60
    return minutes[-1] + minutes[-2] * (1 - share)


def matches(pattern: str, queue: str, task: str | None) -> bool:
    """Return whether the name of the queue or of the task contains the text."""
    text = pattern.casefold()
    return text in queue.casefold() or text in (task or "message").casefold()


def read_data(app: Holdfast, pattern: str = "") -> TopData:
    """Read what the screen shows. pattern: only queues and tasks whose name contains this."""
    now = datetime.now(UTC)
    items = [one for one in app.store.statistics.counts().items if matches(pattern, one.queue, one.task)]
    points = [
        one
        for one in app.observe.throughput(timedelta(minutes=SPARKLINE_MINUTES - 1))
        if matches(pattern, one.queue, one.task)
    ]
    return TopData(
        at=now,
        counts=_sum(items),
        done=_by_minute(points, now, *FINISHED),
        failed=_by_minute(points, now, "failed", "retried"),
        queues=_queues(app, pattern, items, points, now),
        running=_running(app, pattern),
        failures=_failures(app, pattern),
        workers=[one for one in app.observe.workers() if one.ended_at is None],
        batches=_count_unfinished_batches(app),
    )


def _count_unfinished_batches(app: Holdfast) -> int:
    batches = app.store.workflows.batches
    return len(batches("open", MAX_BATCHES, counted=False)) + len(batches("running", MAX_BATCHES, counted=False))


def _sum(items: Iterable[Count]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in items:
        found[one.status] = found.get(one.status, 0) + (one.count or 0)
    return found


def _by_minute(points: Iterable[ThroughputPoint], now: datetime, *names: str) -> list[int]:
    found = [0] * SPARKLINE_MINUTES
    this_minute = now.replace(second=0, microsecond=0)
    for one in points:
        ago = round((this_minute - one.at).total_seconds() / 60)
        if 0 <= ago < SPARKLINE_MINUTES:
            found[SPARKLINE_MINUTES - 1 - ago] += sum(getattr(one, name) for name in names)
    return found


def _queues(
    app: Holdfast, pattern: str, items: list[Count], points: list[ThroughputPoint], now: datetime
) -> list[QueueLine]:
    """Return the queues that have a job in any state, and those that are paused."""
    is_paused = app.store.statistics.counts().paused
    paused = {name for name in is_paused if is_paused[name] and matches(pattern, name, "")}
    ready = sorted(app.store.statistics.oldest(-1, ("ready",)), key=lambda one: -one.since)
    oldest = {one.queue: one.since for one in ready if matches(pattern, one.queue, one.task)}
    found = []
    for name in sorted({one.queue for one in items} | paused):
        counts = _sum(one for one in items if one.queue == name)
        done = _by_minute((one for one in points if one.queue == name), now, *FINISHED)
        since = oldest.get(name)
        waiting = None if since is None else max(0.0, (as_microseconds(now) - since) / SECOND)
        found.append(QueueLine(name, counts, per_minute(done, now), waiting, name in paused))
    return found


def _running(app: Holdfast, pattern: str) -> list[JobRecord]:
    """Return the running jobs, longest running first, then those that are claimed and not started."""
    ids = tuple(one.id for one in app.store.statistics.oldest(MAX_RUNNING, ("running",)))
    found = app.store.jobs.list(Criteria(ids=ids, status=("running",)), MAX_RUNNING).records if ids else []
    found = [job for job in found if matches(pattern, job.queue, job.task)]
    return sorted(found, key=lambda job: (job.started_at is None, job.started_at or 0, job.id))


def _failures(app: Holdfast, pattern: str) -> list[FailureLine]:
    found = app.observe.failures(FAILURE_WINDOW, MAX_FAILURES, with_tracebacks=False)
    found = [one for one in found if matches(pattern, one.queue, one.task)]
    ids = tuple({one.last_job_id for one in found})
    records = app.store.jobs.list(Criteria(ids=ids), len(ids)).records if ids else []
    statuses: dict[int, str] = {record.id: record.status for record in records}
    return [FailureLine(one, statuses.get(one.last_job_id)) for one in found]
