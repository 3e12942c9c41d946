"""When a cron expression fires, and which of its occurrences are due. Times are microseconds UTC.

The calendar is cronsim's, and so is what happens when clocks change: a fixed time that does not exist that day fires
right after the gap, one that comes twice fires once, and a wildcard (`*/10`) follows the time that really passes.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from .clock import SECOND
from .errors import InvalidInput
from .failure import shorten
from .model.schedule import DueOccurrences, ScheduleRecord

GRACE = 60 * SECOND
"""How late an occurrence may be for a schedule that skips those it has missed."""
NEVER = 253_402_300_799_999_999
"""The last microsecond of the year 9999, where the calendar ends."""
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_EXPRESSION = 200
_EXAMPLE = (
    "five fields are minute, hour, day of month, month and day of week, such as '*/5 * * * *' or '30 6 * * MON-FRI'"
)
_FIELDS = ["minute", "hour", "day-of-month", "month", "day-of-week"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 24 * 3600 * SECOND

# Two days from the ends of the calendar, so that every time zone has a name for the moment.
_FIRST, _LAST = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // _MICROSECOND, NEVER - 2 * _DAY
_YEAR_2000 = 946_684_800 * SECOND


class Cron:
    """An expression in its time zone. Raises InvalidInput where either is wrong."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        self._zone = _zone(tz)
        self._fields = _fields(expression)
        try:
            CronSim(self._fields, _EPOCH)
        except CronSimError as error:
            raise InvalidInput(
                f"cron expression {_shown(expression)}: {_problem(self._fields, str(error))}"
            ) from None

    def after(self, moment: int) -> int:
        """The next occurrence; NEVER if there is none within fifty years."""
        return next(self._forwards(moment), NEVER)

    def latest(self, moment: int) -> int | None:
        """The newest occurrence at or before the moment, if there is one within fifty years."""
        return next(iter(self.newest(_FIRST, moment, 1)), None)

    def newest(self, after: int, until: int, limit: int) -> list[int]:
        """The last `limit` occurrences after one moment and up to another, oldest first.

        The work is bounded by the limit, however long the time in between.
        """
        after, until, back = max(after, _FIRST), min(until, _LAST), limit
        while after < until:
            begin = self._begin(after, until, back)
            found = list(takewhile(lambda moment: moment <= until, self._forwards(begin)))
            if len(found) >= limit or begin == after:
                return found[-limit:]
            back *= 2
        return []

    def _begin(self, after: int, until: int, number: int) -> int:
        """A guess at the moment, not before `after`, that has so many occurrences up to `until`.

        By the calendar alone: going back through a time zone, cronsim 2.8 never ends where a day ends in a gap. Only
        going forward tells what really fires.
        """
        with suppress(OverflowError, ValueError):  # where the calendar ends
            earliest = self._local(after - 2 * _DAY).replace(tzinfo=None)
            latest = self._local(until).replace(tzinfo=None) + timedelta(seconds=1)
            back = takewhile(lambda found: found > earliest, CronSim(self._fields, latest, reverse=True))
            found = list(islice(back, number + 1))
            if len(found) > number:
                return max(after, _microseconds(found[-1].replace(tzinfo=self._zone)))
        return after

    def _forwards(self, after: int) -> Iterator[int]:
        with suppress(OverflowError, ValueError):  # where the calendar ends
            for found in CronSim(self._fields, self._local(after)):
                moment = _microseconds(found)
                if moment > after:  # in an hour that comes twice cronsim begins with the first of the two
                    yield moment

    def _local(self, moment: int) -> datetime:
        bounded = max(_FIRST, min(moment, _LAST))
        return (_EPOCH + timedelta(microseconds=bounded)).astimezone(self._zone)


def checked(expression: Any, tz: Any) -> Cron:
    """As `Cron`, and it must fire some day."""
    cron = Cron(expression, tz)
    if cron.after(_YEAR_2000) == NEVER:
        raise InvalidInput(f"cron expression {_shown(expression)} never fires: there is no such day; {_EXAMPLE}")
    return cron


def due(schedule: ScheduleRecord, now: int) -> list[int]:
    """The occurrences to enqueue now, oldest first: what is new since `handled_at`, as far as `missed` lets it."""
    cron = Cron(schedule.cron, schedule.tz)
    if schedule.missed == "catch_up":
        return cron.newest(schedule.handled_at, now, schedule.catch_up_limit)
    if schedule.missed == "skip":
        # A minute is the finest step, so no more than two are within the grace, at its ends.
        return cron.newest(max(schedule.handled_at, now - GRACE - 1), now, 2)
    return cron.newest(schedule.handled_at, now, 1)


def plan(schedule: ScheduleRecord, now: int) -> DueOccurrences:
    """What to do about the schedule now, and where it stands after that."""
    cron = Cron(schedule.cron, schedule.tz)
    if schedule.handled_at > now:
        # The clock was set back. What has fired is known by its time and does not fire again; the rest goes on from
        # here, or a clock that was years ahead would silence the schedule for years.
        return DueOccurrences([], now, cron.after(now))
    newest = cron.newest(schedule.handled_at, now, 1)
    return DueOccurrences(due(schedule, now), newest[0] if newest else schedule.handled_at, cron.after(now))


def _fields(expression: Any) -> str:
    if not isinstance(expression, str):
        raise InvalidInput(f"a cron expression is text, not {type(expression).__qualname__}; {_EXAMPLE}")
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInput(f"a cron expression has up to {MAX_EXPRESSION} characters, and this one {len(expression)}")
    word = expression.strip().lower()
    if word.startswith("@") and word not in ALIASES:
        raise InvalidInput(
            f"unknown cron word {_shown(expression)}: it is one of {', '.join(ALIASES)}; or {_EXAMPLE}"
        )
    fields = ALIASES.get(word, expression).split()
    if len(fields) != 5:
        hint = " (seconds are not supported)" if len(fields) == 6 else ""
        raise InvalidInput(f"cron expression {_shown(expression)} has {len(fields)} fields{hint}; {_EXAMPLE}")
    return " ".join(fields)


def _problem(fields: str, said: str) -> str:
    """Which field cronsim means by 'Bad hour'."""
    name = said.removeprefix("Bad ")
    if name not in _FIELDS:
        return f"{said}; {_EXAMPLE}"
    return f"{fields.split()[_FIELDS.index(name)]!r} is no {name.replace('-', ' ')} that exists; {_EXAMPLE}"


def _zone(tz: Any) -> tzinfo:
    if not isinstance(tz, str):
        raise InvalidInput(f"a time zone is text, such as 'Europe/Zurich', not {type(tz).__qualname__}")
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        raise InvalidInput(f"unknown time zone {_shown(tz)}; {_nearest_zone(tz)}") from None


def _nearest_zone(tz: str) -> str:
    from difflib import get_close_matches

    names = {name.lower(): name for name in available_timezones()}
    if not names:
        return "this system has no time zones: install the package tzdata"
    near = get_close_matches(tz[:100].lower(), names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else "it is a name such as 'Europe/Zurich' or 'UTC'"


def _shown(value: str) -> str:
    return shorten(repr(value), 100)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
