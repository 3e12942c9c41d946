"""`holdfast events`: print the event log, and follow it."""

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
from ...model.stats import EVENTS
from ..options import DatabaseOption, complete_jobs, complete_queues, complete_tasks, example, job_id, read_options
from ..output import Cell, json_lines, lines, note, utc_text

if TYPE_CHECKING:
    from ...model.stats import Event
    from ...supervisor import Holdfast


BATCH = 500  # events per read
DEFAULT_LIMIT, MAX_LIMIT = 20, 1000
MAX_SCANNED = 100_000  # events read backwards for the last ones that match
FOREVER_SECONDS = 3600.0

# A longer value shifts the rest of its line, and no other line.
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


class EventFilter(NamedTuple):
    """Selects events by job, names, actors, tasks and queues. An empty set matches any."""

    job: int | None
    names: frozenset[str]
    actors: frozenset[str]
    tasks: frozenset[str]
    queues: frozenset[str]

    @property
    def is_narrow(self) -> bool:
        """Whether some of the events read may not match."""
        return bool(self.names or self.actors or self.tasks or self.queues)

    def matching(self, batch: Sequence[Event]) -> list[Event]:
        return [event for event in batch if self._matches(event)]

    def _matches(self, event: Event) -> bool:
        # The detail names the queue that was paused or resumed, and the task of a schedule.
        return (
            (not self.names or event.event in self.names)
            and (not self.actors or event.actor in self.actors)
            and (not self.tasks or bool(self.tasks & {event.task, event.detail.get("task")}))
            and (not self.queues or bool(self.queues & {event.queue, event.detail.get("queue")}))
        )


