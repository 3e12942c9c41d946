"""`holdfast failures`: list why attempts fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from ...text import to_data
from ..options import DatabaseOption, complete_queues, complete_tasks, duration, example, read_options
from ..output import Cell, Column, age, document, note, say, say_lines, table, task_cell

if TYPE_CHECKING:
    from ...model.stats import FailureInfo


COLUMNS = (
    Column("ERROR", least=16), Column("COUNT", right=True), Column("TASK", least=8),
    Column("QUEUE", least=6, spare=2), Column("FIRST SEEN", right=True, spare=3),
    Column("LAST SEEN", right=True, spare=1), Column("LAST JOB", right=True),
    Column("FINGERPRINT", least=8, spare=4),
)  # fmt: skip
MAX_LIMIT = 1000


@click.command(
    epilog=example(
        "holdfast failures --since 1h --db app.db",
        "holdfast failures --task send_mail --traceback --limit 3 --db app.db",
    )
)
@click.option("--queue", "-q", metavar="NAME", shell_complete=complete_queues, help="Only failures of this queue.")
@click.option("--task", "-t", metavar="NAME", shell_complete=complete_tasks, help="Only failures of this task.")
@click.option("--since", type=duration, metavar="DURATION", help="Only failures seen within the last 30m, 1h, 2d, …")
@click.option("--traceback", "with_tracebacks", is_flag=True, help="Show the traceback of each failure.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_LIMIT), default=20, show_default=True, metavar="N",
    help="List at most N failures.",
)  # fmt: skip
@read_options
def failures(
    database: DatabaseOption,
    queue: str | None,
    task: str | None,
    since: float | None,
    with_tracebacks: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List failures by error code, most frequent first.

    A code has one row per task, queue and place in the program (its fingerprint). The count includes attempts that
    were retried and jobs that were deleted since.
    """
    window = None if since is None else timedelta(seconds=since)
    with database.open() as app:
        found = app.observe.failures(window, limit, with_tracebacks, task=task, queue=queue)
    if as_json:
        omit = ("trend",) if with_tracebacks else ("trend", "traceback")
        document({"failures": [to_data(failure, omit=omit) for failure in found]})
        return
    if not found:
        note("No matching failures." if queue or task or since is not None else "No failures.")
        return
    now = datetime.now(UTC)
    if not with_tracebacks:
        table(COLUMNS, [failure_row(failure, now) for failure in found])
        return
    for index, failure in enumerate(found):
        if index:
            say("")
        table(COLUMNS, [failure_row(failure, now)])
        say("")
        text = (failure.traceback or "No traceback stored.").rstrip()
        say_lines("\n".join(f"    {line}" for line in text.split("\n")))


def failure_row(failure: FailureInfo, now: datetime) -> list[Cell | str]:
    return [
        Cell(failure.error_code, "red"),
        f"{failure.count:,}",
        task_cell(failure.task),
        failure.queue,
        f"{age(failure.first_seen, now)} ago",
        f"{age(failure.last_seen, now)} ago",
        str(failure.last_job_id),
        failure.fingerprint or "",
    ]
