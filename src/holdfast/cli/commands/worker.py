"""`holdfast worker`: run tasks."""

from typing import TYPE_CHECKING, Any

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
@click.pass_context
def worker(ctx: click.Context, /, app: str, **options: Any) -> None:
    """Run the tasks of an app.

    APP is module:app, a module with one app in it, or a file such as ./tasks.py. After the first SIGTERM or Ctrl-C,
    running jobs may finish. The second one exits at once, and unfinished jobs run again.
    """
    from ...supervisor.worker_command import WorkerSettings, run_worker

    serve = None if options["metrics_port"] is None else _metrics()
    ctx.exit(run_worker(app, WorkerSettings(**options), serve))


def _metrics() -> "ServeMetrics":
    try:
        from ...contrib.prometheus import serve
    except ModuleNotFoundError as error:
        raise InvalidInput(f"--metrics-port: {error}") from None
    return serve
