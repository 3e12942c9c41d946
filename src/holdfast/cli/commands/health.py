"""`holdfast health`: a health check for scripts and containers."""

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit
from ..options import DatabaseOption, complete_queues, duration, example, read_options, share
from ..output import document, say

if TYPE_CHECKING:
    from ...model.diagnosis import HealthMetrics


@click.command(
    epilog=example(
        "holdfast health --db app.db",
        "holdfast health --db app.db -q mail --max-oldest-ready 60s --min-workers 2",
        "HEALTHCHECK CMD holdfast health --db /data/app.db --here",
    )
)
@click.option(
    "--max-oldest-ready", type=duration, default="5m", show_default=True, metavar="DURATION",
    help="Unhealthy if a job has been ready for longer.",
)  # fmt: skip
@click.option(
    "--max-failure-rate", type=share, default="0.5", show_default=True, metavar="SHARE",
    help="Unhealthy if a larger share of attempts failed, from 0 to 1; 1 disables the check.",
)  # fmt: skip
@click.option(
    "--min-attempts", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Ignore the failure rate below N attempts.",
)  # fmt: skip
@click.option(
    "--window", type=duration, default="5m", show_default=True, metavar="DURATION",
    help="The period for the failure rate, in whole minutes.",
)  # fmt: skip
@click.option(
    "--min-workers", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="Unhealthy if fewer workers are alive. Suspended workers do not count.",
)  # fmt: skip
@click.option("--here", is_flag=True, help="Count only workers on this host, such as in this container.")
@click.option(
    "--queue",
    "-q",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_queues,
    help="Check only this queue. Can be repeated.",
)
@read_options
@click.pass_context
def health(
    ctx: click.Context,
    /,
    database: DatabaseOption,
    window: float,
    here: bool,
    queue: tuple[str, ...],
    as_json: bool,
    **limits: Any,
) -> None:
    """Check whether the queues are healthy, and print one line.

    Exits with 0 if healthy, 1 if not, 3 if the database cannot be read. It is fast and writes nothing. Jobs of paused
    queues are ignored.
    """
    import socket

    from ...upkeep.doctor.health import Limits, assess

    metrics = _metrics(database, window, list(queue) or None)
    result = assess(metrics, Limits(**limits, host=socket.gethostname() if here else None))
    if as_json:
        document(result)
    else:
        say(result.summary)
    ctx.exit(Exit.DONE if result.healthy else Exit.NOT_DONE)


def _metrics(database: DatabaseOption, window: float, queues: list[str] | None) -> "HealthMetrics":
    from ...supervisor.offline_doctor import read_health_metrics
    from ...upkeep.doctor.health import since_minute

    location = database.location()
    if location is None:
        with database.open() as app:
            return app.store.file.health_metrics(since_minute(app.clock.now(), window), queues)
    url, prefix = location
    return read_health_metrics(url, prefix=prefix, window=window, queues=queues)
