"""Format names, numbers and times for messages. Control characters in stored text are escaped."""

from __future__ import annotations

from collections.abc import Sequence

from .clock import SECOND, as_datetime
from .failure import shorten

LONGEST_NAME = 80
LONGEST_DETAIL = 200
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SIZES = ("KiB", "MiB", "GiB", "TiB")


def clean(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def short(name: str) -> str:
    return shorten(clean(name), LONGEST_NAME)


def word(name: str) -> str:
    """Quote a name as an argument of a shell command."""
    from shlex import quote

    return quote(clean(name))


def numbered(id: int, task: str | None) -> str:
    return f"message {id}" if task is None else f"job {id} ({short(task)})"


def subject(id: int, task: str | None) -> str:
    """As `numbered`, at the beginning of a sentence."""
    return f"Message {id}" if task is None else f"Job {id} ({short(task)})"


def error(code: str | None, detail: str | None) -> str:
    text = shorten(clean(detail or ""), LONGEST_DETAIL).rstrip(". ")
    return ": ".join(part for part in (clean(code or ""), text) if part) or "no error code"


def span(seconds: float) -> str:
    """Format a duration: `3ms`, `0.25s`, `12s`, `3m 20s`, `2h 5m`, `4d 1h`. Two digits or two units are enough."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.2g}ms" if seconds >= 0.00005 else "<0.1ms"
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    left, parts = int(seconds), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0"))


def whole(microseconds: int) -> str:
    """Format a duration in whole seconds, at least 1."""
    return span(max(1, round(microseconds / SECOND)))


def moment(microseconds: int) -> str:
    return f"{as_datetime(microseconds):%Y-%m-%d %H:%M:%S} UTC"


def ahead(microseconds: int, now: int) -> str:
    """Format a time in the future, and how soon it is."""
    return f"{moment(microseconds)}, in {whole(microseconds - now)}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(parts: Sequence[str], mark: str = ",") -> str:
    """Join as `a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{f'{mark} '.join(parts[:-1])}{mark if mark != ',' else ''} and {parts[-1]}"


def size(count: int) -> str:
    """Format a size in bytes: `512 bytes`, `4.2 MiB`."""
    if count < 1000:
        return plural(count, "byte")
    value, unit = float(count), -1
    while value >= 1000 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{0 if value >= 100 else 1}f} {_SIZES[unit]}"
