"""Standard input, output and error where they are closed, or cannot be written: no command needs to know."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import click

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their numbers


def open_missing() -> None:
    """What was closed when the process began, as cron and daemons may do it, is nowhere from now on.

    Otherwise the next file to be opened would have its number, and get what some library prints.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)  # the lowest that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace"))  # noqa: PTH123, SIM115


class Watched:
    """Standard output, and the error that it gave: so it is told from those of other files."""

    def __init__(self, stream: Any, whole: Watched | None = None) -> None:
        self._stream, self._whole = stream, whole or self
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:  # where click writes if the encoding is ASCII
        return Watched(self._stream.buffer, self._whole)

    def write(self, data: Any) -> Any:
        with self._watching():
            return self._stream.write(data)

    def flush(self) -> None:
        with self._watching():
            self._stream.flush()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._whole.error = error
            raise

    def __enter__(self) -> Watched:
        sys.stdout = cast(TextIO, self)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stdout is cast(TextIO, self):
            sys.stdout = self._stream


def tell(text: str) -> None:
    """A line on stderr. If that cannot be written either, nobody is left to be told."""
    try:
        click.echo(text, err=True)
    except OSError:
        let_go(sys.stderr)


def let_go(stream: TextIO) -> None:
    """Nobody reads any more. What is still in the buffer goes nowhere, without a complaint at the end."""
    with suppress(OSError, ValueError):  # it may be no file
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
