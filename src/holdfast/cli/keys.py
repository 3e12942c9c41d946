"""What a terminal sends when a key is pressed, as the name of the key. Pure."""

import codecs
import re

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
