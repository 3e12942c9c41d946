"""`holdfast jobs`: list jobs. `holdfast inbox`: list external jobs that wait to be settled."""

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ...app.job import Job
from ...app.jobs import Filters
from ...errors import BlobError, BlobMissing, InvalidPayload
from ...model.job import Page
from ...text import to_data
from ..options import DatabaseOption, example, filter_options, page_options, read_options
from ..output import Cell, Column, Row, age, document, due, note, status_cell, table, task_cell

COLUMNS = (
    Column("ID", right=True), Column("TASK", least=10), Column("QUEUE", least=8, spare=2), Column("STATUS"),
    Column("ATTEMPT", right=True, spare=4), Column("AGE", right=True, spare=3), Column("RUN AT", spare=5),
    Column("ERROR", least=12, spare=1),
)  # fmt: skip


@click.command(
    epilog=example(
        "holdfast jobs --db app.db --status failed --since 1h",
        "holdfast jobs --db app.db --json | jq '.jobs[].error_code'",
    )
)
@filter_options
@page_options("jobs")
@click.option("--args", "with_args", is_flag=True, help="Show the payloads.")
@read_options
def jobs(
    database: DatabaseOption, filters: Filters, limit: int, cursor: str | None, with_args: bool, as_json: bool
) -> None:
    """List jobs and messages, newest first.

    If there are more jobs, a note names the --cursor to continue with. A search that no index supports stops after
    about 20,000 jobs, and the note says so.
    """
    with database.open() as app:
        page = app.jobs.list(limit=limit, cursor=cursor, **filters)
    if as_json:
        rows = [job_data(job, *(["args"] if with_args else [])) for job in page]
        document({"jobs": rows, "next": page.next, "previous": page.previous, "scanned": page.scanned})
        return
    if page:
        now = datetime.now(UTC)
        columns = (*COLUMNS, Column("ARGS", least=20)) if with_args else COLUMNS
        table(columns, [_row(job, now, with_args) for job in page])
    if page.scanned is not None:
        note(_stopped_early(page, cursor))
    elif not page:
        note("No jobs.")
    elif page.next is not None:
        note(f"More jobs: add --cursor {page.next}")


INBOX_COLUMNS = (
    Column("ID", right=True), Column("NAME", least=10), Column("QUEUE", least=8, spare=2),
    Column("AGE", right=True, spare=3), Column("TIMEOUT", spare=1), Column("PAYLOAD", least=20, spare=1),
)  # fmt: skip


@click.command(
    epilog=example(
        "holdfast inbox --db app.db",
        "holdfast complete 7 --result true --db app.db",
        "holdfast fail 7 REJECTED --db app.db",
    )
)
@page_options("jobs")
@read_options
def inbox(database: DatabaseOption, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the jobs that wait for a person or another system.

    Settle one with `holdfast complete` or `holdfast fail`. TIMEOUT is when it fails unless it was settled before.
    """
    with database.open() as app:
        page = app.jobs.inbox(limit=limit, cursor=cursor)
        rows = [(job, payload_text(job, "args")) for job in page]
    if as_json:
        found = [job_data(job, "args") | {"timeout_at": job.timeout_at} for job, _ in rows]
        document({"jobs": found, "next": page.next, "previous": page.previous})
        return
    now = datetime.now(UTC)
    if not rows:
        note("Nothing waits for a decision.")
        return
    table(INBOX_COLUMNS, [
        [str(job.id), task_cell(job.task), job.queue, age(job.created_at, now),
         "" if job.timeout_at is None else due(job.timeout_at, now), payload]
        for job, payload in rows
    ])  # fmt: skip
    if page.next is not None:
        note(f"More jobs: add --cursor {page.next}")


def _stopped_early(page: Page[Any], cursor: str | None) -> str:
    """Describe how far a search went before it was stopped, and how to continue it."""
    newer = cursor is not None and cursor.startswith("newer-")
    onward = page.previous if newer else page.next
    assert onward is not None
    reached = f"{'up' if newer else 'down'} to id {int(onward.partition('-')[2]):,}"
    found = "" if page else "No matching job yet. "
    return f"{found}Scanned {page.scanned:,} jobs, {reached}; continue with --cursor {onward}"


def _row(job: Job[Any], now: datetime, with_args: bool) -> Row:
    row: list[Cell | str] = [
        str(job.id),
        task_cell(job.task),
        job.queue,
        status_cell(job.status),
        f"{job.attempt}/{job.max_attempts}",
        age(job.created_at, now),
        due(job.run_at, now) if job.status == "scheduled" else "",
        job.error_code or "",
    ]
    return [*row, payload_text(job, "args")] if with_args else row


def payload_text(job: Job[Any], name: str) -> str:
    """Return the job's `args`, `result` or `state` as JSON text, or why it cannot be read."""
    try:
        return msgspec.json.encode(getattr(job, name)).decode()
    except (InvalidPayload, BlobMissing, BlobError) as error:
        return f"({error})"


def job_data(job: Job[Any], *payloads: str) -> dict[str, Any]:
    """Return the job for JSON. payloads: `args`, `result`, `state`: private unless the operator asks for them."""
    data: dict[str, Any] = to_data(job)
    for name in payloads:
        try:
            data[name] = msgspec.Raw(msgspec.json.encode(getattr(job, name)))  # the user's own types: not for to_data
        except (InvalidPayload, BlobMissing, BlobError) as error:
            data |= {name: None, f"{name}_error": str(error)}
    return data
