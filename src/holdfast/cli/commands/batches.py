"""`holdfast batches` and `holdfast batch`: list batches; show, cancel, retry or seal one."""

from datetime import UTC, datetime
from typing import Any, get_args

import click

from ...app.workflows import Batch, BatchProgress
from ...model.workflow import BatchState
from ...text import to_data
from ..bulk import confirm, print_result
from ..options import (
    AuditOptions,
    DatabaseOption,
    attempts_option,
    change_options,
    delay_option,
    example,
    page_options,
    read_options,
    yes_option,
)
from ..output import Cell, Column, Row, age, document, fields, plural, print_page, status_cell, utc_text

COLUMNS = (
    Column("ID", right=True), Column("STATE"), Column("MEMBERS", right=True), Column("PENDING", right=True),
    Column("SUCCEEDED", right=True, spare=2), Column("FAILED", right=True), Column("CANCELLED", right=True, spare=3),
    Column("AGE", right=True, spare=1),
)  # fmt: skip
STATUSES = ("blocked", "scheduled", "ready", "running", "succeeded", "failed", "cancelled", "deleted")
id_argument = click.argument("id", type=click.IntRange(1, 2**63 - 1))


@click.command(
    epilog=example("holdfast batches --db app.db", "holdfast batches --db app.db --state running"),
)
@click.option(
    "--state", type=click.Choice(get_args(BatchState)), metavar="STATE",
    help="Only batches in this state: open, running, done or abandoned.",
)  # fmt: skip
@page_options("batches")
@read_options
def batches(
    database: DatabaseOption, state: BatchState | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List batches, newest first.

    A batch is open until the block that makes it has ended, then running until all members have finished. It is
    abandoned if the block raised or its process died. Members are counted up to 1,000 of each status.
    """
    with database.open() as app:
        page = app.batches.list(state=state, limit=limit, cursor=cursor)
    print_page("batches", page, COLUMNS, _row, as_json)


def _row(one: BatchProgress, now: datetime) -> Row:
    more = "+" if one.more else ""
    return [
        str(one.id),
        _state(one),
        f"{one.total:,}{more}",
        f"{one.pending:,}",
        f"{one.succeeded:,}",
        Cell(f"{one.failed:,}", "red" if one.failed else ""),
        f"{one.cancelled:,}",
        age(one.created_at, now),
    ]


def _state(one: BatchProgress) -> Cell:
    state = f"{one.state}, abandoned" if one.abandoned else one.state
    return Cell(state, "red" if one.abandoned else status_cell("running").style if one.state != "done" else "")


@click.group(epilog=example("holdfast batch show 7 --db app.db", "holdfast batch retry 7 --db app.db"))
def batch() -> None:
    """Show, cancel, retry or seal one batch."""


@batch.command(epilog=example("holdfast batch show 7 --db app.db"))
@id_argument
@read_options
def show(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Show one batch. List its members with `holdfast jobs --batch ID`."""
    with database.open() as app:
        found = app.batches.get(id)
        progress, callbacks, creator = found.progress(), _callbacks(found), found.creator
    if as_json:
        document({**to_data(progress), "creator": creator, **callbacks})
        return
    now = datetime.now(UTC)
    counts = [f"{count:,} {name}" for name in STATUSES if (count := getattr(progress, name))]
    fields([
        ("batch", str(progress.id)),
        ("state", _state(progress)),
        ("created", f"{utc_text(progress.created_at)} UTC, {age(progress.created_at, now)} ago"),
        *([("creator", creator)] if creator is not None else []),
        *([("done", f"{utc_text(progress.done_at)} UTC")] if progress.done_at is not None else []),
        ("members", f"{progress.total:,}" + (f": {', '.join(counts)}" if counts else "")),
        *((f"on_{name.removesuffix('_job_id')}", f"job {job}") for name, job in callbacks.items() if job),
    ])  # fmt: skip


def _callbacks(found: Batch) -> dict[str, Any]:
    return {"success_job_id": found.success_job_id, "done_job_id": found.done_job_id}


@batch.command(epilog=example("holdfast batch cancel 7 --reason 'wrong file' --db app.db"))
@id_argument
@yes_option
@change_options
def cancel(database: DatabaseOption, id: int, yes: bool, audit: AuditOptions, as_json: bool) -> None:
    """Cancel the unfinished members. on_done runs, on_success does not."""
    with database.open() as app:
        pending = app.batches.get(id).progress().pending
        confirm(f"Cancel {plural(pending, 'member')} of batch {id}?", yes)
        count = app.batches.cancel(id, **audit)
    print_result({"batch": id, "cancelled": count}, f"{plural(count, 'member')} cancelled.", True, as_json)


@batch.command(epilog=example("holdfast batch retry 7 --db app.db"))
@id_argument
@attempts_option
@delay_option
@change_options
def retry(
    database: DatabaseOption, id: int, attempts: int | None, delay: float, audit: AuditOptions, as_json: bool
) -> None:
    """Run the failed members again.

    on_success runs if all members have succeeded then. on_done does not run a second time.
    """
    with database.open() as app:
        count = app.batches.retry(id, attempts=attempts, delay=delay, **audit)
    print_result({"batch": id, "retried": count}, f"{plural(count, 'member')} retried.", count, as_json)


@batch.command(epilog=example("holdfast batch seal 7 --db app.db"))
@id_argument
@change_options
def seal(database: DatabaseOption, id: int, audit: AuditOptions, as_json: bool) -> None:
    """Seal an open batch, as the end of its block does. It is done when all members have finished."""
    with database.open() as app:
        was_open = app.batches.seal(id, **audit)
    text = f"Batch {id} is sealed." if was_open else f"Batch {id} was sealed already."
    print_result({"batch": id, "sealed": was_open}, text, was_open, as_json)
