"""Format names, numbers and times as text for people, and values as plain data for JSON.

Control characters in stored text are escaped. Everything that prints or serves JSON uses `to_data`: times become ISO
8601 text in UTC, durations become seconds. A Struct or dataclass becomes an object with its fields; SHAPES lists the
classes that are written differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from msgspec import Struct

from .clock import SECOND, as_datetime
from .failure import shorten

LONGEST_NAME = 80
LONGEST_DETAIL = 200
LONGEST_SPAN = 10**12  # seconds, of a time that is infinite
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
    left, parts = int(min(seconds, LONGEST_SPAN)), list[str]()
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


class Shape(NamedTuple):
    """How objects of a class are written, where that is more or less than their fields."""

    fields: tuple[str, ...] = ()
    """The attributes to write. Empty: all fields of the Struct or dataclass."""
    extra: tuple[str, ...] = ()
    """Properties to write after the fields."""
    rename: Mapping[str, str] = {}


# By class name, which is unique in the package: this module lies below the modules that define the classes.
# Payloads and results are private: the shapes of Job and Schedule leave them out.
SHAPES = {
    "Job": Shape(
        ("id", "task", "queue", "status", "priority", "attempt", "max_attempts", "created_at", "run_at", "started_at",
         "finished_at", "timeout", "expires_at", "key", "tags", "worker", "error_code", "error_detail", "progress",
         "progress_text"),
    ),
    "Schedule": Shape(
        ("name", "cron", "tz", "task", "queue", "paused", "next_at", "last_at", "last_job_id", "missed", "source",
         "in_words"),
    ),
    "Blocker": Shape(("id", "task", "status", "chain_id", "holds", "error_code")),
    "BatchProgress": Shape(extra=("finished", "state")),
    "Explanation": Shape(rename={"job_id": "id"}),
    "TaskAttempts": Shape(extra=("jobs", "failure_rate", "keeps_failing")),
    "Checkup": Shape(("severity", "summary", "seconds", "repaired", "findings")),
    "PruneReport": Shape(extra=("jobs",)),
}  # fmt: skip


def to_data(value: Any, *, omit: Collection[str] = ()) -> Any:
    """Return the value as dicts, lists and scalars. omit: attributes of the outermost object to leave out."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(name): to_data(one) for name, one in value.items() if name not in omit}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_data(one) for one in value]
    if not type(value).__module__.startswith("holdfast."):
        return value
    shape = SHAPES.get(type(value).__name__, Shape())
    names = [name for name in (*(shape.fields or _fields(value)), *shape.extra) if name not in omit]
    return {shape.rename.get(name, name): to_data(getattr(value, name)) for name in names} if names else value


def iso(moment: datetime) -> str:
    """Return ISO 8601 text in UTC, always of the same length, so that times can be compared as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, Struct):
        return value.__struct_fields__
    import dataclasses  # imported here: few values are, and it takes time to import

    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()
