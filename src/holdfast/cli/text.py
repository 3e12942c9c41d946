"""Text for a person's eyes: nothing in it that a terminal would act on, times in words."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..wording import clean, plural, span

__all__ = ["age", "clean", "clean_lines", "due", "iso", "local", "optional_iso", "plural", "span", "written"]


def clean_lines(text: str) -> str:
    """As `clean`, but lines stay lines."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.split("\n"))


def age(since: datetime, now: datetime) -> str:
    """How long ago, in whole seconds."""
    return span(max(0, int((now - since).total_seconds())))


def due(moment: datetime, now: datetime) -> str:
    seconds = (moment - now).total_seconds()
    return f"in {span(max(1, round(seconds)))}" if seconds > 0 else "now"


def iso(moment: datetime) -> str:
    """ISO 8601, always of the same length, so that it can be compared as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def optional_iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)


def local(moment: datetime) -> str:
    """For reading: UTC, to the millisecond."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def written(detail: dict[str, Any], write: Callable[[datetime], str]) -> dict[str, Any]:
    """What belongs to an event, with its moments as text."""
    return {name: write(value) if isinstance(value, datetime) else value for name, value in detail.items()}