def _check_names(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> frozenset[str]:
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
        "holdfast events --task send_mail --event failed --db app.db",
        "holdfast events --actor kim --event paused --event resumed --db app.db",
        "holdfast events --after 1017 --follow --json --db app.db | jq .event",
    )
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new events until Ctrl-C. Does not poll.")
@click.option("--job", "of_job", type=job_id, metavar="ID", shell_complete=complete_jobs, help="Only this job.")
@click.option(
    "--event", "names", multiple=True, metavar="NAME", callback=_check_names, shell_complete=_complete_events,
    help="Only events with this name, such as failed. Can be repeated.",
)  # fmt: skip
@click.option(
    "--actor", "actors", multiple=True, metavar="NAME",
    help="Only events caused by this person, process or worker. Can be repeated.",
)  # fmt: skip
@click.option(
    "--task", "tasks", multiple=True, metavar="NAME", shell_complete=complete_tasks,
    help="Only events of jobs and schedules of this task. Can be repeated.",
)  # fmt: skip
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", shell_complete=complete_queues,
    help="Only events of this queue and of its jobs. Can be repeated.",
)  # fmt: skip
@click.option(
    "--after", type=click.IntRange(0, 2**63 - 1), metavar="CURSOR",
    help="All events after this one; the id of an event is a cursor.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), metavar="N",
    help="The last N events; with --after, the first N.  [default: 20; with --after, all]",
)  # fmt: skip
@read_options
def events(
    database: DatabaseOption,
    follow: bool,
    of_job: int | None,
    names: frozenset[str],
    actors: tuple[str, ...],
    tasks: tuple[str, ...],
    queues: tuple[str, ...],
    after: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the event log, and follow it.

    It has every change of a job, queue or schedule, and who made it. At the end, a note on standard error names the
    cursor to continue from. With --json, each line is an object. With --event, --actor, --task or --queue, only the
    last 100,000 events are searched; --after 0 searches all.
    """
    wanted = EventFilter(of_job, names, frozenset(actors), frozenset(tasks), frozenset(queues))
    with database.open() as app:
        if of_job is not None and not follow:
            app.jobs.get(of_job)  # raises JobNotFound
        printer = _Printer(as_json)
        cursor = _print_past(app, printer, wanted, after, limit)
        if follow:
            with _ReaderWatch(app.store.wake_waiters) as reader:
                _follow(app, printer, wanted, cursor, reader)
    if not printer.count:
        note("No matching events." if wanted.is_narrow else "No events.")
    elif not as_json:
        note(f"Continue with --after {cursor}")


def _print_past(app: Holdfast, printer: _Printer, wanted: EventFilter, after: int | None, limit: int | None) -> int:
    """Print the events there are, and return the cursor after them."""
    if after is None:
        end = app.observe.last_event()  # read first, so that following misses nothing
        found = _last(app, wanted, DEFAULT_LIMIT if limit is None else limit)
        printer(found)
        return max(end, found[-1].id if found else 0)
    cursor = after
    for found, behind in _read_from(app, wanted, after, limit):
        printer(found)
        cursor = behind
    return cursor


def _last(app: Holdfast, wanted: EventFilter, limit: int) -> list[Event]:
    """Return the last matching events, searching backwards through at most MAX_SCANNED events."""
    found: list[Event] = []
    size, scanned, before = MAX_LIMIT if wanted.is_narrow else limit, 0, None
    while len(found) < limit:
        if scanned >= MAX_SCANNED:
            note(f"Searched only the last {scanned:,} events: --after 0 searches all.")
            break
        batch = app.observe.last_events(size, wanted.job, before)
        found = wanted.matching(batch) + found
        scanned += len(batch)
        if len(batch) < size:
            break
        before = batch[0].id
    return found[-limit:]


def _read_from(
    app: Holdfast, wanted: EventFilter, cursor: int, limit: int | None = None
) -> Iterator[tuple[list[Event], int]]:
    """Yield matching events in batches, each with the cursor after all events that were read for it."""
    left = limit
    while left != 0:
        size = BATCH if left is None or wanted.is_narrow else min(BATCH, left)
        batch = app.observe.events(cursor, size, wanted.job)
        if not batch:
            return
        found, cursor = wanted.matching(batch)[:left], batch[-1].id
        if left is not None:
            left -= len(found)
            cursor = found[-1].id if left == 0 else cursor
        yield found, cursor
        if left is None and len(batch) < size:
            return


def _follow(app: Holdfast, printer: _Printer, wanted: EventFilter, cursor: int, reader: _ReaderWatch) -> None:
    """Print new events until the reader of our output goes away. Sleeps until a process commits."""
    while not reader.is_gone:
        seen = app.store.commits_seen()
        for found, behind in _read_from(app, wanted, cursor):
            printer(found)
            cursor = behind  # also past events that did not match, so that they are not read again
        app.store.wait_for_commit(seen, FOREVER_SECONDS)
    raise BrokenPipeError


class _ReaderWatch:
    """A thread that notices when the reader of stdout closes the pipe, even while there is nothing to write."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_gone = False
        self._wake = wake

    def __enter__(self) -> _ReaderWatch:
        with suppress(OSError, ValueError):  # stdout may have no file descriptor
            threading.Thread(target=self._watch, args=(sys.stdout.fileno(),), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake = lambda: None

    def _watch(self, stdout: int) -> None:
        poll = select.poll()
        poll.register(stdout, 0)  # POLLERR and POLLHUP are always reported
        for _, happened in poll.poll():
            self.is_gone = bool(happened & (select.POLLERR | select.POLLHUP))
            self._wake()


class _Printer:
    """Prints events, one per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.count = 0

    def __call__(self, batch: Sequence[Event]) -> None:
        self.count += len(batch)
        if not batch:
            return
        if self._as_json:
            json_lines(batch)
        else:
            lines(_cells(event) for event in batch)


def _cells(event: Event) -> list[Cell]:
    words = [f"attempt {event.attempt}"] if event.event == "claimed" else []
    detail = ", ".join([*words, *detail_words(event.event, event.detail)])
    about = event.task or ("" if event.queue is None else f"message on {event.queue}")
    return [
        Cell(_time(event.at)),
        Cell(f"{'' if event.job_id is None else event.job_id:>{JOB_WIDTH}}"),
        Cell(f"{about:<{TASK_WIDTH}}"),
        Cell(f"{event.event:<{EVENT_WIDTH}}", STYLES.get(event.event, "")),
        *([Cell(detail)] if detail else []),
        Cell(f"by {event.actor}" if event.actor else "", "dim"),
    ]


def _time(at: datetime) -> str:
    """Return the time; on a terminal without the date if that is today."""
    text = utc_text(at)
    today = utc_text(datetime.now(UTC))[:DATE_WIDTH]
    return text[DATE_WIDTH:] if sys.stdout.isatty() and text.startswith(today) else text


def detail_words(event: str, detail: dict[str, Any]) -> list[str]:
    """Describe the detail of an event or attempt in a few words."""
    left = {name: utc_text(value) if isinstance(value, datetime) else value for name, value in detail.items()}
    words = []
    if "from" in left and "to" in left:
        before, after = left.pop("from"), left.pop("to")
        words += [] if after == event else [f"{before} → {after}"]
    if "run_at" in left:
        words.append(f"due {left.pop('run_at')}")
    error = [str(left.pop(name)) for name in ("error_code", "error_detail") if left.get(name)]
    words += [": ".join(error)] if error else []
    return words + [f"{name}={_value_text(value)}" for name, value in left.items()]


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
