"""Checks of what callers pass. Each says what was wrong and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from .blobs import LARGEST_INLINE_BYTES
from .clock import EPOCH, SECOND, as_microseconds
from .errors import InvalidInput, InvalidTask
from .failure import shorten
from .model.job import STATUSES

if TYPE_CHECKING:
    from .retention import Retention


MAX_NAME = 200
MAX_KEY = 500
SMALLEST_BLOB_BYTES = 1024
MAX_SECONDS = 100 * 365 * 24 * 3600
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,30}")


def shown(value: Any) -> str:
    """The value as a message may show it: short, and whatever its own repr does."""
    try:
        return shorten(repr(value), 100)
    except Exception:  # noqa: BLE001  the caller's own __repr__, or a number of a million digits
        return f"a {type(value).__qualname__}"


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is True or False, not {shown(value)}")
    return value


def blob_store(value: Any) -> Any:
    if value is not None:
        missing = [name for name in ("put", "get", "delete") if not callable(getattr(value, name, None))]
        if missing:
            raise InvalidInput(f"blobs is a BlobStore, and {shown(value)} has no {missing[0]}")
    return value


def blob_bytes(value: Any) -> int | None:
    return None if value is None else integer(value, "blob_bytes", SMALLEST_BLOB_BYTES, LARGEST_INLINE_BYTES)


def iterable(value: Any, what: str) -> None:
    if not isinstance(value, Iterable):
        raise InvalidInput(f"{what} takes a list or another iterable, not {type(value).__qualname__}")


def actor(value: str | None) -> str:
    """Who acts: the one that is named, or the login."""
    return login() if value is None else name(value, "actor")


def reason(value: Any) -> str:
    """Why somebody acts: kept in the log."""
    return shorten(text(value, "reason"))


def login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"


def name(value: Any, what: str, limit: int = MAX_NAME) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"a {what} is text, not {type(value).__qualname__}")
    if not value or len(value) > limit:
        raise InvalidInput(f"a {what} has 1 to {limit} characters, and this one has {len(value)}")
    if not value.isprintable():
        raise InvalidInput(f"a {what} has printable characters only, and {shown(value)} has others")
    return value


def _is_storable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def prefix(value: Any) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value) or value.startswith("sqlite_"):
        raise InvalidInput(
            f"prefix {shown(value)} is not allowed: up to 31 small letters, digits and underscores, not beginning "
            "with a digit or with sqlite_, such as 'holdfast_'"
        )
    return value


def integer(value: Any, what: str, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{what} is a whole number, not {shown(value)}")
    if not lowest <= value <= highest:
        raise InvalidInput(f"{what} is {lowest} to {highest}, not {shown(value)}")
    return value


def pool(value: Any, function: Any) -> Any:
    """Where a task's function runs. What a process cannot find again by name cannot run there."""
    if value not in ("thread", "process"):
        raise InvalidInput(f"pool is 'thread' or 'process', not {shown(value)}")
    if value == "process":
        from inspect import iscoroutinefunction

        if iscoroutinefunction(function):
            raise InvalidTask(
                f"{function.__name__} is a coroutine function, and runs on an event loop: leave pool out"
            )
        if "<" in function.__qualname__:
            raise InvalidTask(
                f"{function.__qualname__} is defined inside a function, where another process cannot find it: "
                "pool='process' needs a function of a module"
            )
    return value


def priority(value: Any) -> int:
    if value.__class__ is int and -(2**31) <= value < 2**31:  # most often
        return int(value)
    return integer(value, "priority", -(2**31), 2**31 - 1)


def max_attempts(value: Any) -> int:
    return integer(value, "max_attempts", 1, 1_000_000)


def job_id(value: Any) -> int:
    return integer(value, "a job id", 1, 2**63 - 1)


def retention(value: Any) -> Retention | None:
    from .retention import Retention

    if value is not None and not isinstance(value, Retention):
        raise InvalidInput(f"retention is a Retention(…), not {shown(value)}")
    return value


def job_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable):
        raise InvalidInput(f"ids is a list of job ids, not {shown(value)}")
    return tuple(job_id(one) for one in value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is text, not {type(value).__qualname__}")
    return value


def suggest(unknown: str, known: Iterable[str], what: str) -> InvalidInput:
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(unknown, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(names)}"
    return InvalidInput(f"unknown {what} {shown(unknown)}; {hint}")


def duration(value: Any, what: str) -> int:
    """Seconds or a timedelta, as microseconds."""
    if value.__class__ is int and 0 <= value <= MAX_SECONDS:  # most often
        return int(value) * SECOND
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise InvalidInput(f"{what} is a number of seconds or a timedelta, not {shown(value)}")
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"{what} is 0 seconds to 100 years, not {shown(value)}")
    return round(seconds * SECOND)


def moment(value: Any, what: str) -> int:
    """An aware datetime, as microseconds since 1970 UTC."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{what} is a datetime, not {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidInput(
            f"{what}={value.isoformat()} has no time zone: use an aware datetime, such as "
            "datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    try:
        microseconds = as_microseconds(value)
        EPOCH + timedelta(microseconds=microseconds)  # or it could not be read back
    except OverflowError:
        raise InvalidInput(f"{what}={value.isoformat()} is too far away in UTC") from None
    return microseconds


def one_or_several(value: Any, what: str) -> tuple[str, ...]:
    """`"a"` or `["a", "b"]`; None for any."""
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        raise InvalidInput(f"{what} is text or a list of texts, not {shown(value)}")
    values = (value,) if isinstance(value, str) else tuple(value)
    if not values or not all(isinstance(item, str) for item in values):
        raise InvalidInput(f"{what} is text or a list of at least one text, not {shown(value)}")
    if not all(map(_is_storable, values)):
        raise InvalidInput(f"{what} has a NUL or a lone surrogate, which no stored text has: {shown(value)}")
    return values


def statuses(value: Any) -> tuple[str, ...]:
    wanted = one_or_several(value, "status")
    for status in wanted:
        if status not in STATUSES:
            raise InvalidInput(f"unknown status {shown(status)}: it is one of {', '.join(sorted(STATUSES))}")
    return wanted


def tags(value: Any) -> str:
    """As the JSON array that is stored."""
    return msgspec.json.encode([name(tag, "tag") for tag in one_or_several(value, "tags")]).decode()
