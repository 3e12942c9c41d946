"""`holdfast jobs`: a list of jobs."""

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ...app.job import Job
from ...app.jobs import MAX_PAGE, Filters
from ...errors import BlobError, BlobMissing, InvalidPayload
from ...model.job import Page
from ..options import DatabaseOption, cursor_text, example, takes_database, takes_filters
from ..output import Cell, Column, age, document, due, iso, json_option, note, optional_iso, state, table

COLUMNS = (
    Column("ID", right=True),
    Column("TASK", least=10),
    Column("QUEUE", least=8, spare=2),
    Column("STATUS"),
    Column("ATTEMPT", right=True, spare=4),
    Column("AGE", right=True, spare=3),
    Column("RUN AT", spare=5),
    Column("ERROR", least=12, spare=1),
)


@click.command(
    epilog=example(
        "holdfast jobs --db app.db --status failed --since 1h",
        "holdfast jobs --db app.db --json | jq '.jobs[].error_code'",
    )
)
@takes_filters
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, metavar="N")
@click.option("--cursor", type=cursor_text, metavar="CURSOR", help="Go on where another list ended.")
@click.option("--args", "with_args", is_flag=True, help="Show the payloads too.")
@takes_database
@json_option
def jobs(
    database: DatabaseOption, filters: Filters, limit: int, cursor: str | None, with_args: bool, as_json: bool
) -> None:
    """List jobs and messages, newest first."""
    with database.open() as app:
        page = app.jobs.list(limit=limit, cursor=cursor, **filters)
    if as_json:
        rows = [as_data(job, with_args=with_args) for job in page]
        document({"jobs": rows, "next": page.next, "previous": page.previous, "scanned": page.scanned})
        return
    if page:
        now = datetime.now(UTC)
        columns = (*COLUMNS, Column("ARGS", least=20)) if with_args else COLUMNS
        table(columns, [_row(job, now, with_args) for job in page])
    if page.scanned is not None:
        note(stopped(page, cursor))
    elif not page:
        note("No jobs.")
    elif page.next is not None:
        note(f"There are older ones: add --cursor {page.next}")


def stopped(page: Page[Any], cursor: str | None) -> str:
    """How far a search went that was stopped before its end, and how to go on."""
    newer = cursor is not None and cursor.startswith("newer-")
    onward = page.previous if newer else page.next
    assert onward is not None
    reached = f"{'up' if newer else 'down'} to id {int(onward.partition('-')[2]):,}"
    found = "" if page else "No such job was found yet. "
    return f"{found}Looked at {page.scanned:,} jobs, {reached}; go on with --cursor {onward}"


def _row(job: Job[Any], now: datetime, with_args: bool) -> list[Cell | str]:
    row: list[Cell | str] = [
        str(job.id),
        what(job),
        job.queue,
        state(job.status),
        f"{job.attempt}/{job.max_attempts}",
        age(job.created_at, now),
        due(job.run_at, now) if job.status == "scheduled" else "",
        job.error_code or "",
    ]
    return [*row, payload_text(job)] if with_args else row


def what(job: Job[Any]) -> Cell:
    return Cell("message", "italic") if job.task is None else Cell(job.task)


def payload_text(job: Job[Any]) -> str:
    """Its payload as it is stored, or why it cannot be shown."""
    try:
        return msgspec.json.encode(job.args).decode()
    except (InvalidPayload, BlobMissing, BlobError) as error:
        return f"({error})"


def as_data(job: Job[Any], *, with_args: bool = False, with_result: bool = False) -> dict[str, Any]:
    """A job as `--json` prints it. Its payload and result are private unless they are asked for."""
    data: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "status": job.status,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "started_at": optional_iso(job.started_at),
        "finished_at": optional_iso(job.finished_at),
        "timeout": job.timeout,
        "key": job.key,
        "tags": list(job.tags),
        "worker": job.worker,
        "error_code": job.error_code,
        "error_detail": job.error_detail,
        "progress": job.progress,
        "progress_text": job.progress_text,
    }
    for name, wanted in (("args", with_args), ("result", with_result)):
        if wanted:
            data |= _private(job, name)
    return data


def _private(job: Job[Any], name: str) -> dict[str, Any]:
    try:
        return {name: getattr(job, name)}
    except (InvalidPayload, BlobMissing, BlobError) as error:
        return {name: None, f"{name}_error": str(error)}
