"""`holdfast`: the root command."""

import click

from .. import __version__
from .completion import completion
from .cron import cron
from .deleting import delete
from .doctor import doctor
from .events import events
from .explain import explain
from .failing import failures
from .failures import Root
from .health import health
from .jobs import jobs
from .migrate import migrate
from .operate import cancel, retry, run_now
from .options import example
from .prune import prune
from .queues import queues
from .send import send
from .settle import complete, fail
from .show import show
from .stats import stats
from .top import top
from .vacuum import vacuum
from .worker import worker
from .workers import workers


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("holdfast jobs --db app.db --status failed"),
)
@click.version_option(__version__, "-V", "--version", prog_name="holdfast")
def main() -> None:
    """Durable jobs and messages in the database you already have.

    Every command but worker and completion takes --db, or --app, or else the environment variable HOLDFAST_URL.
    """


COMMANDS = (
    worker, send, jobs, show, explain, retry, cancel, run_now, complete, fail, delete, queues, cron, migrate,
    stats, top, events, failures, workers, doctor, health, prune, vacuum, completion,
)  # fmt: skip

for command in COMMANDS:
    main.add_command(command)
