"""What somebody asks for, checked: numbers, names and times that the store can take."""

from __future__ import annotations  # so that they cost nothing at import

from datetime import datetime, timedelta

from ..clock import as_microseconds
from ..errors import InvalidInput

Since = timedelta | datetime

LARGEST = 2**63 - 1  # of SQLite
MICROSECOND, MINUTE = timedelta(microseconds=1), timedelta(minutes=1)


def whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise InvalidInput(f"{what} is a whole number from 0, not {_shown(value)}")
    return value


def optional_whole(value: object, what: str) -> int | None:
    return None if value is None else whole(value, what)


def optional_name(value: object, what: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is the name of a {what}, not {type(value).__qualname__}")
    return value.encode("utf-8", "replace").decode()  # what no name can have, none has


def moment(since: object, now: int) -> int:
    """Microseconds. A timedelta is counted back from now."""
    if isinstance(since, timedelta):
        return min(max(0, now - since // MICROSECOND), LARGEST)
    if isinstance(since, datetime) and since.utcoffset() is not None:
        return max(0, as_microseconds(since))
    raise InvalidInput("since is a timedelta, such as timedelta(hours=1), or a datetime with a time zone")


def minutes(step: object) -> int:
    if not isinstance(step, timedelta) or step < MINUTE or step % MINUTE:
        raise InvalidInput(f"step is a timedelta of one or more whole minutes, not {_shown(step)}")
    return step // MINUTE


def _shown(value: object) -> str:
    return str(value) if isinstance(value, int | timedelta) else type(value).__qualname__
