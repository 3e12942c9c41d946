"""Kinds of values on the command line, and the options that several commands share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from ..model.job import Status
from ..validate import MAX_SECONDS
from .output import clean

if TYPE_CHECKING:
    from ..app.jobs import Filters
    from ..supervisor import Holdfast


BUSY_SECONDS = 0.5
NEWEST = 200
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Found = Iterable[tuple[str, str]]  # what is offered, and a word about it


def from_database(find: Callable[[Holdfast], Found]) -> Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        try:
            database = DatabaseOption(ctx)
            if database.url is None:  # an app would have to be imported, and may print
                return []
            with redirect_stderr(StringIO()), database.open(busy_timeout=BUSY_SECONDS) as app:
                found = dict(find(app))
        except Exception:  # noqa: BLE001  a message in the middle of a command line helps nobody
            return []
        return [
            CompletionItem(value, help=clean(about))
            for value, about in found.items()
            if value.startswith(incomplete) and value.isprintable()
        ]

    return complete


def _queues(app: Holdfast) -> Found:
    return ((queue.name, f"{queue.ready} ready") for queue in app.queues())


def _tasks(app: Holdfast) -> Found:
    """Those of the newest jobs: a look at all of them would take too long."""
    return ((job.task, "") for job in app.jobs.list(limit=NEWEST) if job.task is not None)


def _jobs(*statuses: str) -> Callable[[Holdfast], Found]:
    def find(app: Holdfast) -> Found:
        filters = {"status": statuses} if statuses else {}
        page = app.jobs.list(limit=NEWEST, **filters)  # type: ignore[arg-type]
        return ((str(job.id), f"{job.task or 'message'} on {job.queue}: {job.status}") for job in page)

    return find


def _schedules(app: Holdfast) -> Found:
    return ((schedule.name, f"{schedule.cron} {schedule.task}") for schedule in app.schedules.list())


complete_schedules = from_database(_schedules)
complete_queues = from_database(_queues)
complete_tasks = from_database(_tasks)
complete_jobs = from_database(_jobs())
complete_ended = from_database(_jobs("failed", "cancelled"))
complete_unfinished = from_database(_jobs("blocked", "scheduled", "ready", "running"))
complete_scheduled = from_database(_jobs("scheduled"))
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_PREFIX = "holdfast_"


class DatabaseOption:
    """What the options say. A group's options hold for its commands, unless these have their own."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    @property
    def url(self) -> str | None:
        """As it was given, for messages; None with `--app`."""
        url = _given(self._ctx, "db")
        return url or (None if _given(self._ctx, "reference") else os.environ.get("HOLDFAST_URL") or None)

    def place(self) -> tuple[str, str] | None:
        """The URL and the prefix, to look at what may be in any state; None with `--app`, which has its own."""
        if _given(self._ctx, "reference") is not None:
            return None
        if self.url is None:
            raise click.UsageError("no database was named: pass --db app.db, or set HOLDFAST_URL", self._ctx)
        return self.url, _given(self._ctx, "prefix") or DEFAULT_PREFIX

    def open(self, *, migrate: bool = False, **options: Any) -> Holdfast:
        """Without `migrate`, no file is made and no table is changed."""
        reference, prefix = _given(self._ctx, "reference"), _given(self._ctx, "prefix")
        if reference is not None:
            if _given(self._ctx, "db") is not None:
                raise click.UsageError("--db and --app both name a database: pass one of them", self._ctx)
            if prefix is not None:
                raise click.UsageError("an app has its own prefix: --prefix goes with --db", self._ctx)
            from ..supervisor.load import load_app

            return load_app(reference)
        if self.url is None:
            raise click.UsageError("no database was named: pass --db app.db, or set HOLDFAST_URL", self._ctx)
        from ..supervisor import Holdfast

        return Holdfast(self.url, migrate=migrate, prefix=prefix or DEFAULT_PREFIX, **options)


def _given(ctx: click.Context | None, name: str) -> str | None:
    while ctx is not None:
        value = ctx.params.get(name)
        if value is not None:
            return cast(str, value)
        ctx = ctx.parent
    return None


