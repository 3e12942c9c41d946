"""`holdfast events`: the log, its end or from a cursor on, and what comes."""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from ... import validate
from ...model.job import Criteria
from ...model.stats import EVENTS
from ..options import DatabaseOption, complete_jobs, example, job_id, takes_database
from ..output import Cell, iso, json_lines, json_option, lines, local, note, written

if TYPE_CHECKING:
    from ...observe.results import Event
    from ...supervisor import Holdfast


BATCH = 500  # of events that are read at once
SHOWN, MOST = 20, 1000
MOST_LOOKED_AT = 100_000  # backwards, for those that fit
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


class EventFilter(NamedTuple):
    """Which events: of one job, of these names, by these actors. Empty: any."""

    job: int | None
    names: frozenset[str]
    actors: frozenset[str]

    @property
    def is_narrow(self) -> bool:
        """Whether some that are read do not fit."""
        return bool(self.names or self.actors)

    def among(self, batch: Sequence[Event]) -> list[Event]:
        return [
            one
            for one in batch
            if (not self.names or one.event in self.names) and (not self.actors or one.actor in self.actors)
        ]


def _event_names(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> frozenset[str]:
    del ctx, param
    for name in names:
        if name not in EVENTS:
            raise validate.suggest(name, EVENTS, "event")
    return frozenset(names)


def _complete_events(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [name for name in EVENTS if name.startswith(incomplete)]


@click.command(
    epilog=example(
        "holdfast events --follow --db app.db",
        "holdfast events --job 42 --db app.db",
        "holdfast events --actor kim --event paused --event resumed --db app.db",
        "holdfast events --after 1017 --follow --json --db app.db | jq .event",
    )
)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option("--job", "of_job", type=job_id, metavar="ID", shell_complete=complete_jobs, help="Of this job only.")
@click.option(
    "--event", "names", multiple=True, metavar="NAME", callback=_event_names, shell_complete=_complete_events,
    help="Of this name only, such as failed. This and --actor can be repeated: any of the values will do.",
)  # fmt: skip
@click.option("--actor", "actors", multiple=True, metavar="NAME", help="By this person, process or worker only.")
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
    database: DatabaseOption,
    follow: bool,
    of_job: int | None,
    names: frozenset[str],
    actors: tuple[str, ...],
    after: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the log: every change of a job, a queue or a schedule, and who did it.

    At the end, the cursor to go on from is told on standard error. With --json, each line is an object, and its id
    is such a cursor.
    """
    wanted = EventFilter(of_job, names, frozenset(actors))
    with database.open() as app:
        if of_job is not None and not follow:
            app.jobs.get(of_job)  # or say that there is none
        show = _Printer(app, as_json)
        cursor = _past(app, show, wanted, after, limit)
        if follow:
            with _Reader(app.store.wake_waiters) as reader:
                _follow(app, show, wanted, cursor, reader)
    if not show.count:
        note("No events that fit." if wanted.is_narrow else "No events.")
    elif not as_json:
        note(f"Go on from here: --after {cursor}")


def _past(app: Holdfast, show: _Printer, wanted: EventFilter, after: int | None, limit: int | None) -> int:
    """What there is, and the cursor behind it."""
    if after is None:
        end = app.observe.last_event()  # before the look, so that following misses nothing
        found = _last(app, wanted, SHOWN if limit is None else limit)
        show(found)
        return max(end, found[-1].id if found else 0)
    cursor = after
    for found, behind in _from(app, wanted, after, limit):
        show(found)
        cursor = behind
    return cursor


def _last(app: Holdfast, wanted: EventFilter, limit: int) -> list[Event]:
    """The last that fit, as far as a look backwards over a part of the log finds them."""
    found: list[Event] = []
    size, looked, before = MOST if wanted.is_narrow else limit, 0, None
    while len(found) < limit:
        if looked >= MOST_LOOKED_AT:
            note(f"Only the last {looked:,} events were looked at: --after 0 looks at all of them.")
            break
        batch = app.observe.last_events(size, wanted.job, before)
        found = wanted.among(batch) + found
        looked += len(batch)
        if len(batch) < size:
            break
        before = batch[0].id
    return found[-limit:]


def _from(
    app: Holdfast, wanted: EventFilter, cursor: int, limit: int | None = None
) -> Iterator[tuple[list[Event], int]]:
    """Those that fit, some at a time, each with the cursor behind all that was looked at."""
    left = limit
    while left != 0:
        size = BATCH if left is None or wanted.is_narrow else min(BATCH, left)
        batch = app.observe.events(cursor, size, wanted.job)
        if not batch:
            return
        found, cursor = wanted.among(batch)[:left], batch[-1].id
        if left is not None:
            left -= len(found)
            cursor = found[-1].id if left == 0 else cursor
        yield found, cursor
        if left is None and len(batch) < size:
            return


def _follow(app: Holdfast, show: _Printer, wanted: EventFilter, cursor: int, reader: _Reader) -> None:
    """Until somebody ends it. It sleeps until anyone commits."""
    while not reader.is_gone:
        seen = app.store.commits_seen()
        for found, behind in _from(app, wanted, cursor):
            show(found)
            cursor = behind  # of those that did not fit, too: they are not read again
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
            records = self._app.store.jobs.list(Criteria(ids=missing), len(missing)).records
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
