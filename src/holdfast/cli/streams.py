"""Standard input, output and error that are closed or cannot be written, handled once for all commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import click

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their file descriptors


def open_missing() -> None:
    """Open /dev/null for each standard stream that was closed at startup, as under cron or a daemon.

    Otherwise the next file to be opened would get the free descriptor, and with it whatever a library prints.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)  # the lowest free descriptor
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace"))  # noqa: PTH123, SIM115


class WatchedOutput:
    """Standard output that remembers its write error, to distinguish it from errors of other files."""

    def __init__(self, stream: Any, owner: WatchedOutput | None = None) -> None:
        self._stream, self._owner = stream, owner or self
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:  # click writes here if the encoding is ASCII
        return WatchedOutput(self._stream.buffer, self._owner)

    def write(self, data: Any) -> Any:
        with self._record_error():
            return self._stream.write(data)

    def flush(self) -> None:
        with self._record_error():
            self._stream.flush()

    @contextmanager
    def _record_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._owner.error = error
            raise

    def __enter__(self) -> WatchedOutput:
        sys.stdout = cast(TextIO, self)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stdout is cast(TextIO, self):
            sys.stdout = self._stream


def write_stderr(text: str) -> None:
    """Write a line to stderr, and ignore that stderr cannot be written."""
    try:
        click.echo(text, err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that flushing its buffer at exit raises no error."""
    with suppress(OSError, ValueError):  # the stream may have no file descriptor
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
