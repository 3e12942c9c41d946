"""Exit codes, and the root command that reports every error as one line on stderr."""

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
    OperationNotFound,
    ScheduleNotFound,
    StoreError,
    WorkerNotFound,
)
from .output import WatchedOutput, clean, clean_lines, discard, open_missing, write_stderr


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
    """The group of all commands. It turns exceptions into messages and exit codes."""

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
