"""`holdfast move`: carry everything to another database, on either store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ...errors import SchemaOutdated
from ...text import to_data
from ..options import DEFAULT_PREFIX, AuditOptions, audit_options, duration, example
from ..output import document, progress_bar, say, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...upkeep.move import MoveProgress, MoveReport

BUSY_SECONDS = 60.0
STAGES = {
    "history": "Copying what has ended",
    "running": "Waiting for running jobs",
    "rest": "Copying the rest",
    "comparing": "Comparing",
}


@click.command(
    epilog=example(
        "holdfast move app.db postgresql://app@db.example.org/app --dry-run",
        "holdfast move app.db postgresql://app@db.example.org/app",
        "holdfast move postgresql://app@db.example.org/app app.db --wait 2m",
    )
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--dry-run", is_flag=True, help="Only check whether it can be moved, and count jobs and events.")
@click.option(
    "--wait", type=duration, default="30s", show_default=True, metavar="DURATION",
    help="Time that running jobs get to finish. Those that still run are given back, uncounted.",
)  # fmt: skip
@click.option("--prefix", metavar="TEXT", help=f"Prefix of the table names of both.  [default: {DEFAULT_PREFIX}]")
@click.option("--schema", metavar="TEXT", help="Schema of the tables, on PostgreSQL.  [default: public]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@audit_options
def move(
    source: str,
    destination: str,
    dry_run: bool,
    wait: float,
    prefix: str | None,
    schema: str | None,
    as_json: bool,
    audit: AuditOptions,
) -> None:
    """Move everything from database SRC to the empty DST.

    That is all jobs and messages with their ids and history, schedules, statistics and settings. DST must be an empty
    database.

    Finished jobs are copied while the workers run. Then the workers of SRC are asked to stop, the rest is copied
    while SRC cannot be written, and both sides are compared. From then on, every write to SRC fails with an error
    that names DST. If the command is interrupted, SRC stays in service: run the command again to continue.
    """
    from ...store.open import is_postgres
    from ...supervisor import Holdfast

    def open_one(url: str, migrate: bool) -> Holdfast:
        own = schema if is_postgres(url) else None
        names = prefix or DEFAULT_PREFIX
        return Holdfast(url, prefix=names, schema=own, migrate=migrate, busy_timeout=BUSY_SECONDS)

    with open_one(source, migrate=False) as app:
        try:
            there = open_one(destination, migrate=not dry_run)
        except SchemaOutdated:
            if not dry_run:
                raise
            say("The destination has no tables yet: they will be created.")
            return
        with there, _progress(as_json) as tell:
            report = app.move(there, dry_run=dry_run, wait=wait, progress=tell, **audit)
    if as_json:
        document({"action": "move", **to_data(report)})
    else:
        _print(report)


def _print(report: MoveReport) -> None:
    if report.dry_run:
        rows = report.rows
        say(f"Can be moved to {report.destination}: {rows['jobs']:,} jobs and {rows['events']:,} events.")
        say(f"Jobs that run now: {report.running:,}.")
        return
    moved = f"{report.rows.get('jobs', 0):,} jobs and {report.rows.get('events', 0):,} events"
    say(f"Moved {moved} to {report.destination}.")
    say(f"Took {span(round(report.seconds, 1))}; writes were blocked for {span(round(report.paused_seconds, 1))}.")
    say("Counts and checksums of both sides are equal. Start the programs with the new URL.")


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[MoveProgress], None] | None]:
    """Show a progress bar on a terminal."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task: Any = bar.add_task("", total=None)
        yield lambda now: bar.update(task, description=STAGES[now.stage], completed=now.done, total=now.total or None)
