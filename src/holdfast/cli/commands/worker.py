"""`holdfast worker`: the options of the process that runs tasks."""

from typing import TYPE_CHECKING

import click

from ...errors import InvalidInput
from ..options import complete_queues, duration, example, size

if TYPE_CHECKING:
    from ...supervisor.worker_command import ServeMetrics


@click.command(
    epilog=example(
        "holdfast worker myproject.jobs:app",
        "holdfast worker tasks.py --queues mail=4,default --concurrency 20",
        "holdfast worker tasks:app --processes 4 --max-memory 512M --log json",
        "holdfast worker tasks:app --until-idle        # for a cron job, or a test",
        "holdfast worker tasks:app --metrics-port 9464",
    )
)
@click.argument("app", metavar="APP")
@click.option(
    "--queues",
    "-q",
    metavar="NAMES",
    shell_complete=complete_queues,
    help="Only these, such as mail=4,default: of mail at most 4 at once.  [default: all]",
)
@click.option(
    "--concurrency", "-c", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="How many jobs each process runs at once.",
)  # fmt: skip
@click.option(
    "--processes", "-p", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="How many processes run jobs.",
)  # fmt: skip
@click.option("--pool", type=click.IntRange(min=1), metavar="N", help='Processes for tasks with pool="process".')
@click.option(
    "--grace", type=duration, default="30s", show_default=True, metavar="DURATION",
    help="How long running jobs may go on after a signal to stop.",
)  # fmt: skip
@click.option(
    "--lease", type=duration, default="60s", show_default=True, metavar="DURATION",
    help="How long a job is held for a worker that is not heard of.",
)  # fmt: skip
@click.option("--until-idle", is_flag=True, help="End when there is nothing left to do.")
@click.option("--reload", is_flag=True, help="Start again when a source file changes. For development.")
@click.option(
    "--log", type=click.Choice(["text", "json", "quiet"]), default="text", show_default=True,
    help="What is written to standard error.",
)  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(min=1), metavar="N", help="Replace a process after so many jobs.")
@click.option(
    "--max-memory", type=size, metavar="SIZE", help="Replace a process that has grown to this, such as 512M."
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Serve metrics for Prometheus here, from the first process.",
)  # fmt: skip
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Where the metrics can be reached; 0.0.0.0 for anyone who can reach this machine.",
)  # fmt: skip
@click.pass_context
def worker(
    ctx: click.Context,
    app: str,
    queues: str | None,
    concurrency: int,
    processes: int,
    pool: int | None,
    grace: float,
    lease: float,
    until_idle: bool,
    reload: bool,
    log: str,
    max_jobs: int | None,
    max_memory: int | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run the tasks of APP: module:app, a module with one app in it, or a file such as ./tasks.py.

    The first signal to stop (Ctrl-C) lets running jobs end, the second does not wait for them.
    """
    from ...supervisor.worker_command import WorkerSettings, run_worker

    settings = WorkerSettings(
        queues=queues,
        concurrency=concurrency,
        processes=processes,
        pool=pool,
        grace=grace,
        lease=lease,
        until_idle=until_idle,
        reload=reload,
        log=log,
        max_jobs=max_jobs,
        max_memory=max_memory,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )
    ctx.exit(run_worker(app, settings, None if metrics_port is None else _metrics()))


def _metrics() -> "ServeMetrics":
    try:
        from ...contrib.prometheus import serve
    except ModuleNotFoundError as error:
        raise InvalidInput(f"--metrics-port: {error}") from None
    return serve
