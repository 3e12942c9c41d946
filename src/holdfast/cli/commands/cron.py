"""`holdfast cron`: what is enqueued by the clock; pause, resume, remove."""

from datetime import UTC, datetime
from typing import Any

import click

from ...app.schedules import Schedule
from ..bulk import end
from ..options import AuditOptions, DatabaseOption, complete_schedules, example, signed, takes_database
from ..output import Cell, Column, age, document, due, json_option, note, optional_iso, state, table

COLUMNS = (
    Column("NAME", least=10),
    Column("CRON"),
    Column("ZONE", least=6, spare=3),
    Column("TASK", least=8, spare=2),
    Column("QUEUE", least=7, spare=5),
    Column("NEXT"),
    Column("LAST", spare=4),
)
name_argument = click.argument("name", shell_complete=complete_schedules)


@click.group(
    invoke_without_command=True,
    epilog=example("holdfast cron --db app.db", "holdfast cron pause tidy --db app.db"),
)
@takes_database
@json_option
@click.pass_context
def cron(ctx: click.Context, database: DatabaseOption, as_json: bool) -> None:
    """List the schedules, or do something to one.

    Those of @app.cron are there once a worker with that code has started.
    """
    if ctx.invoked_subcommand is not None:
        return
    with database.open() as app:
        found = app.schedules.list()
    if as_json:
        document({"schedules": [as_data(schedule) for schedule in found]})
    elif not found:
        note("No schedules.")
    else:
        now = datetime.now(UTC)
        table(COLUMNS, [_row(schedule, now) for schedule in found])


def _row(schedule: Schedule, now: datetime) -> list[Cell | str]:
    upcoming = state("paused") if schedule.paused else ""
    if schedule.next_at is not None:
        upcoming = due(schedule.next_at, now)
    last = "" if schedule.last_at is None else f"{age(schedule.last_at, now)} ago"
    return [schedule.name, schedule.cron, schedule.tz, schedule.task, schedule.queue, upcoming, last]


def as_data(schedule: Schedule) -> dict[str, Any]:
    """A schedule as `--json` prints it. Its arguments are private."""
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "task": schedule.task,
        "queue": schedule.queue,
        "paused": schedule.paused,
        "next_at": optional_iso(schedule.next_at),
        "last_at": optional_iso(schedule.last_at),
        "last_job_id": schedule.last_job_id,
        "missed": schedule.missed,
        "source": schedule.source,
    }


@cron.command(epilog=example("holdfast cron pause tidy --db app.db"))
@name_argument
@signed
@takes_database
@json_option
def pause(database: DatabaseOption, name: str, signature: AuditOptions, as_json: bool) -> None:
    """Enqueue nothing more for this schedule, until it is resumed."""
    with database.open() as app:
        changed = app.schedules.pause(name, **signature)
    sentence = f"{name} is paused." if changed else f"{name} was paused already: nothing has changed."
    end({"schedule": name, "paused": True, "changed": changed}, sentence, changed, as_json)


@cron.command(epilog=example("holdfast cron resume tidy --db app.db"))
@name_argument
@signed
@takes_database
@json_option
def resume(database: DatabaseOption, name: str, signature: AuditOptions, as_json: bool) -> None:
    """End a pause. What was missed during it is not made up for."""
    with database.open() as app:
        changed = app.schedules.resume(name, **signature)
    sentence = f"{name} is resumed." if changed else f"{name} was not paused: nothing has changed."
    end({"schedule": name, "paused": False, "changed": changed}, sentence, changed, as_json)


@cron.command(epilog=example("holdfast cron remove tidy --db app.db"))
@name_argument
@signed
@takes_database
@json_option
def remove(database: DatabaseOption, name: str, signature: AuditOptions, as_json: bool) -> None:
    """Remove a schedule. Jobs that it has enqueued stay.

    One of @app.cron comes back when a worker with that code starts: pause that one instead.
    """
    with database.open() as app:
        declared = app.schedules.get(name).source == "code"
        app.schedules.remove(name, **signature)
    if declared:
        note(f"{name} stands in the code as @app.cron: it comes back when a worker with that code starts")
    end({"schedule": name, "removed": True}, f"{name} is removed.", True, as_json)
