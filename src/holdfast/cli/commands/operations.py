"""`holdfast operations` and `holdfast operation`: list bulk operations; show, run or stop one."""

from datetime import UTC, datetime
from typing import Any

import click

from ...app.operations import Operation
from ...text import to_data
from ..bulk import print_result
from ..options import AuditOptions, DatabaseOption, change_options, example, page_options, read_options
from ..output import Cell, Column, Row, age, document, fields, plural, print_page, utc_text

COLUMNS = (
    Column("ID", right=True), Column("ACTION"), Column("STATE"), Column("CHANGED", right=True),
    Column("MATCHED", right=True), Column("DONE", right=True), Column("BY", spare=1),
    Column("AGE", right=True, spare=2),
)  # fmt: skip
STYLES = {"failed": "red", "stopped": "yellow", "running": "cyan"}
id_argument = click.argument("id", type=click.IntRange(1, 2**63 - 1))


@click.command(epilog=example("holdfast operations --db app.db"))
@page_options("operations")
@read_options
def operations(database: DatabaseOption, limit: int, cursor: str | None, as_json: bool) -> None:
    """List bulk operations, newest first.

    The web page starts them, and so do retry, cancel, run-now and delete with --background. Workers and the web
    server carry them out.
    """
    with database.open() as app:
        page = app.operations.list(limit=limit, cursor=cursor)
    print_page("operations", page, COLUMNS, _row, as_json)


def _row(one: Operation, now: datetime) -> Row:
    return [
        str(one.id),
        one.action.replace("_", "-"),
        Cell(one.state, STYLES.get(one.state, "")),
        f"{one.changed:,}",
        _matched(one),
        f"{one.progress:.0%}",
        one.actor,
        age(one.created_at, now),
    ]


def _matched(one: Operation) -> str:
    return f"{one.matched:,}{'' if one.matched_all else '+'}"


@click.group(epilog=example("holdfast operation show 7 --db app.db", "holdfast operation stop 7 --db app.db"))
def operation() -> None:
    """Show, run or stop one bulk operation."""


@operation.command(epilog=example("holdfast operation show 7 --db app.db"))
@id_argument
@read_options
def show(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Show a bulk operation and its progress."""
    with database.open() as app:
        found = app.operations.get(id)
    if as_json:
        document(to_data(found))
        return
    now = datetime.now(UTC)
    fields([
        ("operation", str(found.id)),
        ("action", found.action.replace("_", "-")),
        ("state", Cell(found.state, STYLES.get(found.state, ""))),
        ("jobs", ", ".join(f"{name} {_shown(value)}" for name, value in found.criteria.items())),
        ("changed", f"{found.changed:,} of {_matched(found)}, {found.progress:.0%} searched"),
        ("by", found.actor + (f": {found.reason}" if found.reason else "")),
        ("started", f"{utc_text(found.created_at)} UTC, {age(found.created_at, now)} ago"),
        ("last step", f"{age(found.updated_at, now)} ago"),
        *([("error", found.error)] if found.error else []),
    ])  # fmt: skip


def _shown(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(str, value[:10])) + (" …" if len(value) > 10 else "")


@operation.command(epilog=example("holdfast operation run 7 --db app.db"))
@id_argument
@read_options
def run(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Run a bulk operation in this process, to its end.

    Exits with 1 if another process is working on it.
    """
    with database.open() as app:
        found = app.operations.run(id)
    text = (
        f"Operation {id} {found.state}: {plural(found.changed, 'job')} changed."
        if found.is_over
        else f"Another process is working on operation {id}."
    )
    print_result(to_data(found), text, found.is_over, as_json)


@operation.command(epilog=example("holdfast operation stop 7 --reason 'wrong queue' --db app.db"))
@id_argument
@change_options
def stop(database: DatabaseOption, id: int, audit: AuditOptions, as_json: bool) -> None:
    """Stop a bulk operation. The jobs that it has changed are not changed back. Exits with 1 if it had ended."""
    with database.open() as app:
        stopped = app.operations.stop(id, **audit)
        changed = app.operations.get(id).changed
    outcome = f"stopped after {plural(changed, 'job')}" if stopped else "had already ended"
    text = f"Operation {id} {outcome}."
    print_result({"operation": id, "stopped": stopped, "changed": changed}, text, stopped, as_json)