def takes_database(command: F) -> F:
    """Adds the options, and passes a DatabaseOption as the first argument."""

    @click.option(
        "--db", type=click.Path(), metavar="URL", help="The database, a path or a URL.  [default: $HOLDFAST_URL]"
    )
    @click.option("--app", "reference", metavar="MODULE:APP", help="Use the database of this app instead.")
    @click.option("--prefix", metavar="TEXT", help=f"How the tables' names begin.  [default: {DEFAULT_PREFIX}]")
    @functools.wraps(command)
    def with_database(*, db: str | None, reference: str | None, prefix: str | None, **given: Any) -> Any:
        del db, reference, prefix  # taken from the context, where those of the group are too
        return command(DatabaseOption(click.get_current_context()), **given)

    return cast(F, with_database)


STATUSES = [status.value for status in Status]
_STATUS_HELP = f"{', '.join(STATUSES)}. This and the next five can be repeated: any of the values will do."
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d{1,12}(?:\.\d+)?)(ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d{1,12}(\.\d+)?")
_JOB_ID = re.compile(r"[1-9][0-9]{0,17}")
_CURSOR = re.compile(r"(older|newer)-[0-9]{1,19}")
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE)


def duration(text: str) -> float:
    """`90`, `90s`, `5m`, `1h30m`: as seconds."""
    seconds = _seconds(text.strip())
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration: write seconds, or 500ms, 10s, 5m, 2h, 1d, 1h30m")
    if seconds > MAX_SECONDS:
        raise click.BadParameter(f"{text!r} is longer than 100 years")
    return seconds


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size(text: str) -> int:
    """`512M`, `2G`, or a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a size: write bytes, or 512M, 2G")
    bytes_in_unit: int = 1024 ** "_KMGT".index(match[2].upper() or "_")
    return int(match[1]) * bytes_in_unit


def share(text: str) -> float:
    """`0.05`: a part of the whole."""
    with suppress(ValueError):
        if 0 <= float(text) <= 1:  # which nan is not; click's own range takes it
            return float(text)
    raise click.BadParameter(f"{text!r} is not a share: write a number from 0 to 1, such as 0.05")


def job_id(text: str) -> int:
    if not _JOB_ID.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a job id: it is a whole number, from 1")
    return int(text)


def cursor_text(text: str) -> str:
    if not _CURSOR.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no cursor: take the one that the list before this one ended with")
    return text


def example(*lines: str) -> str:
    """An epilog that click does not wrap."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


class AuditOptions(TypedDict):
    """Who does it, and why: as it is passed to what changes something, for the history."""

    actor: str | None
    reason: str


def signed(command: F) -> F:
    """Adds --actor and --reason, and passes them as `signature`."""

    @click.option("--actor", metavar="NAME", help="Who does it, for the history.  [default: your login]")
    @click.option("--reason", default="", metavar="TEXT", help="Why, for the history.")
    @functools.wraps(command)
    def with_signature(*args: Any, actor: str | None, reason: str, **given: Any) -> Any:
        return command(*args, signature=AuditOptions(actor=actor, reason=reason), **given)

    return cast(F, with_signature)


def takes_filters(command: F) -> F:
    """Adds the options that say which jobs, and passes them as `filters`."""

    @click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), metavar="STATUS", help=_STATUS_HELP)
    @click.option(
        "--queue", "-q", multiple=True, metavar="NAME", shell_complete=complete_queues, help="Of this queue."
    )
    @click.option("--task", "-t", multiple=True, metavar="NAME", shell_complete=complete_tasks, help="Of this task.")
    @click.option("--tag", multiple=True, metavar="TEXT", help="With this tag.")
    @click.option("--key", multiple=True, metavar="TEXT", help="With this key.")
    @click.option("--error-code", multiple=True, metavar="CODE", help="That failed so, such as DEPENDENCY:STRIPE.")
    @click.option("--since", type=duration, metavar="DURATION", help="Enqueued within the last 30m, 1h, 2d, …")
    @functools.wraps(command)
    def with_filters(*args: Any, since: float | None, **given: Any) -> Any:
        names = ("status", "queue", "task", "tag", "key", "error_code")
        filters = {name: list(values) for name in names if (values := given.pop(name))}
        found = cast("Filters", filters)
        if since is not None:
            found["created_after"] = datetime.now(UTC) - timedelta(seconds=since)
        return command(*args, filters=found, **given)

    return cast(F, with_filters)
