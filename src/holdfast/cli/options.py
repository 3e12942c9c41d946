"""Types of command-line values, shell completion, and the options that several commands share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from ..model.job import NAME_FIELDS, Status
from ..validate import MAX_SECONDS
from .output import clean

if TYPE_CHECKING:
    from ..app.jobs import Filters
    from ..supervisor import Holdfast


BUSY_SECONDS = 0.5
NEWEST_JOBS = 200  # that completion reads
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Candidates = Iterable[tuple[str, str]]  # value and description


def from_database(find: Callable[[Holdfast], Candidates]) -> Completer:
    """Return a shell completion that reads its candidates from the database, and offers nothing if it cannot."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        try:
            database = DatabaseOption(ctx)
            if database.url is None:  # --app: importing the app may print
                return []
            with redirect_stderr(StringIO()), database.open(busy_timeout=BUSY_SECONDS) as app:
                candidates = dict(find(app))
        except Exception:  # noqa: BLE001  a message would garble the command line that is being typed
            return []
        return [
            CompletionItem(value, help=clean(description))
            for value, description in candidates.items()
            if value.startswith(incomplete) and value.isprintable()
        ]

    return complete


def _queues(app: Holdfast) -> Candidates:
    return ((queue.name, f"{queue.ready} ready") for queue in app.queues())


def _tasks(app: Holdfast) -> Candidates:
    """Return the tasks of the newest jobs: reading all jobs would take too long."""
    return ((job.task, "") for job in app.jobs.list(limit=NEWEST_JOBS) if job.task is not None)


def _jobs(*statuses: str) -> Callable[[Holdfast], Candidates]:
    def find(app: Holdfast) -> Candidates:
        filters = {"status": statuses} if statuses else {}
        page = app.jobs.list(limit=NEWEST_JOBS, **filters)  # type: ignore[arg-type]
        return ((str(job.id), f"{job.task or 'message'} on {job.queue}: {job.status}") for job in page)

    return find


def _schedules(app: Holdfast) -> Candidates:
    return ((schedule.name, f"{schedule.cron} {schedule.task}") for schedule in app.schedules.list())


def _workers(app: Holdfast) -> Iterable[tuple[str, str]]:
    return ((one.id, f"{one.host} {one.pid}") for one in app.observe.workers() if one.alive)


complete_schedules = from_database(_schedules)
complete_workers = from_database(_workers)
complete_queues = from_database(_queues)
complete_tasks = from_database(_tasks)
complete_jobs = from_database(_jobs())
complete_retryable = from_database(_jobs("failed", "cancelled"))
complete_unfinished = from_database(_jobs("blocked", "scheduled", "ready", "running"))
complete_scheduled = from_database(_jobs("scheduled"))
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_PREFIX = "holdfast_"


class Location(NamedTuple):
    """A database by URL, and the names of its tables."""

    url: str
    prefix: str
    schema: str | None


