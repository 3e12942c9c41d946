"""`holdfast stats`: the five questions of whoever is on call, on one screen."""

from __future__ import annotations  # so that they cost nothing at import

import shutil
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from .answers import Answer, how_many, keeps_failing, stuck, tried, why
from .database import Database, takes_database
from .failing import as_data as failure_data
from .kept import as_data as kept_data
from .kept import in_words
from .numbers import short
from .options import duration, example
from .output import Cell, document, json_option, lines, say, table
from .room import share_out
from .text import iso, local, plural, span
from .workers import as_data as worker_data

if TYPE_CHECKING:
    from ..observe.answers import OldestJob, Snapshot, TaskAttempts
    from ..process import Holdfast

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
def stats(database: Database, since: float | None, limit: int | None, as_json: bool) -> None:
    """Say how it is doing: five questions, five answers, one screen.

    How many jobs are there, in which state? What is stuck the longest, and on whom? Does a task fail over and over?
    Why do they fail? How big is the file, and how long is it all kept?
    """
    with database.open() as app:
        snapshot = _look(app, since)
        place = app.store.place
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
