"""`holdfast workers`: who runs jobs, and who did."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..options import DatabaseOption, example, takes_database
from ..output import Cell, Column, age, document, iso, json_option, note, optional_iso, plural, table

if TYPE_CHECKING:
    from ...observe.results import WorkerHealth


COLUMNS = (
    Column("WORKER", least=8),
    Column("STATE"),
    Column("RUNNING", right=True),
    Column("HEARTBEAT", right=True, spare=1),
    Column("PID", right=True, spare=2),
    Column("HOST", least=8, spare=3),
    Column("UP", right=True, spare=5),
    Column("QUEUES", least=8, spare=4),
)

# How each is told, and in which colour.
STATES = {"alive": "green", "halted": "yellow", "lost": "red", "stopped": "dim"}


@click.command(epilog=example("holdfast workers --db app.db", "holdfast workers --all --json --db app.db"))
@click.option("--all", "-a", "with_ended", is_flag=True, help="Those that have ended, too.")
@takes_database
@json_option
def workers(database: DatabaseOption, with_ended: bool, as_json: bool) -> None:
    """List the workers: whether each is alive, what it runs, when it was last heard of.

    A worker is alive while its process holds its lock, however long it has been silent. One that is halted was
    stopped by a signal (Ctrl-Z), and does nothing until it is continued.
    """
    with database.open() as app:
        known = app.observe.workers()
    found = [one for one in known if with_ended or one.ended_at is None]
    if as_json:
        document({"workers": [as_data(one) for one in found]})
        return
    if not found:
        ended = f" {plural(len(known), 'worker')} that ended: add --all." if known else ""
        note(f"No workers: nothing runs. Start one: holdfast worker module:app.{ended}")
        return
    now = datetime.now(UTC)
    table(COLUMNS, [_row(one, now) for one in found])


def worker_state(one: WorkerHealth) -> str:
    """alive, halted (by a signal), lost (it died) or stopped (it ended as it should)."""
    if one.ended_at is not None:
        return one.ending or "stopped"
    if not one.alive:
        return "lost"
    return "halted" if one.stopped else "alive"


def state_cell(one: WorkerHealth) -> Cell:
    state = worker_state(one)
    return Cell(state, STATES[state])


def places(one: WorkerHealth) -> str:
    """How many of its places are taken; and how many jobs it has taken in advance, to run next."""
    ahead = one.running - one.concurrency
    return f"{one.running}/{one.concurrency}" if ahead <= 0 else f"{one.concurrency}/{one.concurrency} +{ahead:,}"


def queue_names(one: WorkerHealth) -> str:
    return "all" if one.queues is None else ", ".join(one.queues)


def first_cells(one: WorkerHealth, now: datetime) -> list[Cell | str]:
    """Up to the host."""
    return [one.id, state_cell(one), places(one), f"{age(one.heartbeat_at, now)} ago", str(one.pid), one.host]


def _row(one: WorkerHealth, now: datetime) -> list[Cell | str]:
    return [*first_cells(one, now), age(one.started_at, one.ended_at or now), queue_names(one)]


def as_data(one: WorkerHealth) -> dict[str, Any]:
    """A worker as `--json` prints it."""
    return {
        "id": one.id,
        "state": worker_state(one),
        "alive": one.alive,
        "halted": one.stopped,
        "running": one.running,
        "concurrency": one.concurrency,
        "pid": one.pid,
        "host": one.host,
        "queues": one.queues,
        "started_at": iso(one.started_at),
        "heartbeat_at": iso(one.heartbeat_at),
        "ended_at": optional_iso(one.ended_at),
        "ending": one.ending,
    }