class DatabaseOption:
    """The database options. A subcommand inherits those of its group."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    @property
    def url(self) -> str | None:
        """The URL as given; None with `--app`."""
        url = _given(self._ctx, "db")
        return url or (None if _given(self._ctx, "reference") else os.environ.get("HOLDFAST_URL") or None)

    def location(self) -> Location | None:
        """Return where the database is, to inspect a database without opening it for use; None with `--app`."""
        if _given(self._ctx, "reference") is not None:
            return None
        if self.url is None:
            raise click.UsageError("no database given: pass --db app.db or set HOLDFAST_URL", self._ctx)
        return Location(self.url, _given(self._ctx, "prefix") or DEFAULT_PREFIX, _given(self._ctx, "schema"))

    def open(self, *, migrate: bool = False, **options: Any) -> Holdfast:
        """Open the database. Without `migrate`, no file is created and no table is changed."""
        location = self.location()
        if location is None:
            if _given(self._ctx, "db") is not None:
                raise click.UsageError("--db and --app both name a database: pass only one", self._ctx)
            for name in ("prefix", "schema"):
                if _given(self._ctx, name) is not None:
                    raise click.UsageError(f"--{name} requires --db: an app sets its own {name}", self._ctx)
            from ..supervisor.load import load_app

            return load_app(str(_given(self._ctx, "reference")))
        from ..supervisor import Holdfast

        return Holdfast(location.url, migrate=migrate, prefix=location.prefix, schema=location.schema, **options)


def _given(ctx: click.Context | None, name: str) -> str | None:
    while ctx is not None:
        value = ctx.params.get(name)
        if value is not None:
            return cast(str, value)
        ctx = ctx.parent
    return None


def database_options(command: F) -> F:
    """Add --db, --app, --prefix and --schema, and pass a DatabaseOption as the first argument."""

    @click.option(
        "--db", type=click.Path(), metavar="URL", help="Path or URL of the database.  [default: $HOLDFAST_URL]"
    )
    @click.option("--app", "reference", metavar="MODULE:APP", help="Use the database of this app.")
    @click.option("--prefix", metavar="TEXT", help=f"Prefix of the table names.  [default: {DEFAULT_PREFIX}]")
    @click.option("--schema", metavar="TEXT", help="Schema of the tables, on PostgreSQL.  [default: public]")
    @functools.wraps(command)
    def with_database(
        *, db: str | None, reference: str | None, prefix: str | None, schema: str | None, **given: Any
    ) -> Any:
        del db, reference, prefix, schema  # read from the context, which has those of the group too
        return command(DatabaseOption(click.get_current_context()), **given)

    return cast(F, with_database)


STATUSES = [status.value for status in Status]
_STATUS_HELP = (
    f"Only jobs in this state: {', '.join(STATUSES)}. All filters but --since can be repeated: any value matches. In "
    "--queue, --task and --error-code, * stands for any text."
)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d{1,12}(?:\.\d+)?)(ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d{1,12}(\.\d+)?")
_JOB_ID = re.compile(r"[1-9][0-9]{0,17}")
_CURSOR = re.compile(r"(older|newer)-[0-9]{1,19}")
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE)


def duration(text: str) -> float:
    """Parse `90`, `90s`, `5m` or `1h30m` to seconds."""
    seconds = _seconds(text.strip())
    if seconds is None:
        raise click.BadParameter(f"must be a duration such as 90, 500ms, 10s, 5m, 2h, 1d or 1h30m, got {text!r}")
    if seconds > MAX_SECONDS:
        raise click.BadParameter(f"must be at most 100 years, got {text!r}")
    return seconds


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size(text: str) -> int:
    """Parse `512M`, `2G` or a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"must be a number of bytes or a size such as 512M or 2G, got {text!r}")
    bytes_in_unit: int = 1024 ** "_KMGT".index(match[2].upper() or "_")
    return int(match[1]) * bytes_in_unit


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    with suppress(ValueError):
        if 0 <= float(text) <= 1:  # unlike click.FloatRange, this refuses nan
            return float(text)
    raise click.BadParameter(f"must be a number from 0 to 1, such as 0.05, got {text!r}")


def argument(text: str) -> tuple[str, str]:
    """Parse `user.name=ada*` to a path and a pattern."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise click.BadParameter(f"must be NAME=VALUE, such as to=ada@example.org, got {text!r}")
    return path, value


def job_id(text: str) -> int:
    if not _JOB_ID.fullmatch(text):
        raise click.BadParameter(f"a job id must be a positive integer, got {text!r}")
    return int(text)


def cursor_text(text: str) -> str:
    if not _CURSOR.fullmatch(text):
        raise click.BadParameter(f"must be the cursor that the previous page printed, got {text!r}")
    return text


def example(*lines: str) -> str:
    """Return an epilog with examples that click does not wrap."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


class AuditOptions(TypedDict):
    """Who makes a change and why, for the event log."""

    actor: str | None
    reason: str


def audit_options(command: F) -> F:
    """Add --actor and --reason, and pass them as `audit`."""

    @click.option("--actor", metavar="NAME", help="Who makes the change, for the event log.  [default: your login]")
    @click.option("--reason", default="", metavar="TEXT", help="Why the change is made, for the event log.")
    @functools.wraps(command)
    def with_audit(*args: Any, actor: str | None, reason: str, **given: Any) -> Any:
        return command(*args, audit=AuditOptions(actor=actor, reason=reason), **given)

    return cast(F, with_audit)


def read_options(command: F) -> F:
    """Add the database options and --json, and pass a DatabaseOption and `as_json`."""
    return database_options(click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command))


def change_options(command: F) -> F:
    """Add --actor, --reason, the database options and --json."""
    return audit_options(read_options(command))


