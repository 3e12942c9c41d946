"""`holdfast health`: one line and an exit code, for scripts and containers."""

from typing import TYPE_CHECKING

import click

from ..errors import Exit
from ..options import DatabaseOption, complete_queues, duration, example, share, takes_database
from ..output import document, json_option, say

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
    help="How long a job that could be taken may wait.",
)  # fmt: skip
@click.option(
    "--max-failure-rate", type=share, default="0.5", show_default=True, metavar="SHARE",
    help="Of the attempts that ended, how many may have failed; 1 for any.",
)  # fmt: skip
@click.option(
    "--min-attempts", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Below so many attempts the failure rate does not count.",
)  # fmt: skip
@click.option(
    "--window", type=duration, default="5m", show_default=True, metavar="DURATION",
    help="The time of which attempts count, in whole minutes.",
)  # fmt: skip
@click.option(
    "--min-workers", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="How many workers must live.",
)  # fmt: skip
@click.option("--here", is_flag=True, help="Only workers of this host count, such as those of this container.")
@click.option(
    "--queue", "-q", multiple=True, metavar="NAME", shell_complete=complete_queues, help="Only these queues."
)
@takes_database
@json_option
@click.pass_context
def health(
    ctx: click.Context,
    database: DatabaseOption,
    max_oldest_ready: float,
    max_failure_rate: float,
    min_attempts: int,
    window: float,
    min_workers: int,
    here: bool,
    queue: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say in one line whether it is healthy: 0 if it is, 1 if not, 3 if the database cannot be read.

    Jobs of paused queues do not count as waiting.
    """
    import socket

    from ...upkeep.doctor.health import Limits, assess

    limits = Limits(
        max_oldest_ready, max_failure_rate, min_attempts, min_workers, socket.gethostname() if here else None
    )
    found = assess(_metrics(database, window, list(queue) or None), limits)
    if as_json:
        document(found)
    else:
        say(found.summary)
    ctx.exit(Exit.DONE if found.healthy else Exit.NOT_DONE)


def _metrics(database: DatabaseOption, window: float, queues: list[str] | None) -> "HealthMetrics":
    from ...supervisor.offline_doctor import read_health_metrics
    from ...upkeep.doctor.health import since_minute

    place = database.place()
    if place is None:
        with database.open() as app:
            return app.store.file.health_metrics(since_minute(app.clock.now(), window), queues)
    url, prefix = place
    return read_health_metrics(url, prefix=prefix, window=window, queues=queues)
