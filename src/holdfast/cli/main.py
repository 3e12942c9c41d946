"""`holdfast`: the root command. What a command needs is imported when that command is run."""

from typing import cast

import click

from .. import __version__
from ..lazy import lazy_exports
from .errors import Root
from .options import example

# By name, the module that has it.
COMMANDS = {
    "worker": "worker",
    "send": "send",
    "jobs": "jobs",
    "show": "show",
    "explain": "explain",
    "retry": "operate",
    "cancel": "operate",
    "run-now": "operate",
    "complete": "operate",
    "fail": "operate",
    "delete": "delete",
    "queues": "queues",
    "cron": "cron",
    "migrate": "migrate",
    "stats": "stats",
    "top": "top",
    "events": "events",
    "failures": "failures",
    "workers": "workers",
    "doctor": "doctor",
    "health": "health",
    "prune": "prune",
    "vacuum": "vacuum",
    "completion": "completion",
}
_command, _ = lazy_exports(
    str(__package__),
    {name.replace("-", "_"): f"commands.{module}" for name, module in COMMANDS.items()} | {"top": "top.top"},
)


class Commands(Root):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        return cast(click.Command, _command(cmd_name.replace("-", "_"))) if cmd_name in COMMANDS else None


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
