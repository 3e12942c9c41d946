"""`holdfast prune`: delete what is older than the rules allow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from ...retention import FINISHED, Retention, Rule
from ..bulk import ask
from ..options import (
    AuditOptions,
    DatabaseOption,
    complete_queues,
    complete_tasks,
    duration,
    example,
    signed,
    size,
    takes_database,
)
from ..output import Column, document, json_option, plural, progress_bar, say, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...upkeep.prune import PruneReport


COLUMNS = (
    Column("RULE", least=12),
    Column("STATUS"),
    Column("QUEUE", least=6),
    Column("TASK", least=8),
    Column("JOBS", right=True),
)


class _Rules(NamedTuple):
    """What the options say, instead of the rules of the app."""

    status: tuple[str, ...]
    queue: tuple[str, ...]
    task: tuple[str, ...]
    age: float | None
    newest: int | None
    max_bytes: int | None

    def retention(self) -> Retention | None:
        if self.age is None and self.newest is None and self.max_bytes is None:
            if self.status or self.queue or self.task:
                raise click.UsageError("--status, --queue and --task go with --older-than or --keep")
            return None
        if self.max_bytes is not None and (self.queue or self.task or self.status):
            raise click.UsageError("--max-size is about the whole file: it goes without --status, --queue and --task")
        age = None if self.age is None else timedelta(seconds=self.age)
        given: dict[str, Any] = dict.fromkeys((*FINISHED, "rollups", "failures", "audit"))
        if self.queue or self.task:
            given["rules"] = [
                Rule(queue=queue, task=task, status=self.status or None, age=age, newest=self.newest)
                for queue in self.queue or (None,)
                for task in self.task or (None,)
            ]
        elif self.newest is not None and self.status:
            raise click.UsageError("--keep with --status needs --queue or --task")
        else:
            given |= dict.fromkeys(self.status or FINISHED, age) | {"newest": self.newest}
        return Retention(**given, max_bytes=self.max_bytes)


@click.command(
    epilog=example(
        "holdfast prune --db app.db",
        "holdfast prune --dry-run --db app.db",
        "holdfast prune --archive jobs.jsonl.gz --db app.db",
        "holdfast prune --older-than 7d --task ping --db app.db",
    )
)
@click.option("--dry-run", "-n", is_flag=True, help="Only say what it would be.")
@click.option(
    "--archive", type=click.Path(dir_okay=False), metavar="FILE", help="Write them to this .jsonl.gz first."
)
@click.option(
    "--older-than", type=duration, metavar="DURATION",
    help="This once, what ended so long ago, instead of by the app's rules.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(0), metavar="N",
    help="This once, all but the newest N of each status, instead of by the app's rules.",
)  # fmt: skip
@click.option(
    "--max-size", type=size, metavar="SIZE",
    help="This once, the oldest, while there is more than this in the file, such as 2G.",
)  # fmt: skip
@click.option(
    "--status", "-s", multiple=True, type=click.Choice(FINISHED), metavar="STATUS",
    help=f"{', '.join(FINISHED[:-1])} or {FINISHED[-1]} only. This and the next two go with --older-than or --keep, "
    "and can be repeated.",
)  # fmt: skip
@click.option(
    "--queue", "-q", multiple=True, metavar="NAME", shell_complete=complete_queues, help="Of this queue only."
)
@click.option("--task", "-t", multiple=True, metavar="NAME", shell_complete=complete_tasks, help="Of this task only.")
@click.option("--hurry", is_flag=True, help="Without pauses in which others have the database.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@signed
@takes_database
@json_option
def prune(
    database: DatabaseOption,
    dry_run: bool,
    archive: str | None,
    older_than: float | None,
    keep: int | None,
    max_size: int | None,
    status: tuple[str, ...],
    queue: tuple[str, ...],
    task: tuple[str, ...],
    hurry: bool,
    yes: bool,
    signature: AuditOptions,
    as_json: bool,
) -> None:
    """Delete jobs that ended long ago, with their history.

    By the rules of the app, which its workers follow by themselves. It goes on in small steps while others work, and
    can be interrupted and run again. With --older-than, --keep or --max-size it asks first.
    """
    rules = _Rules(status, queue, task, older_than, keep, max_size).retention()
    if archive == "":
        raise click.UsageError("--archive is the path of a file, and was given as nothing")
    with database.open() as app:
        asks, shows_bar = rules is not None and not yes, sys.stderr.isatty() and not as_json
        report = app.prune(dry_run=True, retention=rules) if dry_run or asks or shows_bar else None
        if not dry_run:
            if report is not None and asks:
                about = "about " if report.estimate else ""
                ask(f"Delete {about}{plural(report.jobs, 'job')} ({report.retention})?", yes)
            with _progress(None if report is None or not shows_bar else report.jobs) as progress:
                report = app.prune(retention=rules, archive=archive, hurry=hurry, progress=progress, **signature)
    assert report is not None
    _tell(report, as_json, once=rules is not None)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar, on a terminal."""
    if total is None:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Pruning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        one = bar.add_task("prune", total=total)
        yield lambda done: bar.update(one, completed=done, total=max(total, done))


def _tell(report: PruneReport, as_json: bool, once: bool) -> None:
    if as_json:
        document({"action": "prune", "jobs": report.jobs, **msgspec.structs.asdict(report)})
        return
    parts = [f"{getattr(report, status):,} {status}" for status in FINISHED if getattr(report, status)]
    which = f": {', '.join(parts)}" if parts else ""
    verb = "would be" if report.dry_run else "was" if report.jobs == 1 else "were"
    say(f"{plural(report.jobs, 'job')} {verb} pruned{which}.")
    if report.groups:
        table(COLUMNS, [[one.rule, one.status, one.queue, one.task or "", f"{one.jobs:,}"] for one in report.groups])
    if report.estimate:
        say(f"What goes for the size of the file was estimated, {report.estimate}.")
    say(f"{'By these rules, this once' if once else 'Kept'}: {report.retention}.")
    others = ("attempts", "events", "batches", "minutes", "failures", "tracebacks", "audit", "blobs")
    rest = [f"{getattr(report, name):,} {name}" for name in others if getattr(report, name)]
    if rest:
        say(f"{'With them' if report.dry_run else 'Also pruned'}: {', '.join(rest)}.")
    if report.archived:
        say(f"{plural(report.archived, 'job')} {'was' if report.archived == 1 else 'were'} written to the archive.")