def page_options(noun: str) -> Callable[[F], F]:
    """Add --limit and --cursor to a command that prints a page of a list."""
    from ..app.jobs import MAX_PAGE

    kind = click.IntRange(1, MAX_PAGE)
    limit = click.option(
        "--limit", type=kind, default=50, show_default=True, metavar="N", help=f"List at most N {noun}."
    )
    cursor = click.option(
        "--cursor", type=cursor_text, metavar="CURSOR", help="Continue from the cursor of another list."
    )
    return lambda command: limit(cursor(command))


def web_options(prefix: str = "") -> Callable[[F], F]:
    """Add the options of a server of the web page. prefix: of their names, where they are beside others."""
    one = functools.partial(_prefixed, prefix)
    options = (
        one("host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
            help=f"Address to serve the web page on. Any other than loopback needs --{prefix}auth."),
        one("auth", type=click.Path(dir_okay=False), metavar="FILE",
            help="Users file of the web page, made by holdfast web-user."),
        one("allow-host", multiple=True, metavar="NAME",
            help="Host name in the URL of the page, such as jobs.example.org. Others than those given and loopback "
                 "are refused; if none is given and --host is not loopback, all are served. Can be repeated."),
        one("read-only", is_flag=True, help="Refuse all changes by the page and the API, for all users."),
        one("hide-args", is_flag=True, help="Do not show arguments, results and error messages to viewers."),
        one("redact", multiple=True, metavar="PATTERN",
            help="Hide the values of all names in arguments and results that match this regular expression. "
                 "Can be repeated."),
    )  # fmt: skip
    return lambda command: functools.reduce(lambda found, option: option(found), reversed(options), command)


def _prefixed(prefix: str, name: str, **more: Any) -> Callable[[F], F]:
    return click.option(f"--{prefix}{name}", **more)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
attempts_option = click.option(
    "--attempts", type=int, metavar="N", help="Additional attempts.  [default: as many as it had at first]"
)
delay_option = click.option(
    "--delay", type=duration, default="0s", metavar="DURATION", help="Run no earlier than 10s, 5m, 1h, … from now."
)


def queue_option(meaning: str) -> Callable[[F], F]:
    """Add --queue, which can be repeated."""
    return click.option("--queue", "-q", multiple=True, metavar="NAME", shell_complete=complete_queues, help=meaning)


def task_option(meaning: str) -> Callable[[F], F]:
    """Add --task, which can be repeated."""
    return click.option("--task", "-t", multiple=True, metavar="NAME", shell_complete=complete_tasks, help=meaning)


def filter_options(command: F) -> F:
    """Add the options that select jobs, and pass them as `filters`."""

    @click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), metavar="STATUS", help=_STATUS_HELP)
    @queue_option("Only jobs of this queue.")
    @task_option("Only jobs of this task.")
    @click.option("--tag", multiple=True, metavar="TEXT", help="Only jobs with this tag.")
    @click.option(
        "--arg",
        multiple=True,
        type=argument,
        metavar="NAME=VALUE",
        help="Only jobs with this value in their arguments, such as user.name=ada*. All of them must match.",
    )
    @click.option("--key", multiple=True, metavar="TEXT", help="Only jobs with this key.")
    @click.option("--error-code", multiple=True, metavar="CODE", help="Only jobs that failed with this error code.")
    @click.option(
        "--fingerprint", multiple=True, metavar="TEXT",
        help="Only jobs that failed last at this place in the code: see holdfast failures.",
    )  # fmt: skip
    @click.option(
        "--batch", multiple=True, type=click.IntRange(1, 2**63 - 1), metavar="ID", help="Only members of this batch."
    )
    @click.option(
        "--since", type=duration, metavar="DURATION", help="Only jobs enqueued within the last 30m, 1h, 2d, …"
    )
    @functools.wraps(command)
    def with_filters(*args: Any, since: float | None, arg: tuple[tuple[str, str], ...], **given: Any) -> Any:
        names = ("status", "queue", "task", "tag", "key", "error_code", "fingerprint", "batch")
        found: dict[str, Any] = {name: list(values) for name in names if (values := given.pop(name))}
        for name in NAME_FIELDS:
            values = found.pop(name, [])
            for key, several in (
                (name, [one for one in values if "*" not in one]),
                (f"{name}_like", [one for one in values if "*" in one]),
            ):
                if several:
                    found[key] = several
        if arg:
            found["args"] = dict(arg)
        filters = cast("Filters", found)
        if since is not None:
            filters["created_after"] = datetime.now(UTC) - timedelta(seconds=since)
        return command(*args, filters=filters, **given)

    return cast(F, with_filters)
