"""Compute when a cron expression fires, which of its occurrences are due, and describe it in words.

Times are microseconds UTC. Calendar and daylight saving rules are cronsim's: a fixed time that a clock change skips
fires right after the gap, a fixed time that occurs twice fires once, and a wildcard (`*/10`) follows elapsed time.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from .clock import SECOND
from .errors import InvalidInput
from .model.schedule import DueOccurrences, ScheduleRecord
from .validate import shown

GRACE = 60 * SECOND
"""With `missed="skip"`, an occurrence that is later than this is skipped."""
NEVER = 253_402_300_799_999_999
"""The last microsecond of the year 9999, where Python's calendar ends."""
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
EVERY = "@every"
_INTERVAL = re.compile(r"@every\s+(\d{1,9})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXAMPLE = (
    "five fields are minute, hour, day of month, month and day of week, such as '*/5 * * * *' or '30 6 * * MON-FRI'"
)
_FIELDS = ["minute", "hour", "day-of-month", "month", "day-of-week"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 24 * 3600 * SECOND

# Two days from the ends of the calendar, so that the time can be converted to every time zone.
_FIRST, _LAST = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // _MICROSECOND, NEVER - 2 * _DAY
_YEAR_2000 = 946_684_800 * SECOND


class Interval:
    """Occurrences at every multiple of a number of seconds since 1970, so that they do not drift."""

    def __init__(self, seconds: int) -> None:
        self._step = seconds * SECOND

    def after(self, moment: int) -> int:
        found = (moment // self._step + 1) * self._step
        return found if found < NEVER else NEVER

    def newest(self, after: int, until: int, limit: int) -> list[int]:
        last = until // self._step
        first = max(after // self._step + 1, last - limit + 1)
        return [number * self._step for number in range(first, last + 1)]


def occurrences(expression: str, tz: str = "UTC") -> "Cron | Interval":
    """Return when a schedule fires: an interval for `@every 30s`, otherwise a cron expression."""
    if not isinstance(expression, str) or not expression.strip().lower().startswith(EVERY):
        return Cron(expression, tz)
    _zone(tz)
    found = _INTERVAL.fullmatch(expression.strip().lower())
    if found is None or not int(found[1]):
        raise InvalidInput(
            "an interval must be a whole number of seconds, minutes, hours or days, such as '@every 30s', "
            f"got {shown(expression)}"
        )
    return Interval(int(found[1]) * _UNIT_SECONDS[found[2]])


class Cron:
    """A cron expression in a time zone. Raises InvalidInput if either is invalid."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        self._zone = _zone(tz)
        self._fields = _fields(expression)
        try:
            CronSim(self._fields, _EPOCH)
        except CronSimError as error:
            raise InvalidInput(f"cron expression {shown(expression)}: {_problem(self._fields, str(error))}") from None

    def after(self, moment: int) -> int:
        """Return the next occurrence, or NEVER if there is none within fifty years."""
        return next(self._forwards(moment), NEVER)

    def latest(self, moment: int) -> int | None:
        """Return the last occurrence at or before this time, or None if there is none within fifty years."""
        return next(iter(self.newest(_FIRST, moment, 1)), None)

    def newest(self, after: int, until: int, limit: int) -> list[int]:
        """Return the last `limit` occurrences in `(after, until]`, oldest first.

        The work is bounded by the limit, not by the length of the period.
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
        """Estimate a time, not before `after`, from which there are `number` occurrences up to `until`.

        The estimate ignores the time zone: cronsim 2.8 does not terminate when it iterates backwards over a day that
        ends in a gap. Only iterating forwards gives the occurrences that really fire.
        """
        with suppress(OverflowError, ValueError):  # the end of the calendar
            earliest = self._local(after - 2 * _DAY).replace(tzinfo=None)
            latest = self._local(until).replace(tzinfo=None) + timedelta(seconds=1)
            back = takewhile(lambda found: found > earliest, CronSim(self._fields, latest, reverse=True))
            found = list(islice(back, number + 1))
            if len(found) > number:
                return max(after, _microseconds(found[-1].replace(tzinfo=self._zone)))
        return after

    def _forwards(self, after: int) -> Iterator[int]:
        with suppress(OverflowError, ValueError):  # the end of the calendar
            for found in CronSim(self._fields, self._local(after)):
                moment = _microseconds(found)
                if moment > after:  # in an hour that occurs twice, cronsim starts from the first
                    yield moment

    def _local(self, moment: int) -> datetime:
        bounded = max(_FIRST, min(moment, _LAST))
        return (_EPOCH + timedelta(microseconds=bounded)).astimezone(self._zone)


def upcoming(expression: str, tz: str, after: int, limit: int) -> list[int]:
    """Return the next occurrences."""
    cron, found = occurrences(expression, tz), list[int]()
    while len(found) < limit and (after := cron.after(after)) != NEVER:
        found.append(after)
    return found


def checked(expression: Any, tz: Any) -> Cron | Interval:
    """Return when it fires. Raises InvalidInput if that is never."""
    cron = occurrences(expression, tz)
    if cron.after(_YEAR_2000) == NEVER:
        raise InvalidInput(f"cron expression {shown(expression)} never fires: there is no such day; {_EXAMPLE}")
    return cron


def due(schedule: ScheduleRecord, now: int) -> list[int]:
    """Return the occurrences to enqueue now, oldest first: those since `handled_at` that `missed` allows."""
    cron = occurrences(schedule.cron, schedule.tz)
    if schedule.missed == "catch_up":
        return cron.newest(schedule.handled_at, now, schedule.catch_up_limit)
    if schedule.missed == "skip":
        # At most two of a cron expression lie within the grace period, one at each end, since its finest step is a
        # minute. Of a shorter interval only the newest is not late.
        return cron.newest(max(schedule.handled_at, now - GRACE - 1), now, 2 if isinstance(cron, Cron) else 1)
    return cron.newest(schedule.handled_at, now, 1)


def plan(schedule: ScheduleRecord, now: int) -> DueOccurrences:
    """Return the occurrences to enqueue now, and the state of the schedule after that."""
    cron = occurrences(schedule.cron, schedule.tz)
    if schedule.handled_at > now:
        # The clock was set back. Occurrences that have fired are recorded by their time and do not fire again.
        # Continue from now: otherwise a clock that was years ahead would silence the schedule for years.
        return DueOccurrences([], now, cron.after(now))
    newest = cron.newest(schedule.handled_at, now, 1)
    return DueOccurrences(due(schedule, now), newest[0] if newest else schedule.handled_at, cron.after(now))


def _fields(expression: Any) -> str:
    if not isinstance(expression, str):
        raise InvalidInput(f"a cron expression must be a str, got {type(expression).__qualname__}; {_EXAMPLE}")
    if len(expression) > MAX_EXPRESSION:
        raise InvalidInput(f"a cron expression must have at most {MAX_EXPRESSION} characters, got {len(expression)}")
    alias = expression.strip().lower()
    if alias.startswith("@") and alias not in ALIASES:
        raise InvalidInput(
            f"unknown cron alias {shown(expression)}: use one of {', '.join(ALIASES)}, '@every 30s', or "
            f"five fields; {_EXAMPLE}"
        )
    fields = ALIASES.get(alias, expression).split()
    if len(fields) != 5:
        hint = " (seconds are not supported)" if len(fields) == 6 else ""
        raise InvalidInput(
            f"cron expression {shown(expression)} must have 5 fields, got {len(fields)}{hint}; {_EXAMPLE}"
        )
    return " ".join(fields)


def _problem(fields: str, message: str) -> str:
    """Show the field that cronsim means by 'Bad hour'."""
    name = message.removeprefix("Bad ")
    if name not in _FIELDS:
        return f"{message}; {_EXAMPLE}"
    return f"invalid {name.replace('-', ' ')} {fields.split()[_FIELDS.index(name)]!r}; {_EXAMPLE}"


def _zone(tz: Any) -> tzinfo:
    if not isinstance(tz, str):
        raise InvalidInput(f"a time zone must be a str such as 'Europe/Zurich', got {type(tz).__qualname__}")
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        raise InvalidInput(f"unknown time zone {shown(tz)}; {_nearest_zone(tz)}") from None


def _nearest_zone(tz: str) -> str:
    from difflib import get_close_matches

    names = {name.lower(): name for name in available_timezones()}
    if not names:
        return "this system has no time zone database: install the package tzdata"
    near = get_close_matches(tz[:100].lower(), names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else "use a name such as 'Europe/Zurich' or 'UTC'"


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


# --- in words ---

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ORDINALS = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
_UNITS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}
_MAX_TIMES = 6


def in_words(expression: str) -> str:
    """Return when it fires: `30 6 * * MON-FRI` is "at 06:30, on Monday to Friday". Raises InvalidInput."""
    occurrences(expression)
    text = expression.strip().lower()
    if text.startswith(EVERY):
        amount, unit = int(text.removeprefix(EVERY).strip()[:-1]), _UNITS[text[-1]]
        return f"every {unit}" if amount == 1 else f"every {amount:,} {unit}s"
    minute, hour, day, month, weekday = ALIASES.get(text, text).split()
    time, days = _time_in_words(minute, hour), _days_in_words(day, weekday)
    if not days and month == "*" and time.startswith("at "):
        days = "every day"
    return ", ".join(part for part in (time, days, _months_in_words(month)) if part)


def _time_in_words(minute: str, hour: str) -> str:
    if minute.isdecimal() and all(one.isdecimal() for one in hour.split(",")) and hour.count(",") < _MAX_TIMES:
        return f"at {_listed([f'{int(one):02}:{int(minute):02}' for one in hour.split(',')])}"
    if minute == "0" and (step := _step_of(hour, 24)):
        return f"every {step} hours"
    if minute == "0" and hour == "*":
        return "every hour"
    if minute == "*":
        minutes = "every minute"
    elif step := _step_of(minute, 60):
        minutes = f"every {step} minutes"
    else:
        minutes = f"{'every hour ' if hour == '*' else ''}at {_values(minute, 'minute')}"
    return minutes if hour == "*" else f"{minutes}, in {_values(hour, 'hour')}"


def _days_in_words(day: str, weekday: str) -> str:
    of_month, of_week = _month_days(day), _week_days(weekday)
    if of_month and of_week:
        # As in Vixie cron: if one of the two begins with *, both must match; otherwise one is enough.
        both = day.startswith("*") or weekday.startswith("*")
        return f"{of_month}, {'and only' if both else 'and'} {of_week}"
    return of_month or of_week


def _month_days(day: str) -> str:
    if day == "*":
        return ""
    last = {"l": "on the last day of the month", "lw": "on the last working day of the month"}
    return last.get(day) or f"on {_values(day, 'day')} of the month"


def _week_days(weekday: str) -> str:
    if weekday == "*":
        return ""
    found = []
    for part in weekday.split(","):
        name, _, nth = part.partition("#")
        if nth:
            found.append(f"the {_ORDINALS[nth]} {_day(name)} of the month")
        elif part.endswith("l"):
            found.append(f"the last {_day(part[:-1])} of the month")
        elif "/" in part:
            return f"on days of the week {weekday}"
        else:
            found.append(" to ".join(map(_day, part.split("-"))))
    return f"on {_listed(found)}"


def _months_in_words(month: str) -> str:
    if month == "*":
        return ""
    if "/" in month:
        return f"in {_values(month, 'month')}"
    return f"in {_listed([' to '.join(map(_month, part.split('-'))) for part in month.split(',')])}"


def _values(field: str, noun: str) -> str:
    """Describe a list of values, ranges and steps: `1,5-9` is "minutes 1 and 5 to 9"."""
    found = []
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        between = f"{low} to {high}" if high else f"{low} on"
        shown = "" if span == "*" else f"from {between}" if step else between if high else low
        found.append(f"every {_ordinal(step)} {shown}".strip() if step else shown)
    is_one = field.isdecimal() or (len(found) == 1 and found[0].startswith("every") and field.startswith("*"))
    if is_one and field.startswith("*"):
        return f"{found[0]} {noun}"
    return f"{noun}{'' if is_one else 's'} {_listed(found)}"


def _step_of(field: str, whole: int) -> int | None:
    """Return 5 for `*/5`, if these steps are equal also from one hour or day to the next."""
    head, _, step = field.partition("/")
    return int(step) if head == "*" and step.isdecimal() and int(step) > 1 and whole % int(step) == 0 else None


def _day(text: str) -> str:
    return _DAYS[int(text)] if text.isdecimal() else next(name for name in _DAYS if name.lower().startswith(text))


def _month(text: str) -> str:
    return (
        _MONTHS[int(text) - 1]
        if text.isdecimal()
        else next(name for name in _MONTHS if name.lower().startswith(text))
    )


def _ordinal(step: str) -> str:
    number = int(step)
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
