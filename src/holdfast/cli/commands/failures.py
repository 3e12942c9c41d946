"""`holdfast failures`: why attempts fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ..options import DatabaseOption, complete_queues, complete_tasks, duration, example, takes_database
from ..output import Cell, Column, age, document, iso, json_option, note, say, say_lines, table

if TYPE_CHECKING:
    from ...observe.results import FailureInfo


COLUMNS = (
    Column("ERROR", least=16),
    Column("COUNT", right=True),
    Column("TASK", least=8),
    Column("QUEUE", least=6, spare=2),
    Column("FIRST SEEN", right=True, spare=3),
    Column("LAST SEEN", right=True, spare=1),
    Column("LAST JOB", right=True),
    Column("FINGERPRINT", least=8, spare=4),
)
MOST = 1000


@click.command(
    epilog=example(
        "holdfast failures --since 1h --db app.db",
        "holdfast failures --task send_mail --traceback --limit 3 --db app.db",
    )
)
@click.option("--queue", "-q", metavar="NAME", shell_complete=complete_queues, help="Of this queue.")
@click.option("--task", "-t", metavar="NAME", shell_complete=complete_tasks, help="Of this task.")
@click.option("--since", type=duration, metavar="DURATION", help="Only what was last seen within 30m, 1h, 2d, …")
@click.option("--traceback", "with_tracebacks", is_flag=True, help="The traceback of each, too.")
@click.option("--limit", type=click.IntRange(1, MOST), default=20, show_default=True, metavar="N")
@takes_database
@json_option
def failures(
    database: DatabaseOption,
    queue: str | None,
    task: str | None,
    since: float | None,
    with_tracebacks: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show why attempts fail: error codes, the most frequent first.

    The same code at another place in the program, or of another task, is another line. Attempts count that were
    tried again, and jobs that are gone by now.
    """
    window = None if since is None else timedelta(seconds=since)
    with database.open() as app:
        found = app.observe.failures(window, limit, with_tracebacks, task=task, queue=queue)
    if as_json:
        document({"failures": [as_data(one, with_traceback=with_tracebacks) for one in found]})
        return
    if not found:
        note("No failures that fit." if queue or task or since is not None else "No failures.")
        return
    now = datetime.now(UTC)
    if not with_tracebacks:
        table(COLUMNS, [_row(one, now) for one in found])
        return
    for index, one in enumerate(found):
        if index:
            say("")
        table(COLUMNS, [_row(one, now)])
        say("")
        say_lines(_indented(one.traceback) if one.traceback else "    No traceback is kept.")


def place(task: str | None) -> Cell:
    return Cell("message", "italic") if task is None else Cell(task)


def _row(one: FailureInfo, now: datetime) -> list[Cell | str]:
    return [
        Cell(one.error_code, "red"),
        f"{one.count:,}",
        place(one.task),
        one.queue,
        f"{age(one.first_seen, now)} ago",
        f"{age(one.last_seen, now)} ago",
        str(one.last_job_id),
        one.fingerprint or "",
    ]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().split("\n"))


def as_data(one: FailureInfo, *, with_traceback: bool = False) -> dict[str, Any]:
    """Failures of one kind as `--json` prints them."""
    data: dict[str, Any] = {
        "error_code": one.error_code,
        "task": one.task,
        "queue": one.queue,
        "count": one.count,
        "first_seen": iso(one.first_seen),
        "last_seen": iso(one.last_seen),
        "last_job_id": one.last_job_id,
        "fingerprint": one.fingerprint,
    }
    return data | ({"traceback": one.traceback} if with_traceback else {})
