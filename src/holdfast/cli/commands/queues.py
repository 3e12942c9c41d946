"""`holdfast queues`: list queues; pause, resume, requeue or purge one."""

import click

from ...model.stats import QueueOverview
from ..bulk import confirm, print_paused, print_result
from ..options import (
    AuditOptions,
    DatabaseOption,
    attempts_option,
    change_options,
    complete_queues,
    delay_option,
    example,
    read_options,
    yes_option,
)
from ..output import Cell, Column, Row, document, known, note, plural, span, status_cell, table

COLUMNS = (
    Column("QUEUE", least=10), Column("READY", right=True), Column("SCHEDULED", right=True, spare=4),
    Column("BLOCKED", right=True, spare=5), Column("RUNNING", right=True, spare=2),
    Column("FAILED", right=True), Column("OLDEST READY", right=True, spare=3), Column("STATE", spare=1),
)  # fmt: skip
name_argument = click.argument("name", shell_complete=complete_queues)


@click.group(
    invoke_without_command=True,
    epilog=example("holdfast queues --db app.db", "holdfast queues pause mail --db app.db"),
)
@read_options
@click.pass_context
def queues(ctx: click.Context, database: DatabaseOption, as_json: bool) -> None:
    """List the queues, or change one.

    The list has every queue with ready, scheduled, blocked, running or failed jobs, and every queue that was ever
    paused. Tasks and messages are counted together.
    """
    if ctx.invoked_subcommand is not None:
        return
    with database.open() as app:
        overview = app.queues()
    if as_json:
        document({"queues": overview})
    elif not overview:
        note("No queues: no job is waiting, running or failed.")
    else:
        table(COLUMNS, [_row(queue) for queue in overview])


def _row(queue: QueueOverview) -> Row:
    oldest = queue.oldest_ready_age
    return [
        queue.name,
        known(queue.ready),
        known(queue.scheduled),
        known(queue.blocked),
        known(queue.running),
        Cell(known(queue.failed), "red" if queue.failed else ""),
        "" if oldest is None else span(int(oldest)),
        status_cell("paused") if queue.paused else "",
    ]


@queues.command(epilog=example("holdfast queues pause mail --db app.db"))
@name_argument
@change_options
def pause(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Stop all workers from claiming jobs of the queue. Running jobs continue."""
    with database.open() as app:
        print_paused("queue", name, True, app.queue(name).pause(**audit), as_json)


@queues.command(epilog=example("holdfast queues resume mail --db app.db"))
@name_argument
@change_options
def resume(database: DatabaseOption, name: str, audit: AuditOptions, as_json: bool) -> None:
    """Resume a paused queue."""
    with database.open() as app:
        print_paused("queue", name, False, app.queue(name).resume(**audit), as_json)


@queues.command(epilog=example("holdfast queues requeue inbox --db app.db"))
@name_argument
@attempts_option
@delay_option
@change_options
def requeue(
    database: DatabaseOption, name: str, attempts: int | None, delay: float, audit: AuditOptions, as_json: bool
) -> None:
    """Deliver the dead letters of the queue again.

    Dead letters are failed messages. To run failed tasks again, use holdfast retry.
    """
    with database.open() as app:
        count = app.queue(name).requeue(attempts=attempts, delay=delay, **audit)
    print_result({"queue": name, "requeued": count}, f"{plural(count, 'message')} requeued.", count, as_json)


@queues.command(epilog=example("holdfast queues purge inbox --dead-only --db app.db"))
@name_argument
@click.option("--dead-only", is_flag=True, help="Delete only the dead letters.")
@yes_option
@change_options
def purge(
    database: DatabaseOption, name: str, dead_only: bool, yes: bool, audit: AuditOptions, as_json: bool
) -> None:
    """Delete the messages of the queue, including those in flight.

    Tasks and acknowledged messages are not deleted.
    """
    with database.open() as app:
        queue = app.queue(name)
        stats = queue.stats()
        total, count = stats.failed if dead_only else stats.total, 0
        if total != 0:
            messages = "an unknown number of messages" if total is None else plural(total, "message")
            confirm(f"Delete {messages} of {name}?", yes)
            count = queue.purge(dead_only=dead_only, **audit)
    print_result({"queue": name, "purged": count}, f"{plural(count, 'message')} deleted.", count, as_json)
