"""`holdfast prune`: delete finished jobs by the retention rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from ...retention import FINISHED, Retention, Rule
from ...text import to_data
from ..bulk import confirm
from ..options import (
    AuditOptions,
    DatabaseOption,
    change_options,
    duration,
    example,
    queue_option,
    size,
    task_option,
    yes_option,
)
from ..output import Column, document, plural, progress_bar, say, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...upkeep.prune import PruneReport


COLUMNS = (
    Column("RULE", least=12), Column("STATUS"), Column("QUEUE", least=6), Column("TASK", least=8),
    Column("JOBS", right=True),
)  # fmt: skip


@click.command(
    epilog=example(
        "holdfast prune --db app.db",
        "holdfast prune --dry-run --db app.db",
        "holdfast prune --archive jobs.jsonl.gz --db app.db",
        "holdfast prune --older-than 7d --task ping --db app.db",
    )
)
@click.option("--dry-run", "-n", is_flag=True, help="Only print what would be deleted.")
@click.option(
    "--archive",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Before deleting, write the jobs to this .jsonl.gz file.",
)
@click.option(
    "--older-than", type=duration, metavar="DURATION",
    help="Delete jobs that finished this long ago, instead of by the app's rules.",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(0), metavar="N",
    help="Delete all but the newest N jobs of each status, instead of by the app's rules.",
)  # fmt: skip
@click.option(
    "--max-size", type=size, metavar="SIZE",
    help="Delete the oldest jobs until the data fits into this size, such as 2G.",
)  # fmt: skip
@click.option(
    "--status", "-s", multiple=True, type=click.Choice(FINISHED), metavar="STATUS",
    help=f"Only {', '.join(FINISHED[:-1])} or {FINISHED[-1]} jobs. --status, --queue and --task require --older-than "
    "or --keep, and can be repeated.",
)  # fmt: skip
@queue_option("Only jobs of this queue.")
@task_option("Only jobs of this task.")
@click.option("--hurry", is_flag=True, help="Do not pause between steps to let other processes write.")
@yes_option
@change_options
def prune(
    database: DatabaseOption,
    dry_run: bool,
    archive: str | None,
    hurry: bool,
    yes: bool,
    audit: AuditOptions,
    as_json: bool,
    **rule_options: Any,
) -> None:
    """Delete old finished jobs with their history.

    Applies the app's retention rules, as its workers do automatically. Works in small steps while other processes use
    the database, and can be interrupted and run again. With --older-than, --keep or --max-size, it asks for
    confirmation.
    """
    rules = _retention(**rule_options)
    if archive == "":
        raise click.UsageError("--archive must be the path of a file, got an empty string")
    with database.open() as app:
        asks, shows_progress = rules is not None and not yes, sys.stderr.isatty() and not as_json
        report = app.prune(dry_run=True, retention=rules) if dry_run or asks or shows_progress else None
        if not dry_run:
            if report is not None and asks:
                about = "about " if report.estimate else ""
                confirm(f"Delete {about}{plural(report.jobs, 'job')} ({report.retention})?", yes)
            with _progress(None if report is None or not shows_progress else report.jobs) as progress:
                report = app.prune(retention=rules, archive=archive, hurry=hurry, progress=progress, **audit)
    assert report is not None
    _print_report(report, as_json, one_time=rules is not None)


def _retention(
    status: tuple[str, ...],
    queue: tuple[str, ...],
    task: tuple[str, ...],
    older_than: float | None,
    keep: int | None,
    max_size: int | None,
) -> Retention | None:
    """Return the rules that the options give for this run; None: the app's own."""
    if older_than is None and keep is None and max_size is None:
        if status or queue or task:
            raise click.UsageError("--status, --queue and --task require --older-than or --keep")
        return None
    if max_size is not None and (status or queue or task):
        raise click.UsageError("--max-size applies to the whole file: drop --status, --queue and --task")
    age = None if older_than is None else timedelta(seconds=older_than)
    rules: dict[str, Any] = dict.fromkeys((*FINISHED, "rollups", "failures", "audit"))
    if queue or task:
        pairs = product(queue or (None,), task or (None,))
        rules["rules"] = [Rule(queue=q, task=t, status=status or None, age=age, newest=keep) for q, t in pairs]
    elif keep is not None and status:
        raise click.UsageError("--keep with --status requires --queue or --task")
    else:
        rules |= dict.fromkeys(status or FINISHED, age) | {"newest": keep}
    return Retention(**rules, max_bytes=max_size)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar. total: None shows none."""
    if total is None:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Pruning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("prune", total=total)
        yield lambda done: bar.update(task, completed=done, total=max(total, done))


def _print_report(report: PruneReport, as_json: bool, one_time: bool) -> None:
    if as_json:
        document({"action": "prune", **to_data(report)})
        return
    parts = [f"{getattr(report, status):,} {status}" for status in FINISHED if getattr(report, status)]
    which = f": {', '.join(parts)}" if parts else ""
    verb = "would be deleted" if report.dry_run else "deleted"
    say(f"{plural(report.jobs, 'job')} {verb}{which}.")
    if report.groups:
        table(COLUMNS, [[one.rule, one.status, one.queue, one.task or "", f"{one.jobs:,}"] for one in report.groups])
    if report.estimate:
        say(f"The number of jobs to delete for the size limit is estimated {report.estimate}.")
    say(f"{'Rules for this run' if one_time else 'Retention'}: {report.retention}.")
    others = ("attempts", "events", "batches", "minutes", "failures", "tracebacks", "audit", "blobs")
    rest = [f"{getattr(report, name):,} {name}" for name in others if getattr(report, name)]
    if rest:
        say(f"{'Also' if report.dry_run else 'Also deleted'}: {', '.join(rest)}.")
    if report.archived:
        say(f"{plural(report.archived, 'job')} written to the archive.")
