"""`holdfast cron`: list schedules; pause, resume or remove one."""

from datetime import UTC, datetime

import click

from ...app.schedules import Schedule
from ..bulk import print_paused, print_result
from ..options import AuditOptions, DatabaseOption, change_options, complete_schedules, example, read_options
from ..output import Column, Row, age, document, due, note, status_cell, table

COLUMNS = (
    Column("NAME", least=10), Column("CRON"), Column("ZONE", least=6, spare=3),
    Column("TASK", least=8, spare=2), Column("QUEUE", least=7, spare=5), Column("NEXT"),
    Column("LAST", spare=4),
)  # fmt: skip
name_argument = click.argument("name", shell_complete=complete_schedules)


@click.group(
    invoke_without_command=True,
    epilog=example("holdfast cron --db app.db", "holdfast cron pause tidy --db app.db"),
)
@read_options
@click.pass_context
def cron(ctx: click.Context, database: DatabaseOption, as_json: bool) -> None:
    """List the schedules, or change one.

    NEXT and LAST are the next and the last run. A schedule made by @app.cron appears once a worker with that code has
    started.
    """
    if ctx.invoked_subcommand is not None:
        return
    with database.open() as app:
        schedules = app.schedules.list()
    if as_json:
        document({"schedules": schedules})
    elif not schedules:
        note("No schedules.")
    else:
        now = datetime.now(UTC)
        table(COLUMNS, [_row(schedule, now) for schedule in schedules])


def _row(schedule: Schedule, now: datetime) -> Row:
    upcoming = status_cell("paused") if schedule.paused else ""
    if schedule.next_at is not None:
        upcoming = due(schedule.next_at, now)
    last = "" if schedule.last_at is None else f"{age(schedule.last_at, now)} ago"
    return [schedule.name, schedule.cron, schedule.tz, schedule.task, schedule.queue, upcoming, last]


@cron.command(epilog=example("holdfast cron pause tidy --db app.db"))
@name_argument
@change_options
def pause(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Enqueue no more jobs for this schedule until it is resumed."""
    with database.open() as app:
        print_paused("schedule", name, True, app.schedules.pause(name, **audit), as_json)


@cron.command(epilog=example("holdfast cron resume tidy --db app.db"))
@name_argument
@change_options
def resume(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Resume a paused schedule. Runs that were missed during the pause are not made up."""
    with database.open() as app:
        print_paused("schedule", name, False, app.schedules.resume(name, **audit), as_json)


@cron.command(epilog=example("holdfast cron remove tidy --db app.db"))
@name_argument
@change_options
def remove(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Remove a schedule. Jobs that it has enqueued are not deleted.

    A schedule made by @app.cron is added again when a worker with that code starts: pause it instead.
    """
    with database.open() as app:
        is_from_code = app.schedules.get(name).source == "code"
        app.schedules.remove(name, **audit)
    if is_from_code:
        note(f"{name} is defined by @app.cron: the next worker with that code adds it again. Pause it to stop it")
    print_result({"schedule": name, "removed": True}, f"{name} removed.", True, as_json)
