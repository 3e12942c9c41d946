"""A terminal emulator for tests: read the screen of a program, and press keys."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata
from typing import Any

import pytest

from support.child_processes import command
from support.running_worker import PATIENCE_SECONDS

LOOK_SECONDS = 0.02

KEYS = {
    "clear": "\x15",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "backspace": "\x7f",
}
_CONTROL = re.compile(r"\x1b\[(?P<private>\??)(?P<values>[\d;]*)(?P<final>[A-Za-z])")


class Display:
    """What is seen of what was written: as much of a VT100 as is used here. Anything else fails the test."""

    def __init__(self, columns: int, rows: int) -> None:
        self.flags: dict[str, bool] = {}
        self.normal = ""  # what was written to the other screen
        self.row = self.column = 0
        self._held = ""
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._clear()

    def _clear(self) -> None:
        self.cells = [[" "] * self.columns for _ in range(self.rows)]

    @property
    def is_alternate(self) -> bool:
        return self.flags.get("1049", False)

    @property
    def shows_cursor(self) -> bool:
        return self.flags.get("25", True)

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.cells]

    def feed(self, text: str) -> None:
        text, self._held = self._held + text, ""
        while text:
            if text[0] != "\x1b":
                self._put(text[0])
                text = text[1:]
            elif found := _CONTROL.match(text):
                self._obey(found["private"], found["values"], found["final"])
                text = text[found.end() :]
            elif re.fullmatch(r"\x1b(\[\??[\d;]*)?", text):
                self._held = text
                return
            else:
                pytest.fail(f"no terminal should be sent {text[:20]!r}")

    def _put(self, character: str) -> None:
        if not self.is_alternate:
            self.normal += character
            return
        assert character.isprintable(), f"{character!r} acts on the terminal"
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if self.row < self.rows and self.column + width <= self.columns:
            self.cells[self.row][self.column : self.column + width] = [character] + [""] * (width - 1)
        self.column += width

    def _obey(self, private: str, values: str, final: str) -> None:
        if private:
            assert final in "hl"
            self.flags[values] = final == "h"
            if values == "1049" and final == "h":
                self._clear()
        elif final == "H":
            row, column = (int(value) for value in values.split(";"))
            self.row, self.column = row - 1, column - 1
        elif final == "K":
            if self.row < self.rows:  # it may have been sent before the window became smaller
                column = min(self.column, self.columns - 1)  # after a full line, it is still on its last character
                self.cells[self.row][column:] = [" "] * (self.columns - column)
        elif final == "J":
            self._clear()
        else:
            assert final == "m", f"no terminal should be sent {final}"


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def start_on_terminal(words: list[str], terminal: int, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
    )


class Window:
    """A command on a terminal. It is killed at the end, if it has not ended by then."""

    def __init__(
        self, *args: Any, columns: int = 80, rows: int = 24, shell: str | None = None, **environment: str
    ) -> None:
        """shell: a script that runs the command as "$@"."""
        self.ours, theirs = pty.openpty()
        self.display = Display(columns, rows)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end within a character
        set_size(theirs, columns, rows)
        self.modes = termios.tcgetattr(theirs)
        words = command(*args) if shell is None else ["bash", "-c", shell, "bash", *command(*args)]
        self.process = start_on_terminal(words, theirs, environment)
        self._theirs = theirs  # kept open: a terminal outlives its programs

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE_SECONDS)
        os.close(self._theirs)
        os.close(self.ours)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal; the kernel sends SIGWINCH."""
        self.read()
        self.display.resize(columns, rows)
        set_size(self.ours, columns, rows)

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self.ours, KEYS.get(key, key).encode())

    def read(self, wait: float = 0) -> None:
        while select.select([self.ours], [], [], wait)[0]:
            self.display.feed(self._decode(os.read(self.ours, 65536)))
            wait = 0

    def until(self, text: str, *, gone: bool = False) -> list[str]:
        """Wait until the screen shows the text, or with gone=True no longer shows it, and return its lines."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (text in "\n".join(self.display.lines)) == gone:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.read()
                seen = "\n".join(self.display.lines) + self.display.normal
                pytest.fail(f"{'still' if gone else 'no'} {text!r}, {self.process.poll()}:\n{seen}")
            self.read(LOOK_SECONDS)
        return self.display.lines

    def ended(self) -> int:
        """Its exit code, when it has ended. All that it wrote was read."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                pytest.fail("it has not ended:\n" + "\n".join(self.display.lines))
            self.read(LOOK_SECONDS)
        self.read(LOOK_SECONDS)
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """The screen, the cursor and the modes of the terminal."""
        shown = self.display.shows_cursor and not self.display.is_alternate and self.display.flags.get("7", True)
        return shown and termios.tcgetattr(self._theirs) == self.modes
