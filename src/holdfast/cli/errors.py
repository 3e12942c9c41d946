"""How a command ends: exit codes, and one readable line for every error."""

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
from .output import clean, clean_lines
from .streams import Watched, let_go, open_missing, tell


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

    def main(self, *args: Any, **options: Any) -> Any:
        open_missing()
        with Watched(sys.stdout) as stdout:
            try:
                return super().main(*args, **options)
            except OSError as error:
                if error is not stdout.error:
                    raise
                tell(f"Error: standard output cannot be written: {error.strerror}")
                let_go(sys.stdout)
                sys.exit(Exit.OUTPUT)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            explain(error)
            ctx.exit(exit_code(error))
        except (KeyboardInterrupt, click.Abort):
            tell("Interrupted")
            ctx.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            let_go(sys.stdout)
            ctx.exit(Exit.PIPE_CLOSED)


def explain(error: HoldfastError) -> None:
    """One line on stderr. Only where the user's own module raised, its traceback too."""
    if isinstance(error, CannotLoadApp) and error.traceback:
        tell(clean_lines(error.traceback.rstrip()) + "\n")
    tell(f"Error: {clean(str(error))}")


def exit_code(error: HoldfastError) -> Exit:
    return next(code for kind, code in _CODES if isinstance(error, kind))
