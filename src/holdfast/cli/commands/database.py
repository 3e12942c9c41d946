"""`holdfast migrate`, `move` and `vacuum`: update, move or compact a whole database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ... import validate
from ...errors import DatabaseMissing, SchemaOutdated
from ...text import size, to_data
from ..options import DEFAULT_PREFIX, AuditOptions, DatabaseOption, audit_options, change_options, duration, example
from ..output import document, progress_bar, say, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...upkeep.move import MoveProgress, MoveReport


@click.command(epilog=example("holdfast migrate --db app.db", "holdfast migrate --db new.db --create"))
@click.option("--create", is_flag=True, help="Create the database if it does not exist.")
@change_options
def migrate(database: DatabaseOption, create: bool, audit: AuditOptions, as_json: bool) -> None:
    """Update the tables of a database to this version of Holdfast.

    Run it after an upgrade, before the new programs start. Otherwise the first of them updates the tables when it
    opens the database, unless its app has migrate=False. With --db, no other command does, except send --create.
    It is safe to run twice, and in several places at once.
    """
    migrated = _migrate(database, create, audit)
    if as_json:
        document({"migrated": migrated})
    else:
        say("Tables updated." if migrated else "The tables are already up to date.")


def _migrate(database: DatabaseOption, create: bool, audit: AuditOptions) -> bool:
    actor, reason = validate.actor(audit["actor"]), validate.reason(audit["reason"])
    created = False
    try:
        database.open().close()
        return False
    except DatabaseMissing:
        if not create:
            raise
        created = True
    except SchemaOutdated:
        pass
    with database.open(migrate=True) as app:
        app.store.file.log_event("migrated", actor, {"created": created} | ({"reason": reason} if reason else {}))
    return True


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
        with there, _move_progress(as_json) as tell:
            report = app.move(there, dry_run=dry_run, wait=wait, progress=tell, **audit)
    if as_json:
        document({"action": "move", **to_data(report)})
    else:
        _print_moved(report)


def _print_moved(report: MoveReport) -> None:
    if report.dry_run:
        rows = report.rows
        say(f"Can be moved to {report.destination}: {rows['jobs']:,} jobs and {rows['events']:,} events.")
        say(f"Jobs that run now: {report.running:,}.")
        return
    moved = f"{report.rows.get('jobs', 0):,} jobs and {report.rows.get('events', 0):,} events"
    say(f"Moved {moved} to {report.destination}.")
    say(f"Took {span(round(report.seconds, 1))}; writes were blocked for {span(round(report.paused_seconds, 1))}.")
    say("The rows of both sides are equal. Start the programs with the new URL.")


@contextmanager
def _move_progress(as_json: bool) -> Iterator[Callable[[MoveProgress], None] | None]:
    """Show a progress bar on a terminal."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with progress_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task: Any = bar.add_task("", total=None)
        yield lambda now: bar.update(task, description=STAGES[now.stage], completed=now.done, total=now.total or None)


@click.command(epilog=example("holdfast vacuum --db app.db", "holdfast vacuum --full --db app.db"))
@click.option("--full", is_flag=True, help="Rewrite all of it. Stop all workers first.")
@click.option("--hurry", is_flag=True, help="Do not pause between steps to let other processes write.")
@click.option("--for", "seconds", type=duration, metavar="DURATION", help="Stop after 30s, 5m, …, done or not.")
@change_options
def vacuum(
    database: DatabaseOption, full: bool, hurry: bool, seconds: float | None, audit: AuditOptions, as_json: bool
) -> None:
    """Return the space of deleted jobs to the file system.

    Works in small steps while other processes use the database. With --full, SQLite rewrites the whole file, which
    makes it as small as possible: no other process can write meanwhile, and the disk needs free space of up to twice
    the size of the file. On PostgreSQL, this runs VACUUM (ANALYZE), and VACUUM (FULL) with --full.
    """
    with database.open() as app, _vacuum_progress(full, as_json) as progress:
        report = app.vacuum(full=full, hurry=hurry, seconds=seconds, progress=progress, **audit)
    if as_json:
        document({"action": "vacuum", **to_data(report)})
        return
    freed = report.before_bytes - report.after_bytes
    if report.held_bytes:
        held = f"{size(report.held_bytes)} are returned once all open read transactions end; see holdfast doctor"
        say(f"The size is still {size(report.after_bytes)}: {held}.")
    elif freed > 0:
        say(f"The database shrank from {size(report.before_bytes)} to {size(report.after_bytes)}.")
    else:
        say(f"No space to return: the size of the database is {size(report.after_bytes)}.")
    if report.free_bytes:
        say(f"{size(report.free_bytes)} in the file are free and will be reused.")


@contextmanager
def _vacuum_progress(full: bool, as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, or a spinner where the total is unknown."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = "Rewriting the tables" if full else "Vacuuming"
    with progress_bar(SpinnerColumn(), TextColumn(what), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
