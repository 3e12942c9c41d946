"""`holdfast events`: the log, its end or from a cursor on, and what comes."""

from __future__ import annotations  # so that they cost nothing at import

import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from ..model import Criteria
from .complete import complete_jobs
from .database import Database, takes_database
from .options import example, job_id
from .output import Cell, json_lines, json_option, lines, note
from .text import iso, local, written

if TYPE_CHECKING:
    from ..observe.answers import Event
    from ..process import Holdfast

BATCH = 500  # of events that are read at once
SHOWN, MOST = 20, 1000
FOREVER_SECONDS = 3600.0

# The widths from which a value makes its own line crooked, but no other.
JOB_WIDTH, TASK_WIDTH, EVENT_WIDTH = 7, 16, 15
DATE_WIDTH = 11

STYLES = {
    "succeeded": "green",
    "completed": "green",
    "failed": "red",
    "retry_scheduled": "yellow",
    "recovered": "yellow",
    "cancelled": "yellow",
    "claimed": "cyan",
}


class Subject(NamedTuple):
    """What an event is about, as far as that is there still."""

    queue: str | None
    task: str | None


NOBODY = Subject(None, None)


@click.command(
    epilog=example(
        "holdfast events --follow --db app.db",
        "holdfast events --job 42 --db app.db",
        "holdfast events --after 1017 --follow --json --db app.db | jq .event",
    )
)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option("--job", "of_job", type=job_id, metavar="ID", shell_complete=complete_jobs, help="Of this job only.")
@click.option(
    "--after", type=click.IntRange(0, 2**63 - 1), metavar="CURSOR", help="All since this event: its id is a cursor."
)
@click.option(
    "--limit", type=click.IntRange(1, MOST), metavar="N",
    help="The last N; with --after, the first N.  [default: 20; with --after, all]",
)  # fmt: skip
@takes_database
@json_option
def events(
    database: Database, follow: bool, of_job: int | None, after: int | None, limit: int | None, as_json: bool
) -> None:
    """Print the log: every change of a job, a queue or a schedule, and who did it.

    With --json, one object per line. The last cursor is told beside the pipe, or stands in each line's id.
    """
    with database.open() as app:
        if of_job is not None and not follow:
            app.jobs.get(of_job)  # or say that there is none
        show = _Printer(app, as_json)
        cursor = _past(app, show, of_job, after, limit)
        if follow:
            with _Reader(app.store.wake_waiting) as reader:
                _follow(app, show, of_job, cursor, reader)
    if not show.count:
        note("No events.")
    elif not as_json:
        note(f"Go on from here: --after {cursor}")


def _past(app: Holdfast, show: _Printer, job: int | None, after: int | None, limit: int | None) -> int:
    """What there is, and the cursor behind it."""
    if after is None:
        end = app.observe.last_event()  # before the look, so that following misses nothing
        found = app.observe.last_events(SHOWN if limit is None else limit, job)
        show(found)
        return max(end, found[-1].id if found else 0)
    cursor = after
    for batch in _from(app, job, after, limit):
        show(batch)
        cursor = batch[-1].id
    return cursor


def _from(app: Holdfast, job: int | None, cursor: int, limit: int | None = None) -> Iterator[list[Event]]:
    left = limit
    while left != 0:
        wanted = BATCH if left is None else min(BATCH, left)
        batch = app.observe.events(cursor, wanted, job)
        if not batch:
            return
        yield batch
        cursor = batch[-1].id
        if left is not None:
            left -= len(batch)
        elif len(batch) < wanted:
            return


def _follow(app: Holdfast, show: _Printer, job: int | None, cursor: int, reader: _Reader) -> None:
    """Until somebody ends it. It sleeps until anyone commits."""
    while not reader.is_gone:
        seen = app.store.commits_seen()
        for batch in _from(app, job, cursor):
            show(batch)
            cursor = batch[-1].id
        app.store.wait_for_commit(seen, FOREVER_SECONDS)
    raise BrokenPipeError


class _Reader:
    """Whoever reads our output. When they go away we are woken, and need no event to find out."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_gone = False
        self._wake = wake

    def __enter__(self) -> _Reader:
        with suppress(OSError, ValueError):  # stdout may be no file
            threading.Thread(target=self._watch, args=(sys.stdout.fileno(),), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake = lambda: None

    def _watch(self, stdout: int) -> None:
        poll = select.poll()
        poll.register(stdout, 0)  # only what is told unasked: that the other side was closed
        for _, happened in poll.poll():
            self.is_gone = bool(happened & (select.POLLERR | select.POLLHUP))
            self._wake()


class _Printer:
    """Prints events, each on a line of its own."""

    def __init__(self, app: Holdfast, as_json: bool) -> None:
        self._app, self._as_json = app, as_json
        self._known: dict[int, Subject] = {}
        self.count = 0

    def __call__(self, batch: Sequence[Event]) -> None:
        self.count += len(batch)
        if not batch:
            return
        subjects = self._subjects({one.job_id for one in batch if one.job_id is not None})
        pairs = [(one, NOBODY if one.job_id is None else subjects.get(one.job_id, NOBODY)) for one in batch]
        if self._as_json:
            json_lines(_as_data(*pair) for pair in pairs)
        else:
            lines(_cells(*pair) for pair in pairs)

    def _subjects(self, ids: set[int]) -> dict[int, Subject]:
        """One read for all: a task does not change, so what is known stays."""
        known = {id: self._known[id] for id in ids if id in self._known}
        missing = tuple(ids - known.keys())
        if missing:
            records = self._app.store.list(Criteria(ids=missing), len(missing))
            known |= {record.id: Subject(record.queue, record.task) for record in records}
        self._known = known
        return known


def _cells(one: Event, subject: Subject) -> list[Cell]:
    detail = _detail(one)
    about = subject.task or ("" if subject.queue is None else f"message on {subject.queue}")
    return [
        Cell(_time(one.at)),
        Cell(f"{'' if one.job_id is None else one.job_id:>{JOB_WIDTH}}"),
        Cell(f"{about:<{TASK_WIDTH}}"),
        Cell(f"{one.event:<{EVENT_WIDTH}}", STYLES.get(one.event, "")),
        *([Cell(detail)] if detail else []),
        Cell(f"by {one.actor}" if one.actor else "", "dim"),
    ]


def _time(at: datetime) -> str:
    """On a terminal, where room is short, without the date of today."""
    text = local(at)
    today = local(datetime.now(UTC))[:DATE_WIDTH]
    return text[DATE_WIDTH:] if sys.stdout.isatty() and text.startswith(today) else text


def _detail(one: Event) -> str:
    detail = written(one.detail, local)
    words = [f"attempt {one.attempt}"] if one.event == "claimed" else []
    if "from" in detail and "to" in detail:
        change = f"{detail.pop('from')} → {detail['to']}"
        words += [] if detail.pop("to") == one.event else [change]  # which is said already
    if "run_at" in detail:
        words.append(f"due {detail.pop('run_at')}")
    if detail.get("error_code"):
        words.append(str(detail.pop("error_code")))
    return ", ".join([*words, *(f"{name}={_value(value)}" for name, value in detail.items())])


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_data(one: Event, subject: Subject) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": iso(one.at),
        "job_id": one.job_id,
        "queue": subject.queue,
        "task": subject.task,
        "event": one.event,
        "attempt": one.attempt,
        "actor": one.actor,
        "detail": written(one.detail, iso),
    }
