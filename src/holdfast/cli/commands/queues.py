"""`holdfast queues`: how full they are; pause, resume, requeue, purge."""

import click

from ...model.stats import QueueOverview
from ..bulk import ask, end
from ..options import AuditOptions, DatabaseOption, complete_queues, duration, example, signed, takes_database
from ..output import Cell, Column, document, json_option, known, note, plural, span, state, table

COLUMNS = (
    Column("QUEUE", least=10),
    Column("READY", right=True),
    Column("SCHEDULED", right=True, spare=4),
    Column("BLOCKED", right=True, spare=5),
    Column("RUNNING", right=True, spare=2),
    Column("FAILED", right=True),
    Column("OLDEST READY", right=True, spare=3),
    Column("STATE", spare=1),
)
name_argument = click.argument("name", shell_complete=complete_queues)


@click.group(
    invoke_without_command=True,
    epilog=example("holdfast queues --db app.db", "holdfast queues pause mail --db app.db"),
)
@takes_database
@json_option
@click.pass_context
def queues(ctx: click.Context, database: DatabaseOption, as_json: bool) -> None:
    """List the queues, or do something to one.

    Jobs and messages that have succeeded or were cancelled do not count.
    """
    if ctx.invoked_subcommand is not None:
        return
    with database.open() as app:
        found = app.queues()
    if as_json:
        document({"queues": found})
    elif not found:
        note("No queues: nothing waits, runs or has failed.")
    else:
        table(COLUMNS, [_row(queue) for queue in found])


def _row(queue: QueueOverview) -> list[Cell | str]:
    oldest = queue.oldest_ready_age
    return [
        queue.name,
        known(queue.ready),
        known(queue.scheduled),
        known(queue.blocked),
        known(queue.running),
        Cell(known(queue.failed), "red" if queue.failed else ""),
        "" if oldest is None else span(int(oldest)),
        state("paused") if queue.paused else "",
    ]


@queues.command(epilog=example("holdfast queues pause mail --db app.db"))
@name_argument
@signed
@takes_database
@json_option
def pause(database: DatabaseOption, name: str, signature: AuditOptions, as_json: bool) -> None:
    """Nothing is taken from the queue any more, by anyone. What runs goes on."""
    with database.open() as app:
        changed = app.queue(name).pause(**signature)
    sentence = f"{name} is paused." if changed else f"{name} was paused already: nothing has changed."
    end({"queue": name, "paused": True, "changed": changed}, sentence, changed, as_json)


@queues.command(epilog=example("holdfast queues resume mail --db app.db"))
@name_argument
@signed
@takes_database
@json_option
def resume(database: DatabaseOption, name: str, signature: AuditOptions, as_json: bool) -> None:
    """End a pause."""
    with database.open() as app:
        changed = app.queue(name).resume(**signature)
    sentence = f"{name} is resumed." if changed else f"{name} was not paused: nothing has changed."
    end({"queue": name, "paused": False, "changed": changed}, sentence, changed, as_json)


@queues.command(epilog=example("holdfast queues requeue inbox --db app.db"))
@name_argument
@click.option("--attempts", type=int, default=3, show_default=True, metavar="N", help="How many more each gets.")
@click.option("--delay", type=duration, default="0s", metavar="DURATION", help="Not before 10s, 5m, 1h, … from now.")
@signed
@takes_database
@json_option
def requeue(
    database: DatabaseOption, name: str, attempts: int, delay: float, signature: AuditOptions, as_json: bool
) -> None:
    """Deliver the queue's dead letters again: its failed messages, not its tasks."""
    with database.open() as app:
        count = app.queue(name, max_attempts=attempts).requeue(delay=delay, **signature)
    end({"queue": name, "requeued": count}, f"{plural(count, 'message')} requeued.", count, as_json)


@queues.command(epilog=example("holdfast queues purge inbox --dead-only --db app.db"))
@name_argument
@click.option("--dead-only", is_flag=True, help="Only the dead letters.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@signed
@takes_database
@json_option
def purge(
    database: DatabaseOption, name: str, dead_only: bool, yes: bool, signature: AuditOptions, as_json: bool
) -> None:
    """Delete the queue's messages, those in flight too. Its tasks stay, and so do acknowledged messages."""
    with database.open() as app:
        queue = app.queue(name)
        stats = queue.stats()
        found, count = stats.failed if dead_only else stats.total, 0
        if found != 0:
            what = "more messages than are counted" if found is None else plural(found, "message")
            ask(f"Delete {what} of {name}?", yes)
            count = queue.purge(dead_only=dead_only, **signature)
    end({"queue": name, "purged": count}, f"{plural(count, 'message')} deleted.", count, as_json)
