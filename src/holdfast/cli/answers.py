"""The five answers as tables: what `holdfast stats` shows of a snapshot."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from .failing import place
from .numbers import percent
from .output import Cell, Column, state
from .text import age, plural, span
from .workers import STATES, worker_state

if TYPE_CHECKING:
    from ..observe.answers import CountInfo, Latency, OldestJob, Snapshot, TaskAttempts, WorkerHealth

ORDER = ("ready", "running", "scheduled", "blocked", "failed", "cancelled", "succeeded")
MOST_NAMED = 3
BAD_ATTEMPTS, BAD_SHARE = 5, 0.5  # from these on, a task fails over and over

Row = Sequence[Cell | str]
Place = tuple[str, str | None]


class Answer(NamedTuple):
    """One of the five: what is asked, what there is to say in a line, and the rest of it."""

    question: str
    summary: Sequence[Cell | str]
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    noun: str = ""  # what the rows are
    mark: str = ","  # between what there is to say


def how_many(snapshot: Snapshot, number: Callable[[int], str]) -> Answer:
    by_status = snapshot.counts.by_status
    summary = [Cell(f"{by_status[name]:,} {name}", state(name).style) for name in ORDER if by_status.get(name)]
    rows: list[Row] = [
        [queue, place(task), *(Cell(number(counts.get(name, 0)), _style(name)) for name in ORDER)]
        for (queue, task), counts in by_place(snapshot.counts.items)
    ]
    columns = [Column("QUEUE", least=7), Column("TASK", least=8)]
    columns += [Column(name.upper(), right=True, spare=_SPARE.get(name, 0)) for name in ORDER]
    return Answer("How many", summary or ["no jobs"], columns, rows, "row")


_SPARE = {"cancelled": 3, "blocked": 2, "scheduled": 1}


def _style(status: str) -> str:
    return "red" if status == "failed" else ""


def by_place(items: Sequence[CountInfo]) -> list[tuple[Place, dict[str, int]]]:
    """Counts of each state, by queue and task; what has most to do, first."""
    places: dict[Place, dict[str, int]] = {}
    for one in items:
        here = places.setdefault((one.queue, one.task), {})
        here[one.status] = here.get(one.status, 0) + (one.count or 0)
    return sorted(places.items(), key=_busiest)


def _busiest(item: tuple[Place, dict[str, int]]) -> tuple[int, int, int, str, str]:
    (queue, task), counts = item
    live = sum(count for status, count in counts.items() if status not in ("succeeded", "cancelled", "failed"))
    return -live, -counts.get("failed", 0), -sum(counts.values()), queue, task or ""


# --- 2 ---


def stuck(snapshot: Snapshot) -> Answer:
    columns = (
        Column("JOB", right=True),
        Column("TASK", least=8),
        Column("QUEUE", least=6, spare=2),
        Column("STATUS"),
        Column("FOR", right=True),
        Column("TRY", right=True, spare=3),
        Column("WORKER", least=8),
        Column("PID", right=True),
        Column("HOST", least=6, spare=1),
        Column("HEARTBEAT", right=True),
    )
    rows = [_stuck_row(one, snapshot.at) for one in snapshot.oldest]
    return Answer("Stuck the longest", _workers(snapshot.workers), columns, rows, "job")


def _stuck_row(one: OldestJob, now: datetime) -> Row:
    worker = one.worker
    row: list[Cell | str] = [
        str(one.job_id),
        place(one.task),
        one.queue,
        state(one.status),
        span(int(one.age)),
        str(one.attempt) if one.attempt else "",
    ]
    if worker is None:
        return [*row, "", "", "", ""]
    health = worker_state(worker)
    name = Cell(worker.id, "" if health == "alive" else STATES[health])
    return [*row, name, str(worker.pid), worker.host, f"{age(worker.heartbeat_at, now)} ago"]


def _workers(workers: Sequence[WorkerHealth]) -> list[Cell | str]:
    """Those that are there, and those that are not but left no word."""
    found: dict[str, int] = {}
    for one in workers:
        if one.ended_at is None:
            found[worker_state(one)] = found.get(worker_state(one), 0) + 1
    if not found:
        return [Cell("no worker is alive", "red")]
    return [Cell(f"{plural(count, 'worker')} {name}", STATES[name]) for name, count in found.items()]


# --- 3 ---


def tried(snapshot: Snapshot, window: str, number: Callable[[int], str]) -> Answer:
    columns = (
        Column("TASK", least=8),
        Column("QUEUE", least=6, spare=2),
        Column("ENDED", right=True),
        Column("1ST", right=True),
        Column("2ND", right=True, spare=1),
        Column("3RD+", right=True, spare=1),
        Column("RETRIED", right=True),
        Column("FAILED", right=True),
        Column("FAILING", right=True),
        Column("WAIT P95", right=True, spare=4),
        Column("RUN P95", right=True, spare=3),
    )
    ordered = sorted(snapshot.attempts, key=lambda one: not keeps_failing(one))  # in its order otherwise
    latencies = {(one.queue, one.task): one for one in snapshot.latency}
    rows = [_tried_row(one, latencies.get((one.queue, one.task)), number) for one in ordered]
    ended = sum(one.jobs for one in snapshot.attempts)
    first = sum(one.by_attempt.get(1, 0) for one in snapshot.attempts)
    bad = [one.task or one.queue for one in snapshot.attempts if keeps_failing(one)]
    summary: list[Cell | str] = [Cell(f"{name} fails over and over", "red") for name in bad[:MOST_NAMED]]
    summary.append(f"{plural(ended, 'job')} ended in the last {window}")
    if ended:
        summary.append(f"{percent(first, ended)} at the first attempt")
    return Answer("Attempts", summary, columns, rows, "task")


def keeps_failing(one: TaskAttempts) -> bool:
    return one.retried + one.failed >= BAD_ATTEMPTS and one.failure_rate >= BAD_SHARE


def _tried_row(one: TaskAttempts, latency: Latency | None, number: Callable[[int], str]) -> Row:
    first, second = one.by_attempt.get(1, 0), one.by_attempt.get(2, 0)
    bad = keeps_failing(one)
    return [
        Cell(place(one.task).text, "red" if bad else place(one.task).style),
        one.queue,
        number(one.jobs),
        percent(first, one.jobs) if one.jobs else "",
        percent(second, one.jobs) if one.jobs else "",
        percent(one.jobs - first - second, one.jobs) if one.jobs else "",
        number(one.retried),
        Cell(number(one.failed), "red"),
        Cell(percent(one.failure_rate, 1), "red" if bad else ""),
        _seconds(None if latency is None else latency.wait.p95),
        _seconds(None if latency is None else latency.run.p95),
    ]


def _seconds(value: float | None) -> str:
    """Percentiles are right to an eighth: two digits are enough."""
    if value is None:
        return ""
    if value < 0.001:
        return "<1ms"
    return f"{value * 1000:.2g}ms" if value < 0.0995 else f"{value:.2g}s" if value < 9.95 else span(int(value))


# --- 4 ---


def why(snapshot: Snapshot, number: Callable[[int], str]) -> Answer:
    columns = (
        Column("ERROR", least=16),
        Column("COUNT", right=True),
        Column("TASK", least=8),
        Column("QUEUE", least=6, spare=1),
        Column("FIRST SEEN", right=True),
        Column("LAST SEEN", right=True),
        Column("LAST JOB", right=True),
    )
    rows: list[Row] = [
        [
            Cell(one.error_code, "red"),
            number(one.count),
            place(one.task),
            one.queue,
            f"{age(one.first_seen, snapshot.at)} ago",
            f"{age(one.last_seen, snapshot.at)} ago",
            str(one.last_job_id),
        ]
        for one in snapshot.failures
    ]
    total = sum(one.count for one in snapshot.failures)
    summary = (
        [f"{plural(total, 'attempt')} failed, in {plural(len(rows), 'way')}"] if rows else ["nothing has failed"]
    )
    return Answer("Why they fail", summary, columns, rows, "kind")
