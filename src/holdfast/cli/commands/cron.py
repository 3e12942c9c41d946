"""`holdfast cron`: list schedules; pause, resume, run or remove one."""

from datetime import UTC, datetime

import click

from ...app.schedules import Schedule
from ..bulk import print_paused, print_result
from ..options import AuditOptions, DatabaseOption, change_options, complete_schedules, example, read_options
from ..output import Column, Row, age, document, due, local_text, note, say, status_cell, table

COLUMNS = (
    Column("NAME", least=10), Column("CRON"), Column("ZONE", least=6, spare=3),
    Column("TASK", least=8, spare=2), Column("QUEUE", least=7, spare=5), Column("NEXT"),
    Column("LAST", spare=4),
)  # fmt: skip
name_argument = click.argument("name", shell_complete=complete_schedules)


@click.group(
    invoke_without_command=True,
    epilog=example(
        "holdfast cron --db app.db", "holdfast cron pause tidy --db app.db", "holdfast cron run tidy --db app.db"
    ),
)
@read_options
@click.pass_context
def cron(ctx: click.Context, database: DatabaseOption, as_json: bool) -> None:
    """List the schedules, or change one.

    NEXT and LAST are the next and the last run, as local times of the schedule's zone. A schedule made by @app.cron
    or @app.every appears once a worker with that code has started.
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
        upcoming = f"{local_text(schedule.next_at, schedule.tz)}, {due(schedule.next_at, now)}"
    last = (
        ""
        if schedule.last_at is None
        else f"{local_text(schedule.last_at, schedule.tz)}, {age(schedule.last_at, now)} ago"
    )
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


@cron.command("run", epilog=example("holdfast cron run tidy --reason 'after the outage' --db app.db"))
@name_argument
@change_options
def run_now(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Enqueue a job of the schedule now, and print its id.

    The next run stays as it is, and a paused schedule stays paused.
    """
    with database.open() as app:
        job = app.schedules.run_now(name, **audit)
    if as_json:
        document({"schedule": name, "id": job.id, "deduplicated": job.deduplicated})
        return
    if job.deduplicated:
        note(f"Nothing stored: job {job.id}, which is {job.status}, already has the key {job.key!r}")
    say(str(job.id))


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
