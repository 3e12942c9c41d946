"""Text for a person's eyes: nothing in it that a terminal would act on, times in words."""

from datetime import UTC, datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def clean(text: str) -> str:
    """One line, in which a control character is spelt out. What is stored may come from anyone."""
    return text if text.isprintable() else "".join(map(_spelt, text))


def clean_lines(text: str) -> str:
    """The same, but lines stay lines."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.split("\n"))


def _spelt(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def span(seconds: float) -> str:
    """`0.25s`, `12s`, `3m 20s`, `2h 5m`, `4d 1h`: the two largest units."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 10:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    left, parts = int(seconds), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0"))


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


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
