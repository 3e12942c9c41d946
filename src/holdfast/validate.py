"""Checks of arguments. Each returns the value, or raises InvalidInput: "X must be Y, got Z"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from .blobs import LARGEST_INLINE_BYTES
from .clock import EPOCH, SECOND, as_microseconds
from .errors import InvalidInput
from .failure import shorten
from .model.job import STATUSES

if TYPE_CHECKING:
    from .retention import Retention


MAX_NAME = 200
MAX_KEY = 500
SMALLEST_BLOB_BYTES = 1024
MAX_SECONDS = 100 * 365 * 24 * 3600
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,30}")


class _NotGiven:
    def __repr__(self) -> str:
        return "…"


NOT_GIVEN: Any = _NotGiven()
"""The default of `conn=`, where None is an error."""


def shown(value: Any) -> str:
    """Return the value as an error message shows it: cut, and safe even if its `__repr__` raises."""
    try:
        return shorten(repr(value), 100)
    except Exception:  # noqa: BLE001  the caller's own __repr__, or a number of a million digits
        return f"a {type(value).__qualname__}"


def connection(value: Any) -> Any:
    """Refuse None, which a forgotten or unopened connection is: the job would not be in the caller's transaction."""
    if value is None:
        raise InvalidInput(
            "conn must be a connection, got None: leave conn= out to store it in a transaction of its own. In "
            "Django, pass django.db.connection, since its attribute connection is None before the first query"
        )
    return value


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be True or False, got {shown(value)}")
    return value


def blob_store(value: Any) -> Any:
    if value is not None:
        missing = [name for name in ("put", "get", "delete") if not callable(getattr(value, name, None))]
        if missing:
            raise InvalidInput(f"blobs must be a BlobStore, got {shown(value)}, which has no {missing[0]}")
    return value


def blob_bytes(value: Any) -> int | None:
    return None if value is None else integer(value, "blob_bytes", SMALLEST_BLOB_BYTES, LARGEST_INLINE_BYTES)


def iterable(value: Any, what: str) -> None:
    if not isinstance(value, Iterable):
        raise InvalidInput(f"{what} must be given a list or another iterable, got {type(value).__qualname__}")


def actor(value: str | None) -> str:
    """Return the actor for the event log: the given name, or the login of this process."""
    return login() if value is None else name(value, "actor")


def reason(value: Any) -> str:
    """Return the reason for the event log, cut to its limit."""
    return shorten(text(value, "reason"))


def login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"


def name(value: Any, what: str, limit: int = MAX_NAME) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text, got {type(value).__qualname__}")
    if not value or len(value) > limit:
        raise InvalidInput(f"{what} must have 1 to {limit} characters, got {len(value)}")
    if not value.isprintable():
        raise InvalidInput(f"{what} must have only printable characters, got {shown(value)}")
    return value


def _is_storable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def prefix(value: Any) -> str:
    return _identifier(value, "prefix", "holdfast_", reserved="sqlite_")


def schema(value: Any) -> str:
    return _identifier(value, "schema", "jobs", reserved="pg_")


def _identifier(value: Any, what: str, example: str, *, reserved: str) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value) or value.startswith(reserved):
        raise InvalidInput(
            f"{what} must be 1 to 31 lowercase letters, digits and underscores, such as {example!r}, and must not "
            f"start with a digit or with {reserved}, got {shown(value)}"
        )
    return value


def integer(value: Any, what: str, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{what} must be a whole number, got {shown(value)}")
    if not lowest <= value <= highest:
        raise InvalidInput(f"{what} must be {lowest} to {highest}, got {shown(value)}")
    return value


def priority(value: Any) -> int:
    if value.__class__ is int and -(2**31) <= value < 2**31:  # the usual case, made fast
        return int(value)
    return integer(value, "priority", -(2**31), 2**31 - 1)


def max_attempts(value: Any) -> int:
    return integer(value, "max_attempts", 1, 1_000_000)


def job_id(value: Any) -> int:
    return integer(value, "job id", 1, 2**63 - 1)


def retention(value: Any) -> Retention | None:
    from .retention import Retention

    if value is not None and not isinstance(value, Retention):
        raise InvalidInput(f"retention must be a Retention(…), got {shown(value)}")
    return value


def job_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable):
        raise InvalidInput(f"ids must be a list of job ids, got {shown(value)}")
    return tuple(job_id(one) for one in value)


def one_or_several_ids(value: Any, what: str) -> tuple[int, ...]:
    """Return the ids of a filter: none, one, or several."""
    if value is None:
        return ()
    several = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return tuple(integer(one, what, 1, 2**63 - 1) for one in several)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text, got {type(value).__qualname__}")
    return value


def suggest(unknown: str, known: Iterable[str], what: str) -> InvalidInput:
    """Return the error for an unknown name, with the most similar known one."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(unknown, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it must be one of {', '.join(names)}"
    return InvalidInput(f"unknown {what} {shown(unknown)}; {hint}")


def duration(value: Any, what: str) -> int:
    """Return seconds, or a timedelta, as microseconds."""
    if value.__class__ is int and 0 <= value <= MAX_SECONDS:  # the usual case, made fast
        return int(value) * SECOND
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise InvalidInput(f"{what} must be a number of seconds or a timedelta, got {shown(value)}")
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"{what} must be 0 seconds to 100 years, got {shown(value)}")
    return round(seconds * SECOND)


def interval(value: Any) -> int:
    """Return an interval of a schedule as a whole number of seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 1 <= seconds < 10**9 or seconds != int(seconds):
        raise InvalidInput(f"every must be a whole number of seconds, at least 1, got {shown(value)}")
    return int(seconds)


def moment(value: Any, what: str) -> int:
    """Return an aware datetime as microseconds since 1970 UTC."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{what} must be a datetime, got {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidInput(
            f"{what} must be an aware datetime, such as datetime.now(timezone.utc) + timedelta(hours=1), got "
            f"{value.isoformat()}, which has no time zone"
        )
    try:
        microseconds = as_microseconds(value)
        EPOCH + timedelta(microseconds=microseconds)  # raises if it could not be converted back
    except OverflowError:
        raise InvalidInput(f"{what} must be in the years 1 to 9999 in UTC, got {value.isoformat()}") from None
    return microseconds


def one_or_several(value: Any, what: str) -> tuple[str, ...]:
    """Return `"a"` or `["a", "b"]` as a tuple; None as an empty one."""
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        raise InvalidInput(f"{what} must be text or a list of texts, got {shown(value)}")
    values = (value,) if isinstance(value, str) else tuple(value)
    if not values or not all(isinstance(item, str) for item in values):
        raise InvalidInput(f"{what} must be text or a list of at least one text, got {shown(value)}")
    if not all(map(_is_storable, values)):
        raise InvalidInput(f"{what} must not have a NUL or a lone surrogate, got {shown(value)}")
    return values


def statuses(value: Any) -> tuple[str, ...]:
    wanted = one_or_several(value, "status")
    for status in wanted:
        if status not in STATUSES:
            raise InvalidInput(f"status must be one of {', '.join(sorted(STATUSES))}, got {shown(status)}")
    return wanted


def tags(value: Any) -> str:
    """Return one or several tags as the JSON array that is stored."""
    return msgspec.json.encode([name(tag, "tag") for tag in one_or_several(value, "tags")]).decode()
