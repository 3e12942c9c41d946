"""How a process kills itself: at a step that its code names, at an SQL statement, or in a write to a file."""

import ctypes
import os
import signal
import sqlite3
import threading
from typing import Any, Literal

from msgspec import Struct


class Trap(Struct, frozen=True):
    kind: Literal["step", "statement", "write"]
    number: int = 0  # which statement or write, counted from when the trap is set
    step: str = ""
    attempts: int = 1  # so many attempts of a job set it


class _Armed:
    """The one trap of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step, self._left = "", 0

    def set(self, trap: Trap) -> None:
        match trap.kind:
            case "step":
                self._step = trap.step
            case "statement":
                self._left = trap.number
            case "write":
                ctypes.CDLL(None).kill_in_write(trap.number)  # of kill_in_write_shim.c

    def reach(self, step: str) -> None:
        if step == self._step:
            die()

    def count(self) -> None:
        if self._left:
            with self._lock:
                self._left -= 1
                if not self._left:
                    die()


_armed = _Armed()
set_trap, reach = _armed.set, _armed.reach


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def watch_statements() -> None:
    """Of all connections that are opened from now on. It is called before each statement is run."""
    connect = sqlite3.connect

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection, before = connect(*args, **kwargs), ""

        def count(statement: str) -> None:
            """What triggers run comes under the name of the statement that fired them, and only that counts.

            Nor does a PRAGMA, which changes the connection and no data.
            """
            nonlocal before
            if statement != before and not statement.startswith("PRAGMA"):
                _armed.count()
            before = statement

        connection.set_trace_callback(count)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]
