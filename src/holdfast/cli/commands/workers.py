"""`holdfast workers`: list workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ..options import DatabaseOption, example, read_options
from ..output import Cell, Column, age, document, note, plural, table

if TYPE_CHECKING:
    from ...observe.results import WorkerHealth


COLUMNS = (
    Column("WORKER", least=8), Column("STATE"), Column("RUNNING", right=True),
    Column("HEARTBEAT", right=True, spare=1), Column("PID", right=True, spare=2),
    Column("HOST", least=8, spare=3), Column("UP", right=True, spare=5), Column("QUEUES", least=8, spare=4),
)  # fmt: skip
STATE_STYLES = {"alive": "green", "halted": "yellow", "lost": "red", "stopped": "dim"}


@click.command(epilog=example("holdfast workers --db app.db", "holdfast workers --all --json --db app.db"))
@click.option("--all", "-a", "with_ended", is_flag=True, help="Also list workers that have ended.")
@read_options
def workers(database: DatabaseOption, with_ended: bool, as_json: bool) -> None:
    """List the workers with their state and running jobs.

    A worker is alive as long as its process holds its lock, even if the last heartbeat is old. It is halted while
    its process is suspended (Ctrl-Z), lost if its process died, and stopped if it shut down. RUNNING 4/4 +196 means
    that all 4 slots are taken and 196 jobs are prefetched.
    """
    with database.open() as app:
        known = app.observe.workers()
    listed = [worker for worker in known if with_ended or worker.ended_at is None]
    if as_json:
        document({"workers": listed})
        return
    if not listed:
        ended = f" {plural(len(known), 'worker')} ended: add --all to list them." if known else ""
        note(f"No workers are running. Start one: holdfast worker module:app.{ended}")
        return
    now = datetime.now(UTC)
    uptimes = [age(worker.started_at, worker.ended_at or now) for worker in listed]
    rows = [[*worker_cells(worker, now), up, queue_names(worker)] for worker, up in zip(listed, uptimes, strict=True)]
    table(COLUMNS, rows)


def worker_cells(worker: WorkerHealth, now: datetime) -> list[Cell | str]:
    """Return the cells of the columns from WORKER to HOST."""
    prefetched = worker.running - worker.concurrency
    running = f"{min(worker.running, worker.concurrency)}/{worker.concurrency}"
    return [
        worker.id,
        Cell(worker.state, STATE_STYLES[worker.state]),
        f"{running} +{prefetched:,}" if prefetched > 0 else running,
        f"{age(worker.heartbeat_at, now)} ago",
        str(worker.pid),
        worker.host,
    ]


def queue_names(worker: WorkerHealth) -> str:
    return "all" if worker.queues is None else ", ".join(worker.queues)
