"""`holdfast stats`: the five questions of whoever is on call, on one screen."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from ...text import size
from ..options import DatabaseOption, duration, example, takes_database
from ..output import (
    Cell,
    Column,
    age,
    document,
    due,
    iso,
    json_option,
    lines,
    local,
    optional_iso,
    percent,
    plural,
    say,
    short,
    span,
    state,
    table,
)
from ..top.layout import share_out
from .failures import as_data as failure_data
from .failures import place
from .workers import STATES, worker_state
from .workers import as_data as worker_data

if TYPE_CHECKING:
    from datetime import datetime

    from ...observe.results import CountInfo, Kept, Latency, OldestJob, Snapshot, Storage, TaskAttempts, WorkerHealth
    from ...supervisor import Holdfast


def in_words(kept: Kept, storage: Storage, now: datetime) -> list[str]:
    words = [f"the file has {size(storage.database_bytes)}"]
    if storage.free_bytes_in_file:
        words.append(f"{size(storage.free_bytes_in_file)} of it unused")
    words.append(f"its log {size(storage.wal_bytes)}")
    words.append(f"{size(storage.disk_free_bytes)} free on the disk")
    sentences = [", ".join(words)]
    if kept.rules is None:
        return [*sentences, "the rules are of another version of Holdfast: nothing is deleted"]
    sentences.append(f"kept: {kept.rules}{'' if kept.automatic else ' (only when somebody prunes)'}")
    if kept.due:
        jobs = f"{kept.due:,}+ jobs" if kept.more_due else plural(kept.due, "job")
        sentences.append(f"to be deleted now: {jobs}")
    elif kept.next_at is not None:
        sentences.append(f"next to be deleted: job {kept.next_job_id}, {due(kept.next_at, now)}")
    if kept.last_pruned_at is not None:
        sentences.append(f"last pruned {age(kept.last_pruned_at, now)} ago: {plural(kept.last_pruned_jobs, 'job')}")
    if kept.left_behind:
        sentences.append(f"rows of {plural(kept.left_behind, 'deleted job')} are left: holdfast doctor --repair")
    else:
        sentences.append("deleting left nothing behind")
    return sentences


def kept_data(kept: Kept) -> dict[str, Any]:
    return {
        "rules": kept.rules,
        "automatic": kept.automatic,
        "due": kept.due,
        "more_due": kept.more_due,
        "next_job_id": kept.next_job_id,
        "next_at": optional_iso(kept.next_at),
        "last_pruned_at": optional_iso(kept.last_pruned_at),
        "last_pruned_jobs": kept.last_pruned_jobs,
        "left_behind": kept.left_behind,
    }


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


MOST = 1000
IN_A_PIPE = 10  # rows of each table
FRAME_LINES = 2  # the first one, and the next prompt
HOUR = 3600.0


@click.command(
    epilog=example(
        "holdfast stats --db app.db",
        "holdfast stats --since 15m --json --db app.db | jq .failures",
    )
)
@click.option(
    "--since", type=duration, metavar="DURATION",
    help="Attempts and failures of the last 15m, 6h, 2d, …  [default: attempts of the last hour, all failures]",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1, MOST), metavar="N", help="Rows of each table.  [default: as there is room]"
)
@takes_database
@json_option
def stats(database: DatabaseOption, since: float | None, limit: int | None, as_json: bool) -> None:
    """Say how it is doing: five questions, five answers, one screen.

    How many jobs are there, in which state? What is stuck the longest, and on whom? Does a task fail over and over?
    Why do they fail? How big is the file, and how long is it all kept?
    """
    with database.open() as app:
        snapshot = _look(app, since)
        place = app.store.location
    if as_json:
        document(_as_data(snapshot, since))
        return
    number = short_or_nothing if sys.stdout.isatty() else str
    window = span(HOUR if since is None else since)
    answers = [how_many(snapshot, number), stuck(snapshot), tried(snapshot, window, number), why(snapshot, number)]
    answers.append(Answer("On disk", in_words(snapshot.kept, snapshot.storage, snapshot.at), mark=";"))
    layout = _layout(answers, limit)
    lines([[Cell(place, "bold"), f"{local(snapshot.at)[:-4]} UTC"]])
    for index, (answer, rows) in enumerate(zip(answers, layout.rows, strict=True)):
        if layout.airy:
            say("")
        lines([_heading(index + 1, answer)], wrap=True, gap=1)
        if rows:
            table(answer.columns, answer.rows[:rows])
        left = len(answer.rows) - rows
        if left > 0:
            lines([[Cell(f"… and {plural(left, f'more {answer.noun}')}", "dim")]])


def short_or_nothing(count: int) -> str:
    """So that a column without any is left out on a terminal."""
    return short(count) if count else ""


def _look(app: Holdfast, since: float | None) -> Snapshot:
    snapshot = app.observe.snapshot()
    if since is None:
        return snapshot
    window = timedelta(seconds=since)
    return msgspec.structs.replace(
        snapshot,
        attempts=app.observe.attempts(window),
        failures=app.observe.failures(window),
        latency=app.observe.latency(since=window),
    )


# --- for people ---


class Layout(NamedTuple):
    """How many rows of each table there are, and whether there is room for empty lines."""

    rows: list[int]
    airy: bool = True


def _layout(answers: list[Answer], limit: int | None) -> Layout:
    """On a terminal, such that all is seen at once."""
    wants = [len(answer.rows) for answer in answers]
    if limit is not None:
        return Layout([min(want, limit) for want in wants])
    if not sys.stdout.isatty():
        return Layout([min(want, IN_A_PIPE) for want in wants])
    width, height = shutil.get_terminal_size()
    room = height - FRAME_LINES - sum(_lines_besides(index, answer, width) for index, answer in enumerate(answers))
    airy = room - len(answers) >= min(sum(wants), 2 * len(answers))
    return Layout(share_out(max(room - len(answers) * airy, len(answers)), wants), airy)


def _lines_besides(index: int, answer: Answer, width: int) -> int:
    """Its heading, the names of its columns, and how many more there are."""
    long = sum(len(cell.text) + 1 for cell in _heading(index, answer))
    return -(-long // width) + 2 * bool(answer.rows)


def _heading(number: int, answer: Answer) -> list[Cell]:
    cells = [part if isinstance(part, Cell) else Cell(part) for part in answer.summary]
    listed = [Cell(f"{cell.text}{answer.mark}", cell.style) for cell in cells[:-1]] + cells[-1:]
    return [Cell(f"{number}  {answer.question}:", "bold"), *listed]


# --- for programs ---


def _as_data(snapshot: Snapshot, since: float | None) -> dict[str, Any]:
    return {
        "at": iso(snapshot.at),
        "since": since,
        "total": snapshot.counts.total,
        "by_status": snapshot.counts.by_status,
        "counts": snapshot.counts.items,
        "oldest": [_oldest_data(one) for one in snapshot.oldest],
        "attempts": [_attempts_data(one) for one in snapshot.attempts],
        "failures": [failure_data(one, with_traceback=True) for one in snapshot.failures],
        "workers": [worker_data(one) for one in snapshot.workers],
        "latency": snapshot.latency,
        "storage": snapshot.storage,
        "retention": kept_data(snapshot.kept),
    }


def _oldest_data(one: OldestJob) -> dict[str, Any]:
    return {
        "job_id": one.job_id,
        "status": one.status,
        "queue": one.queue,
        "task": one.task,
        "since": iso(one.since),
        "age": one.age,
        "attempt": one.attempt,
        "worker": None if one.worker is None else worker_data(one.worker),
    }


def _attempts_data(one: TaskAttempts) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "task": one.task,
        "jobs": one.jobs,
        "by_attempt": {str(attempt): count for attempt, count in one.by_attempt.items()},
        "succeeded": one.succeeded,
        "retried": one.retried,
        "failed": one.failed,
        "failure_rate": one.failure_rate,
        "over_and_over": keeps_failing(one),
    }
