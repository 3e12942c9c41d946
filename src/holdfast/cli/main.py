"""`holdfast`: the root command. What a command needs is imported when that command is run."""

from importlib import import_module
from typing import cast

import click

from .. import __version__
from .failures import Root
from .options import example

# By name, the module and what it is called there.
COMMANDS = {
    "worker": "worker:worker",
    "send": "send:send",
    "jobs": "jobs:jobs",
    "show": "show:show",
    "explain": "explain:explain",
    "retry": "operate:retry",
    "cancel": "operate:cancel",
    "run-now": "operate:run_now",
    "complete": "settle:complete",
    "fail": "settle:fail",
    "delete": "deleting:delete",
    "queues": "queues:queues",
    "cron": "cron:cron",
    "migrate": "migrate:migrate",
    "stats": "stats:stats",
    "top": "top:top",
    "events": "events:events",
    "failures": "failing:failures",
    "workers": "workers:workers",
    "doctor": "doctor:doctor",
    "health": "health:health",
    "prune": "prune:prune",
    "vacuum": "vacuum:vacuum",
    "completion": "completion:completion",
}


class Commands(Root):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        return cast(click.Command, getattr(import_module(f"{__package__}.{module}"), name))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("holdfast jobs --db app.db --status failed"),
)
@click.version_option(__version__, "-V", "--version", prog_name="holdfast")
def main() -> None:
    """Durable jobs and messages in the database you already have.

    Every command but worker and completion takes --db, or --app, or else the environment variable HOLDFAST_URL.
    """
