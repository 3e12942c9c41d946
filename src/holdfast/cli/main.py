"""`holdfast`: the root command with its exit codes and errors, and `holdfast completion`.

The module of a command is imported only when the command runs.
"""

import sys
from enum import IntEnum
from typing import Any, cast

import click

from .. import __version__
from ..errors import (
    BatchNotFound,
    CannotLoadApp,
    HoldfastError,
    InvalidInput,
    InvalidTask,
    JobNotFound,
    OperationNotFound,
    ScheduleNotFound,
    StoreError,
    WorkerNotFound,
)
from ..lazy import lazy_imports
from ..validate import suggest
from .options import example
from .output import WatchedOutput, clean, clean_lines, discard, open_missing, write_stderr

SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_HOLDFAST_COMPLETE"
# The module of each command, in the order of `holdfast --help`.
COMMANDS = {
    "worker": "commands.worker",
    "send": "commands.send",
    "jobs": "commands.jobs",
    "inbox": "commands.jobs",
    "show": "commands.show",
    "explain": "commands.show",
    "retry": "commands.job_actions",
    "cancel": "commands.job_actions",
    "run-now": "commands.job_actions",
    "complete": "commands.job_actions",
    "fail": "commands.job_actions",
    "delete": "commands.job_actions",
    "operations": "commands.operations",
    "operation": "commands.operations",
    "queues": "commands.queues",
    "batches": "commands.batches",
    "batch": "commands.batches",
    "cron": "commands.cron",
    "migrate": "commands.database",
    "move": "commands.database",
    "stats": "commands.stats",
    "top": "top.top",
    "web": "commands.web",
    "web-user": "commands.web",
    "events": "commands.events",
    "failures": "commands.stats",
    "workers": "commands.worker",
    "doctor": "commands.doctor",
    "health": "commands.doctor",
    "prune": "commands.prune",
    "vacuum": "commands.database",
    "completion": "main",
}
_load, _ = lazy_imports(str(__package__), {name.replace("-", "_"): module for name, module in COMMANDS.items()})


class Exit(IntEnum):
    DONE = 0
    NOT_DONE = 1
    USAGE = 2
    DATABASE = 3
    OUTPUT = 3
    NOT_FOUND = 4
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


# The first class that matches decides.
_CODES: tuple[tuple[type[HoldfastError], Exit], ...] = (
    (InvalidInput, Exit.USAGE),
    (InvalidTask, Exit.USAGE),
    (CannotLoadApp, Exit.USAGE),
    (JobNotFound, Exit.NOT_FOUND),
    (ScheduleNotFound, Exit.NOT_FOUND),
    (BatchNotFound, Exit.NOT_FOUND),
    (WorkerNotFound, Exit.NOT_FOUND),
    (OperationNotFound, Exit.NOT_FOUND),
    (StoreError, Exit.DATABASE),
    (HoldfastError, Exit.NOT_DONE),
)


class RootGroup(click.Group):
    """All commands. Each is imported when it is used; what it raises becomes a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(str(suggest(name, COMMANDS, "command")))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        return cast(click.Command, _load(cmd_name.replace("-", "_"))) if cmd_name in COMMANDS else None

    def main(self, *args: Any, **options: Any) -> Any:
        open_missing()
        with WatchedOutput(sys.stdout) as stdout:
            try:
                return super().main(*args, **options)
            except OSError as error:
                if error is not stdout.error:
                    raise
                write_stderr(f"Error: cannot write to standard output: {error.strerror}")
                discard(sys.stdout)
                sys.exit(Exit.OUTPUT)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            report(error)
            ctx.exit(exit_code(error))
        except (KeyboardInterrupt, click.Abort):
            write_stderr("Interrupted")
            ctx.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            discard(sys.stdout)
            ctx.exit(Exit.PIPE_CLOSED)


def report(error: HoldfastError) -> None:
    """Print the error as one line on stderr; before it the traceback, if the user's own module raised it."""
    if isinstance(error, CannotLoadApp) and error.traceback:
        write_stderr(clean_lines(error.traceback.rstrip()) + "\n")
    write_stderr(f"Error: {clean(str(error))}")


def exit_code(error: HoldfastError) -> Exit:
    return next(code for kind, code in _CODES if isinstance(error, kind))


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("holdfast jobs --db app.db --status failed"),
)
@click.version_option(__version__, "-V", "--version", prog_name="holdfast")
def main() -> None:
    """Durable jobs and messages in the database you already have.

    Most commands need a database: pass --db or --app, or set HOLDFAST_URL.
    """


@click.command(
    epilog=example(
        """eval "$(holdfast completion bash)"     # in ~/.bashrc""",
        """eval "$(holdfast completion zsh)"      # in ~/.zshrc""",
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for tab completion in bash, zsh or fish.

    Names of queues, tasks and schedules and job ids are read from the database, if --db precedes them on the command
    line or HOLDFAST_URL is set.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "holdfast", COMPLETION_VARIABLE).source())
