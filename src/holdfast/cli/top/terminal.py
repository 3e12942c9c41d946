"""The terminal in full-screen mode: alternate screen, single keys, and its former mode restored at the end.

It is restored after an error, a signal and Ctrl-Z too. Signal handlers only set a flag and wake the main loop.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from ..output import Cell

if TYPE_CHECKING:
    from rich.console import Console


ESCAPE = "\x1b"
NAMES = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", " ": "space",
    "\x0c": "redraw", "\x15": "clear", "\x04": "end-of-input",
}  # fmt: skip
SEQUENCES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
    "[5~": "page-up", "[6~": "page-down", "[Z": "back-tab", "[3~": "delete",
}  # fmt: skip
_SEQUENCE = re.compile(r"\[[0-?]*[ -/]*[@-~]|O[ -~]")
_INCOMPLETE = re.compile(r"\[[0-?]*[ -/]*|O?")


class Keys:
    """Decodes input to keys: names such as "up", or the character itself. Keeps incomplete escape sequences."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""

    @property
    def is_waiting(self) -> bool:
        """Whether an Escape was read that is a key of its own or starts a sequence."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[str]:
        text, self._pending = self._pending + self._decode(data), ""
        found: list[str] = []
        while text:
            if not text.startswith(ESCAPE):
                found += _plain(text[0])
                text = text[1:]
            elif whole := _SEQUENCE.match(text, 1):
                found += [SEQUENCES[whole[0]]] if whole[0] in SEQUENCES else []
                text = text[whole.end() :]
            elif _INCOMPLETE.fullmatch(text, 1):
                self._pending = text
                break
            else:
                found.append("escape")
                text = text[1:]
        return found

    def flush(self) -> list[str]:
        """Return a pending Escape as a key, when no more input has come."""
        pending, self._pending = self._pending, ""
        return ["escape"] if pending else []


def _plain(character: str) -> list[str]:
    if character in NAMES:
        return [NAMES[character]]
    return [character] if character.isprintable() else []


Line = Sequence[Cell]
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # alternate screen, no cursor, no wrapping
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[2J"
CURSOR = {True: "\x1b[?25h", False: "\x1b[?25l"}
ESCAPE_SECONDS = 0.05  # without more input, after which Escape is a key of its own
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """`with Screen() as screen:`, and in it `screen.draw(lines)` and `screen.keys(timeout)`."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal that asked the program to end."""
        self.is_plain = "utf" not in (sys.stdout.encoding or "").lower()
        """Whether the encoding is limited to ASCII."""
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._keys = Keys()
        self._shown: list[Line] = []
        self._size = (0, 0)
        self._resized = self._suspended = self._continued = False
        self._console: Console | None = None

    # --- mode ---

    def __enter__(self) -> Self:
        self._woken, self._waker = os.pipe()
        for pipe in (self._woken, self._waker):
            os.set_blocking(pipe, False)
        self._handlers: dict[int, Any] = {}
        self._modes = termios.tcgetattr(self._input)
        try:
            for number in (*END_SIGNALS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
                self._handlers[number] = signal.signal(number, self._on_signal)
            self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._enter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        if hasattr(self, "_wakeup"):
            signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for pipe in (self._woken, self._waker):
            os.close(pipe)

    def _enter(self) -> None:
        tty.setcbreak(self._input, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._write(ENTER)
        self._shown = []

    def _leave(self) -> None:
        with suppress(OSError, termios.error):  # the terminal may be closed
            self._write(LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._input, termios.TCSAFLUSH, self._modes)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in END_SIGNALS:
            self.signal = number
        elif number == signal.SIGTSTP:
            self._suspended = True
        elif number == signal.SIGCONT:
            self._continued = True
        else:
            self._resized = True

    def _suspend(self) -> None:
        """Restore the terminal and stop the process, as any program does on Ctrl-Z."""
        self._suspended = False
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._continued = True

    # --- keys ---

    def wake(self) -> None:
        """Make `keys` return. Can be called from any thread."""
        with suppress(OSError):  # full: a wake-up is pending already; closed: the program ends
            os.write(self._waker, b"\0")

    def keys(self, timeout: float) -> list[str]:
        """Wait for keys and return them. Returns early, with none, for a signal or a wake-up."""
        deadline = monotonic() + timeout
        found: list[str] = []
        while not found:
            left = ESCAPE_SECONDS if self._keys.is_waiting else max(0.0, deadline - monotonic())
            ready, _, _ = select.select([self._input, self._woken], [], [], left)
            if self._input in ready:
                found = self._read()
            elif self._keys.is_waiting:
                found = self._keys.flush()
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                break
            if not ready and monotonic() >= deadline:
                break
        if self._suspended and self.signal is None:
            self._suspend()
        if self._continued:  # another program may have changed the mode of the terminal
            self._continued = False
            self._enter()
        return found

    def _read(self) -> list[str]:
        try:
            data = os.read(self._input, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            self.signal = self.signal or signal.SIGHUP
        return self._keys.feed(data)

    # --- drawing ---

    def size(self) -> tuple[int, int]:
        """Return the current number of columns and lines."""
        try:
            columns, height = os.get_terminal_size(self._output)
        except OSError:
            columns = height = 0
        return columns or 80, height or 24

    def draw(self, lines: Sequence[Line], cursor: tuple[int, int] | None = None) -> None:
        """Draw the lines. Writes only those that have changed, in one write."""
        size = self.size()
        parts = []
        if self._resized or size != self._size:
            self._resized, self._size, self._shown = False, size, []
            parts.append(CLEAR)
        columns, height = size
        new_lines = [list(line) for line in lines[:height]]
        for row in range(max(len(new_lines), len(self._shown))):
            new = new_lines[row] if row < len(new_lines) else []
            if row >= len(self._shown) or new != self._shown[row]:
                # Erase first: after a full line, the cursor is still on its last character.
                parts.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[K{self._ansi(new, columns)}")
        if parts or cursor is not None:
            position = "" if cursor is None else f"\x1b[{cursor[0] + 1};{cursor[1] + 1}H"
            self._write("".join(parts) + position + CURSOR[cursor is not None])
        self._shown = list(new_lines)

    def redraw(self) -> None:
        """Draw all lines the next time, since another program may have written to the screen."""
        self._resized = True

    def _ansi(self, line: Line, columns: int) -> str:
        from rich.text import Text

        console = self._console or self._make_console()
        text = Text.assemble(*((cell.text, cell.style) for cell in line), no_wrap=True)
        text.truncate(columns)
        console.width = columns
        with console.capture() as capture:
            console.print(text, end="", soft_wrap=True)
        return capture.get()

    def _make_console(self) -> Console:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False)
        return self._console

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]
