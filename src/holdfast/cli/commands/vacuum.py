"""`holdfast vacuum`: give space back to the system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from ...text import size
from ..options import AuditOptions, DatabaseOption, example, signed, takes_database
from ..output import document, json_option, progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command(epilog=example("holdfast vacuum --db app.db", "holdfast vacuum --full --db app.db"))
@click.option("--full", is_flag=True, help="Write the whole file anew: no worker may be at work, and it takes room.")
@click.option("--hurry", is_flag=True, help="Without pauses in which others have the database.")
@signed
@takes_database
@json_option
def vacuum(database: DatabaseOption, full: bool, hurry: bool, signature: AuditOptions, as_json: bool) -> None:
    """Give the space that deleted jobs have left back to the system.

    In small steps, while others work. With --full the whole file is written anew, which makes it as small as it can
    be; until that has ended nobody else can write, and it takes up to twice the size of the file in free space.
    """
    with database.open() as app, _progress(full, as_json) as progress:
        report = app.vacuum(full=full, hurry=hurry, progress=progress, **signature)
    if as_json:
        document({"action": "vacuum", **msgspec.structs.asdict(report)})
        return
    freed = report.before_bytes - report.after_bytes
    if report.held_bytes:
        held = f"{size(report.held_bytes)} of it are given back as soon as nobody has a read transaction open"
        say(f"The file has {size(report.after_bytes)} still: {held}. See holdfast doctor.")
    elif freed > 0:
        say(f"The file shrank from {size(report.before_bytes)} to {size(report.after_bytes)}.")
    else:
        say(f"There was nothing to give back: the file has {size(report.after_bytes)}.")
    if report.free_bytes:
        say(f"{size(report.free_bytes)} in it are free, and are used by the next jobs.")


@contextmanager
def _progress(full: bool, as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar, on a terminal; of what cannot be measured, that it goes on."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    what = "Writing the file anew" if full else "Shrinking"
    with progress_bar(SpinnerColumn(), TextColumn(what), BarColumn(), TimeElapsedColumn()) as bar:
        one = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(one, completed=done, total=total or None)
