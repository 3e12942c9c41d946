"""`holdfast stats` and `failures`: the state of the queues on one screen, and why attempts fail."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from ...text import size, to_data
from ..options import DatabaseOption, complete_queues, complete_tasks, duration, example, read_options
from ..output import (
    Cell,
    Column,
    Row,
    age,
    document,
    due,
    lines,
    note,
    percent,
    plural,
    say,
    say_lines,
    share_lines,
    short,
    span,
    status_cell,
    table,
    task_cell,
    utc_text,
)
from .worker import STATE_STYLES

if TYPE_CHECKING:
    from ...model.stats import (
        Count,
        FailureInfo,
        Latency,
        OldestJob,
        RetentionStatus,
        Snapshot,
        Storage,
        TaskAttempts,
        WorkerHealth,
    )
    from ...supervisor import Holdfast


STATUS_ORDER = ("ready", "running", "scheduled", "blocked", "failed", "cancelled", "succeeded")
MAX_NAMED = 3  # failing tasks in the summary
MAX_LIMIT = 1000
PIPE_ROWS = 10  # per table
FRAME_LINES = 2  # the title, and the next prompt
HOUR = 3600.0
QueueTask = tuple[str, str | None]
Number = Callable[[int], str]


class StatsSection(NamedTuple):
    """A title with a summary on one line, and a table."""

    title: str
    summary: Sequence[Cell | str]
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    noun: str = ""  # what a row is
    separator: str = ","  # between the parts of the summary


@click.command(
    epilog=example(
        "holdfast stats --db app.db",
        "holdfast stats --since 15m --json --db app.db | jq .failures",
    )
)
@click.option(
    "--since", type=duration, metavar="DURATION",
    help="Only attempts and failures of the last 15m, 6h, 2d, …  [default: attempts of the last hour, all failures]",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), metavar="N",
    help="Rows per table.  [default: what fits the terminal; 10 in a pipe]",
)  # fmt: skip
@read_options
def stats(database: DatabaseOption, since: float | None, limit: int | None, as_json: bool) -> None:
    """Show the state of the queues on one screen.

    \b
    1  Jobs by state, queue and task, busiest first.
    2  The oldest running, ready and blocked jobs, with their workers.
    3  How many attempts jobs needed, how many attempts failed, and latencies.
    4  Failures by error code, most frequent first.
    5  Disk usage, retention, and what is pruned next.

    1ST, 2ND and 3RD+ are the shares of jobs that finished with that attempt, FAIL% is the share of attempts that did
    not succeed, WAIT P95 and RUN P95 are 95th percentiles. A task keeps failing if at least five attempts, and at
    least half of them, did not succeed.
    """
    with database.open() as app:
        snapshot = _snapshot(app, since)
        location = app.store.location
    if as_json:
        _print_json(snapshot, since)
        return
    number = _short_or_blank if sys.stdout.isatty() else str
    window = span(HOUR if since is None else since)
    sections = [
        _jobs_section(snapshot, number),
        _oldest_section(snapshot),
        _attempts_section(snapshot, window, number),
        _failures_section(snapshot),
        StatsSection("Storage", _storage_summary(snapshot.retention, snapshot.storage, snapshot.at), separator=";"),
    ]
    layout = _layout(sections, limit)
    lines([[Cell(location, "bold"), f"{utc_text(snapshot.at)[:-4]} UTC"]])
    for index, (section, rows) in enumerate(zip(sections, layout.rows, strict=True)):
        if layout.spaced:
            say("")
        lines([_heading(index + 1, section)], wrap=True, gap=1)
        if rows:
            table(section.columns, section.rows[:rows])
        left = len(section.rows) - rows
        if left > 0:
            lines([[Cell(f"… and {plural(left, f'more {section.noun}')}", "dim")]])


def _snapshot(app: Holdfast, since: float | None) -> Snapshot:
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


def _print_json(snapshot: Snapshot, since: float | None) -> None:
    counts = snapshot.counts
    names = ("oldest", "attempts", "failures", "workers", "latency", "storage")
    document({
        "at": snapshot.at,
        "since": since,
        "total": counts.total,
        "by_status": counts.by_status,
        "counts": counts.items,
        **{name: getattr(snapshot, name) for name in names},
        "retention": snapshot.retention,
    })  # fmt: skip


# --- layout ---


class StatsLayout(NamedTuple):
    """The number of rows of each table, and whether empty lines separate the sections."""

    rows: list[int]
    spaced: bool = True


def _layout(sections: list[StatsSection], limit: int | None) -> StatsLayout:
    """Choose the rows of each table, such that everything fits on a terminal."""
    wanted = [len(section.rows) for section in sections]
    if limit is not None:
        return StatsLayout([min(rows, limit) for rows in wanted])
    if not sys.stdout.isatty():
        return StatsLayout([min(rows, PIPE_ROWS) for rows in wanted])
    width, height = shutil.get_terminal_size()
    available = height - FRAME_LINES - sum(_fixed_lines(section, width) for section in sections)
    spaced = available - len(sections) >= min(sum(wanted), 2 * len(sections))
    return StatsLayout(share_lines(max(available - len(sections) * spaced, len(sections)), wanted), spaced)


def _fixed_lines(section: StatsSection, width: int) -> int:
    """Count the lines of a section besides its rows: heading, column titles, and `… and 3 more`."""
    length = sum(len(cell.text) + 1 for cell in _heading(1, section))
    return -(-length // width) + 2 * bool(section.rows)


def _heading(number: int, section: StatsSection) -> list[Cell]:
    cells = [part if isinstance(part, Cell) else Cell(part) for part in section.summary]
    separated = [Cell(f"{cell.text}{section.separator}", cell.style) for cell in cells[:-1]] + cells[-1:]
    return [Cell(f"{number}  {section.title}:", "bold"), *separated]


def _short_or_blank(count: int) -> str:
    """Return nothing for 0, so that a terminal leaves out columns that have only zeros."""
    return short(count) if count else ""


# --- sections ---


def _jobs_section(snapshot: Snapshot, number: Number) -> StatsSection:
    by_status = snapshot.counts.by_status
    summary = [
        Cell(f"{by_status[name]:,} {name}", status_cell(name).style) for name in STATUS_ORDER if by_status.get(name)
    ]
    rows: list[Row] = [
        [
            queue,
            task_cell(task),
            *(Cell(number(counts.get(name, 0)), "red" if name == "failed" else "") for name in STATUS_ORDER),
        ]
        for (queue, task), counts in _by_queue_and_task(snapshot.counts.items)
    ]
    spare = {"cancelled": 3, "blocked": 2, "scheduled": 1}
    columns = [Column("QUEUE", least=7), Column("TASK", least=8)]
    columns += [Column(name.upper(), right=True, spare=spare.get(name, 0)) for name in STATUS_ORDER]
    return StatsSection("Jobs", summary or ["none"], columns, rows, "row")


def _by_queue_and_task(items: Sequence[Count]) -> list[tuple[QueueTask, dict[str, int]]]:
    """Return the counts of each state by queue and task, those with most unfinished jobs first."""
    groups: dict[QueueTask, dict[str, int]] = {}
    for one in items:
        counts = groups.setdefault((one.queue, one.task), {})
        counts[one.status] = counts.get(one.status, 0) + (one.count or 0)

    def order(item: tuple[QueueTask, dict[str, int]]) -> tuple[int, int, int, str, str]:
        (queue, task), counts = item
        unfinished = sum(counts.get(status, 0) for status in ("ready", "running", "scheduled", "blocked"))
        return -unfinished, -counts.get("failed", 0), -sum(counts.values()), queue, task or ""

    return sorted(groups.items(), key=order)


def _oldest_section(snapshot: Snapshot) -> StatsSection:
    columns = (
        Column("JOB", right=True), Column("TASK", least=8), Column("QUEUE", least=6, spare=2), Column("STATUS"),
        Column("AGE", right=True), Column("ATTEMPT", right=True, spare=3), Column("WORKER", least=8),
        Column("PID", right=True), Column("HOST", least=6, spare=1), Column("HEARTBEAT", right=True),
    )  # fmt: skip
    rows = [_oldest_row(job, snapshot.at) for job in snapshot.oldest]
    return StatsSection("Oldest unfinished", _worker_summary(snapshot.workers), columns, rows, "job")


def _oldest_row(job: OldestJob, now: datetime) -> Row:
    worker = job.worker
    row: list[Cell | str] = [
        str(job.job_id),
        task_cell(job.task),
        job.queue,
        status_cell(job.status),
        span(int(job.age)),
        str(job.attempt) if job.attempt else "",
    ]
    if worker is None:
        return [*row, "", "", "", ""]
    name = Cell(worker.id, "" if worker.state == "alive" else STATE_STYLES[worker.state])
    return [*row, name, str(worker.pid), worker.host, f"{age(worker.heartbeat_at, now)} ago"]


def _worker_summary(workers: Sequence[WorkerHealth]) -> list[Cell | str]:
    """Count the workers by state, without those that have ended."""
    counts: dict[str, int] = {}
    for worker in workers:
        if worker.ended_at is None:
            counts[worker.state] = counts.get(worker.state, 0) + 1
    if not counts:
        return [Cell("no worker is alive", "red")]
    return [Cell(f"{plural(count, 'worker')} {state}", STATE_STYLES[state]) for state, count in counts.items()]


def _attempts_section(snapshot: Snapshot, window: str, number: Number) -> StatsSection:
    columns = (
        Column("TASK", least=8), Column("QUEUE", least=6, spare=2), Column("FINISHED", right=True),
        Column("1ST", right=True), Column("2ND", right=True, spare=1), Column("3RD+", right=True, spare=1),
        Column("RETRIED", right=True), Column("FAILED", right=True), Column("FAIL%", right=True),
        Column("WAIT P95", right=True, spare=4), Column("RUN P95", right=True, spare=3),
    )  # fmt: skip
    failing_first = sorted(snapshot.attempts, key=lambda one: not one.keeps_failing)
    latencies = {(one.queue, one.task): one for one in snapshot.latency}
    rows = [_attempts_row(one, latencies.get((one.queue, one.task)), number) for one in failing_first]
    finished = sum(one.jobs for one in snapshot.attempts)
    first = sum(one.by_attempt.get(1, 0) for one in snapshot.attempts)
    failing = [one.task or one.queue for one in snapshot.attempts if one.keeps_failing]
    summary: list[Cell | str] = [Cell(f"{name} keeps failing", "red") for name in failing[:MAX_NAMED]]
    summary.append(f"{plural(finished, 'job')} finished in the last {window}")
    if finished:
        summary.append(f"{percent(first, finished)} on the first attempt")
    return StatsSection("Attempts", summary, columns, rows, "task")


def _attempts_row(one: TaskAttempts, latency: Latency | None, number: Number) -> Row:
    first, second = one.by_attempt.get(1, 0), one.by_attempt.get(2, 0)
    shares = [percent(jobs, one.jobs) if one.jobs else "" for jobs in (first, second, one.jobs - first - second)]
    task = task_cell(one.task)
    return [
        Cell(task.text, "red" if one.keeps_failing else task.style),
        one.queue,
        number(one.jobs),
        *shares,
        number(one.retried),
        Cell(number(one.failed), "red"),
        Cell(percent(one.failure_rate, 1), "red" if one.keeps_failing else ""),
        _seconds(None if latency is None else latency.wait.p95),
        _seconds(None if latency is None else latency.run.p95),
    ]


def _seconds(value: float | None) -> str:
    """Format a percentile with two digits, since it comes from a histogram."""
    return "" if value is None else "<1ms" if value < 0.001 else span(value)


def _failures_section(snapshot: Snapshot) -> StatsSection:
    rows = [failure_row(failure, snapshot.at)[:-1] for failure in snapshot.failures]
    total = sum(failure.count for failure in snapshot.failures)
    errors = f"{plural(total, 'failed attempt')}, {plural(len(rows), 'distinct error')}"
    return StatsSection("Failures", [errors if rows else "none"], FAILURE_COLUMNS[:-1], rows, "error")


def _storage_summary(kept: RetentionStatus, storage: Storage, now: datetime) -> list[str]:
    unused = f" ({size(storage.free_bytes_in_file)} unused)" if storage.free_bytes_in_file else ""
    parts = [
        f"database {size(storage.database_bytes)}{unused}, WAL {size(storage.wal_bytes)}, "
        f"disk free {size(storage.disk_free_bytes)}"
    ]
    if kept.rules is None:
        return [*parts, "retention rules of another version of Holdfast: nothing is pruned"]
    parts.append(f"retention: {kept.rules}{'' if kept.automatic else ' (automatic pruning is off)'}")
    if kept.due:
        parts.append(f"due for pruning: {f'{kept.due:,}+ jobs' if kept.more_due else plural(kept.due, 'job')}")
    elif kept.next_at is not None:
        parts.append(f"next to prune: job {kept.next_job_id}, {due(kept.next_at, now)}")
    if kept.last_pruned_at is not None:
        parts.append(f"last pruned {age(kept.last_pruned_at, now)} ago: {plural(kept.last_pruned_jobs, 'job')}")
    if kept.left_behind:
        orphaned = plural(kept.left_behind, "deleted job")
        parts.append(f"orphaned rows of {orphaned}: run holdfast doctor --repair")
    else:
        parts.append("no orphaned rows")
    return parts


FAILURE_COLUMNS = (
    Column("ERROR", least=16), Column("COUNT", right=True), Column("TASK", least=8),
    Column("QUEUE", least=6, spare=2), Column("FIRST SEEN", right=True, spare=3),
    Column("LAST SEEN", right=True, spare=1), Column("LAST JOB", right=True),
    Column("FINGERPRINT", least=8, spare=4),
)  # fmt: skip
MAX_FAILURES = 1000


@click.command(
    epilog=example(
        "holdfast failures --since 1h --db app.db",
        "holdfast failures --task send_mail --traceback --limit 3 --db app.db",
    )
)
@click.option("--queue", "-q", metavar="NAME", shell_complete=complete_queues, help="Only failures of this queue.")
@click.option("--task", "-t", metavar="NAME", shell_complete=complete_tasks, help="Only failures of this task.")
@click.option("--since", type=duration, metavar="DURATION", help="Only failures seen within the last 30m, 1h, 2d, …")
@click.option("--traceback", "with_tracebacks", is_flag=True, help="Show the traceback of each failure.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_FAILURES), default=20, show_default=True, metavar="N",
    help="List at most N failures.",
)  # fmt: skip
@read_options
def failures(
    database: DatabaseOption,
    queue: str | None,
    task: str | None,
    since: float | None,
    with_tracebacks: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List failures by error code, most frequent first.

    A code has one row per task, queue and place in the program (its fingerprint). The count includes attempts that
    were retried and jobs that were deleted since.
    """
    window = None if since is None else timedelta(seconds=since)
    with database.open() as app:
        found = app.observe.failures(window, limit, with_tracebacks, task=task, queue=queue)
    if as_json:
        omit = ("trend",) if with_tracebacks else ("trend", "traceback")
        document({"failures": [to_data(failure, omit=omit) for failure in found]})
        return
    if not found:
        note("No matching failures." if queue or task or since is not None else "No failures.")
        return
    now = datetime.now(UTC)
    if not with_tracebacks:
        table(FAILURE_COLUMNS, [failure_row(failure, now) for failure in found])
        return
    for index, failure in enumerate(found):
        if index:
            say("")
        table(FAILURE_COLUMNS, [failure_row(failure, now)])
        say("")
        text = (failure.traceback or "No traceback stored.").rstrip()
        say_lines("\n".join(f"    {line}" for line in text.split("\n")))


def failure_row(failure: FailureInfo, now: datetime) -> list[Cell | str]:
    return [
        Cell(failure.error_code, "red"),
        f"{failure.count:,}",
        task_cell(failure.task),
        failure.queue,
        f"{age(failure.first_seen, now)} ago",
        f"{age(failure.last_seen, now)} ago",
        str(failure.last_job_id),
        failure.fingerprint or "",
    ]
