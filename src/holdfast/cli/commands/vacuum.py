"""`holdfast vacuum`: return free space to the file system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ...text import size, to_data
from ..options import AuditOptions, DatabaseOption, change_options, duration, example
from ..output import document, progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Callable


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
    with database.open() as app, _progress(full, as_json) as progress:
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
def _progress(full: bool, as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal, or a spinner where the total is unknown."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = "Rewriting the tables" if full else "Vacuuming"
    with progress_bar(SpinnerColumn(), TextColumn(what), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
