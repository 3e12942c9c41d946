"""A terminal of our own for a while: its other screen, its keys one by one, and as it was before when we leave.

However that is: an error, a signal, Ctrl-Z and back. Signals set a flag and wake the loop, and do nothing else.
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
_BEGUN = re.compile(r"\[[0-?]*[ -/]*|O?")


class Keys:
    """Keys are names such as "up", or the character itself. A sequence that comes in pieces is put together."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    @property
    def is_waiting(self) -> bool:
        """Whether an Escape has come, which may be a key or the beginning of one. `flush` takes it for a key."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[str]:
        text, self._held = self._held + self._decode(data), ""
        found: list[str] = []
        while text:
            if not text.startswith(ESCAPE):
                found += _plain(text[0])
                text = text[1:]
            elif whole := _SEQUENCE.match(text, 1):
                found += [SEQUENCES[whole[0]]] if whole[0] in SEQUENCES else []
                text = text[whole.end() :]
            elif _BEGUN.fullmatch(text, 1):
                self._held = text
                break
            else:
                found.append("escape")
                text = text[1:]
        return found

    def flush(self) -> list[str]:
        """Nothing more has come: it was the key."""
        held, self._held = self._held, ""
        return ["escape"] if held else []


def _plain(character: str) -> list[str]:
    if character in NAMES:
        return [NAMES[character]]
    return [character] if character.isprintable() else []


Line = Sequence[Cell]
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # the other screen, no cursor, no wrapping
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
CLEAR = "\x1b[2J"
CURSOR = {True: "\x1b[?25h", False: "\x1b[?25l"}
ESCAPE_SECONDS = 0.05  # after which an Escape was the key, and not the beginning of another
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """`with Screen() as screen:`, and in it `screen.draw(lines)` and `screen.keys(timeout)`."""

    def __init__(self) -> None:
        self.ended: int | None = None
        """The signal that asks to end."""
        self.is_plain = "utf" not in (sys.stdout.encoding or "").lower()
        """Whether it has no characters beyond ASCII."""
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._keys = Keys()
        self._shown: list[Line] = []
        self._size = (0, 0)
        self._resized = self._suspended = self._continued = False
        self._console: Console | None = None

    # --- coming and going ---

    def __enter__(self) -> Self:
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._before: dict[int, Any] = {}
        self._modes = termios.tcgetattr(self._input)
        try:
            for number in (*ENDINGS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
                self._before[number] = signal.signal(number, self._on_signal)
            self._wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        if hasattr(self, "_wakeup"):
            signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for end in (self._woken, self._waker):
            os.close(end)

    def _take(self) -> None:
        tty.setcbreak(self._input, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._write(ENTER)
        self._shown = []

    def _give_back(self) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._write(LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._input, termios.TCSAFLUSH, self._modes)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in ENDINGS:
            self.ended = number
        elif number == signal.SIGTSTP:
            self._suspended = True
        elif number == signal.SIGCONT:
            self._continued = True
        else:
            self._resized = True

    def _suspend(self) -> None:
        """As any program does on Ctrl-Z; it comes back where it was."""
        self._suspended = False
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._continued = True

    # --- keys ---

    def wake(self) -> None:
        """From any thread: let `keys` return."""
        with suppress(OSError):  # it is full, so somebody has; or closed, since we leave
            os.write(self._waker, b"\0")

    def keys(self, timeout: float) -> list[str]:
        """What was pressed. Returns at once for a key, a signal or a wake-up, else when the time is over."""
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
        if self._suspended and self.ended is None:
            self._suspend()
        if self._continued:  # whoever had the terminal meanwhile may have left it otherwise
            self._continued = False
            self._take()
        return found

    def _read(self) -> list[str]:
        try:
            data = os.read(self._input, 1024)
        except OSError:
            data = b""
        if not data:  # nobody is there any more
            self.ended = self.ended or signal.SIGHUP
        return self._keys.feed(data)

    # --- drawing ---

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        try:
            columns, height = os.get_terminal_size(self._output)
        except OSError:
            columns = height = 0
        return columns or 80, height or 24

    def draw(self, lines: Sequence[Line], cursor: tuple[int, int] | None = None) -> None:
        """From the top. Only lines that differ from what is shown are written, all at once."""
        size = self.size()
        parts = []
        if self._resized or size != self._size:
            self._resized, self._size, self._shown = False, size, []
            parts.append(CLEAR)
        columns, height = size
        wanted = [list(line) for line in lines[:height]]
        for row in range(max(len(wanted), len(self._shown))):
            new = wanted[row] if row < len(wanted) else []
            if row >= len(self._shown) or new != self._shown[row]:
                # Erased before it is written: at the end of a full line, the cursor is still on its last character.
                parts.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[K{self._ansi(new, columns)}")
        if parts or cursor is not None:
            place = "" if cursor is None else f"\x1b[{cursor[0] + 1};{cursor[1] + 1}H"
            self._write("".join(parts) + place + CURSOR[cursor is not None])
        self._shown = list(wanted)

    def redraw(self) -> None:
        """All of it, the next time: something else has written on the screen."""
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
