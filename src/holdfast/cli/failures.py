"""How a command ends: exit codes, and one readable line for every error."""

import os
import sys
from enum import IntEnum
from typing import Any

import click

from ..errors import (
    BatchNotFound,
    CannotLoadApp,
    HoldfastError,
    InvalidInput,
    InvalidTask,
    JobNotFound,
    ScheduleNotFound,
    StoreError,
)
from .text import clean, clean_lines


class Exit(IntEnum):
    DONE = 0
    NOT_DONE = 1
    USAGE = 2
    DATABASE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


# The first kind that fits decides.
_CODES: tuple[tuple[type[HoldfastError], Exit], ...] = (
    (InvalidInput, Exit.USAGE),
    (InvalidTask, Exit.USAGE),
    (CannotLoadApp, Exit.USAGE),
    (JobNotFound, Exit.NOT_FOUND),
    (ScheduleNotFound, Exit.NOT_FOUND),
    (BatchNotFound, Exit.NOT_FOUND),
    (StoreError, Exit.DATABASE),
    (HoldfastError, Exit.NOT_DONE),
)


class Root(click.Group):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            explain(error)
            ctx.exit(exit_code(error))
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            _let_go_of_stdout()
            ctx.exit(Exit.PIPE_CLOSED)


def explain(error: HoldfastError) -> None:
    """One line on stderr. Only where the user's own module raised, its traceback too."""
    if isinstance(error, CannotLoadApp) and error.traceback:
        click.echo(clean_lines(error.traceback.rstrip()) + "\n", err=True)
    click.echo(f"Error: {clean(str(error))}", err=True)


def exit_code(error: HoldfastError) -> Exit:
    return next(code for kind, code in _CODES if isinstance(error, kind))


def _let_go_of_stdout() -> None:
    """Nobody reads any more. What is still in the buffer goes nowhere, without a complaint at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
