"""`holdfast worker`: run tasks. `holdfast workers`: list the workers, or ask one to stop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...errors import InvalidInput
from ..bulk import print_result
from ..options import (
    AuditOptions,
    DatabaseOption,
    change_options,
    complete_queues,
    complete_workers,
    duration,
    example,
    read_options,
    size,
    web_options,
)
from ..output import Cell, Column, age, document, note, plural, table

if TYPE_CHECKING:
    from ...model.stats import WorkerHealth
    from ...supervisor.worker_command import Serve, WorkerSettings


@click.command(
    epilog=example(
        "holdfast worker myproject.jobs:app",
        "holdfast worker tasks.py --queues mail=4,default --concurrency 20",
        "holdfast worker tasks:app --processes 4 --max-memory 512M --log json",
        "holdfast worker tasks:app --until-idle        # for a cron job, or a test",
        "holdfast worker tasks:app --metrics-port 9464 --web-port 8520",
    )
)
@click.argument("app", metavar="APP")
@click.option(
    "--queues",
    "-q",
    metavar="NAMES",
    shell_complete=complete_queues,
    help="Only these queues; mail=4,default runs at most 4 jobs of mail at once.  [default: all]",
)
@click.option(
    "--concurrency", "-c", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Jobs that each process runs at once.",
)  # fmt: skip
@click.option(
    "--processes", "-p", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Number of worker processes.",
)  # fmt: skip
@click.option(
    "--pool", type=click.IntRange(min=1), metavar="N", help='Child processes for tasks with pool="process".'
)
@click.option(
    "--grace", type=duration, default="30s", show_default=True, metavar="DURATION",
    help="Time that running jobs get to finish after SIGTERM or Ctrl-C.",
)  # fmt: skip
@click.option(
    "--lease", type=duration, default="60s", show_default=True, metavar="DURATION",
    help="Time after which a job of a silent worker is given to another.",
)  # fmt: skip
@click.option("--until-idle", is_flag=True, help="Exit when no job is left to run.")
@click.option("--reload", is_flag=True, help="Restart when a source file changes, for development.")
@click.option(
    "--log", type=click.Choice(["text", "json", "quiet"]), default="text", show_default=True,
    help="Format of the log on standard error; quiet logs only warnings.",
)  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(min=1), metavar="N", help="Replace a process after N jobs.")
@click.option(
    "--max-memory", type=size, metavar="SIZE", help="Replace a process that uses more memory, such as 512M."
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve Prometheus metrics on this port, from the first process; 0 picks a free port.",
)  # fmt: skip
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Address to serve metrics on; 0.0.0.0 for all interfaces.",
)  # fmt: skip
@click.option(
    "--web-port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve the web page on this port, from the first process; 0 picks a free port.",
)  # fmt: skip
@web_options("web-")
@click.pass_context
def worker(ctx: click.Context, /, app: str, **options: Any) -> None:
    """Run the tasks of an app.

    APP is module:app, a module with one app in it, or a file such as ./tasks.py. After the first SIGTERM or Ctrl-C,
    running jobs may finish. The second one exits at once, and unfinished jobs run again.
    """
    from ...supervisor.worker_command import WorkerSettings, run_worker

    settings = WorkerSettings(**options)
    servers: dict[str, Serve] = {}
    if settings.metrics_port is not None:
        servers["metrics"] = _metrics()
    if settings.web_port is not None:
        servers["the web page"] = _web(settings)
    ctx.exit(run_worker(app, settings, servers))


def _metrics() -> Serve:
    try:
        from ...contrib.prometheus import serve
    except ModuleNotFoundError as error:
        raise InvalidInput(f"--metrics-port: {error}") from None
    return lambda app, settings: serve(app, settings.metrics_port or 0, settings.metrics_host)


def _web(settings: WorkerSettings) -> Serve:
    from .web import check_options, require_extra, serve_from_worker

    require_extra()
    check_options(**settings.web_options)
    return serve_from_worker


COLUMNS = (
    Column("WORKER", least=8), Column("STATE"), Column("RUNNING", right=True),
    Column("HEARTBEAT", right=True, spare=1), Column("PID", right=True, spare=2),
    Column("HOST", least=8, spare=3), Column("UP", right=True, spare=5), Column("QUEUES", least=8, spare=4),
)  # fmt: skip
STATE_STYLES = {"alive": "green", "suspended": "yellow", "lost": "red", "stopped": "dim"}


@click.group(
    invoke_without_command=True,
    epilog=example(
        "holdfast workers --db app.db",
        "holdfast workers --all --json --db app.db",
        "holdfast workers stop 5f3a91c07be2d846 --reason 'new kernel' --db app.db",
    ),
)
@click.option("--all", "-a", "with_ended", is_flag=True, help="Also list workers that have ended.")
@read_options
@click.pass_context
def workers(ctx: click.Context, database: DatabaseOption, with_ended: bool, as_json: bool) -> None:
    """List the workers with their running jobs, or stop one.

    A worker is alive as long as its process holds its lock, even if the last heartbeat is old. It is suspended while
    a signal has stopped its process (Ctrl-Z), lost if its process died, and stopped if it shut down. RUNNING 4/4 +196
    means that all 4 slots are taken and 196 jobs are prefetched.
    """
    if ctx.invoked_subcommand is not None:
        return
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


@workers.command("stop", epilog=example("holdfast workers stop 5f3a91c07be2d846 --db app.db"))
@click.argument("id", shell_complete=complete_workers)
@change_options
def stop_worker(database: DatabaseOption, id: str, audit: AuditOptions, as_json: bool) -> None:
    """Ask a worker to stop. It claims no more jobs, and ends when its running jobs have finished.

    The worker sees the request within about a second. One process of several (--processes) is started again by its
    parent: ask one after the other to restart them all.
    """
    with database.open() as app:
        asked = app.stop_worker(id, **audit)
    sentence = f"Asked worker {id} to stop." if asked else f"Worker {id} has ended, or was asked before."
    print_result({"worker": id, "asked": asked}, sentence, asked, as_json)


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
