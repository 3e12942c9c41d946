"""Cron expressions: validation, occurrences and due occurrences. Pure: no store, no clock."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.clock import SECOND
from holdfast.cron import ALIASES, GRACE, NEVER, Cron, checked, due, in_words, occurrences, plan, upcoming
from holdfast.errors import InvalidInput
from holdfast.model.schedule import ScheduleRecord
from support.refusals import told

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60 * SECOND
YEAR = 365 * 24 * 3600 * SECOND
NOON = datetime(2026, 6, 17, 12, tzinfo=UTC)


def micro(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def fires(expression: str, tz: str, start: str, end: str) -> list[str]:
    """When it fires between two times in UTC, the end included, as 'day hour:minute' in UTC."""
    first, last = (micro(datetime.fromisoformat(one).replace(tzinfo=UTC)) for one in (start, end))
    return [f"{moment(one):%d %H:%M}" for one in Cron(expression, tz).newest(first, last, 1000)]


def schedule(cron: str = "* * * * *", tz: str = "UTC", **fields: Any) -> ScheduleRecord:
    given = {
        "name": "one",
        "task": "work",
        "args": "{}",
        "queue": "default",
        "priority": 0,
        "max_attempts": 5,
        "timeout": None,
        "paused_at": None,
        "handled_at": micro(NOON),
        "next_at": None,
        "last_at": None,
        "last_job_id": None,
        "created_at": 0,
        "updated_at": 0,
        "revision": 0,
    }
    return ScheduleRecord(**{**given, "cron": cron, "tz": tz, **fields})


# --- what is refused ---


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("61 * * * *", ["'61'", "minute", "*/5 * * * *"]),
        ("* 24 * * *", ["'24'", "hour"]),
        ("* * 32 * *", ["'32'", "day of month"]),
        ("* * * 13 *", ["'13'", "month"]),
        ("* * * * 8", ["'8'", "day of week"]),
        ("* * * * FUNDAY", ["'FUNDAY'", "day of week"]),
        ("*/0 * * * *", ["'*/0'", "minute"]),
        ("5-1 * * * *", ["'5-1'", "minute"]),
        ("", ["5 fields, got 0", "five fields"]),
        ("* * * *", ["5 fields, got 4", "five fields"]),
        ("* * * * * *", ["5 fields, got 6", "seconds", "five fields"]),
        ("* * * * * * *", ["5 fields, got 7"]),
        ("@reboot", ["@reboot", "@daily", "@hourly"]),
        ("@every 5 minutes", ["@every 30s", "'@every 5 minutes'"]),
        ("0 0 30 2 *", ["'30'", "day of month"]),
        ("0 0 31 2,4,6 *", ["'31'", "day of month"]),
        ("0 0 */30 2 MON#5", ["never fires"]),
        ("* * * * *" * 100, ["200 characters"]),
        ("9" * 190 + " * * * *", ["minute"]),
        (5, ["must be a str", "int"]),
        (None, ["must be a str", "NoneType"]),
        (b"* * * * *", ["must be a str", "bytes"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_invalid_expression_is_explained(expression: Any, words: list[str]) -> None:
    with told(InvalidInput, *words):
        checked(expression, "UTC")


@pytest.mark.parametrize(
    ("tz", "words"),
    [
        ("Europe/Zürich", ["did you mean 'Europe/Zurich'"]),
        ("europe/zurich", ["did you mean 'Europe/Zurich'"]),
        ("America/NewYork", ["did you mean 'America/New_York'"]),
        ("Qqqq/Wwww", ["such as 'Europe/Zurich'"]),
        ("", ["unknown time zone"]),
        ("../../etc/passwd", ["unknown time zone"]),
        ("/etc/passwd", ["unknown time zone"]),
        ("Europe", ["unknown time zone"]),
        ("\0", ["unknown time zone"]),
        ("\ud800", ["unknown time zone"]),
        ("x" * 10_000, ["unknown time zone"]),
        (None, ["must be a str", "NoneType"]),
        (UTC, ["must be a str", "timezone"]),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_the_error_of_an_unknown_time_zone_suggests_the_nearest_one(tz: Any, words: list[str]) -> None:
    with told(InvalidInput, *words):
        checked("* * * * *", tz)


@given(st.text(alphabet="0123456789*/,-LW#MONSUJAFEB @ \t", max_size=40) | st.text(max_size=20))
def test_any_str_is_an_expression_or_refused(text: str) -> None:
    try:
        cron = checked(text, "UTC")
    except InvalidInput:
        return
    assert cron.after(micro(NOON)) > micro(NOON)


# --- when it fires ---


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_equals_its_five_fields(alias: str) -> None:
    first, last = micro(NOON) - 3 * YEAR, micro(NOON)
    assert Cron(alias).newest(first, last, 50) == Cron(ALIASES[alias]).newest(first, last, 50) != []
    assert Cron(f" {alias.upper()} ").after(first) == Cron(alias).after(first)


def test_the_next_occurrence_is_after_the_moment_and_the_latest_may_be_the_moment() -> None:
    cron, noon = Cron("*/5 * * * *"), micro(NOON)
    assert cron.after(noon) == noon + 5 * MINUTE
    assert cron.after(noon - 1) == noon
    assert cron.latest(noon) == noon
    assert cron.latest(noon - 1) == noon - 5 * MINUTE
    assert cron.latest(noon + 1) == noon


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 29 2 *", ["2016-02-29", "2020-02-29", "2024-02-29"]),
        ("0 0 31 * *", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("0 0 L 2 *", ["2024-02-29", "2025-02-28", "2026-02-28"]),
        ("0 0 * 2 MON#5", ["1960-02-29", "1988-02-29", "2016-02-29"]),
        ("0 0 13 * 5", ["2026-06-05", "2026-06-12", "2026-06-13"]),  # one or the other, as in Debian's cron
    ],
)
def test_days_that_not_every_month_has(expression: str, expected: list[str]) -> None:
    found = Cron(expression).newest(micro(NOON) - 70 * YEAR, micro(NOON), 3)
    assert [f"{moment(one):%Y-%m-%d}" for one in found] == expected


# Clocks go forward at 01:00 UTC (02:00 in Zurich), and at 07:00 UTC (02:00 in New York).
SPRING = {"Europe/Zurich": "2026-03-29", "America/New_York": "2026-03-08"}
# Clocks go back at 01:00 UTC (03:00 in Zurich), and at 06:00 UTC (02:00 in New York).
AUTUMN = {"Europe/Zurich": "2026-10-25", "America/New_York": "2026-11-01"}


@pytest.mark.parametrize(("tz", "day"), [*SPRING.items(), *AUTUMN.items()])
def test_every_hour_is_every_hour_when_clocks_change(tz: str, day: str) -> None:
    found = fires("0 * * * *", tz, f"{day} 00:00", f"{day} 12:00")
    assert [one.split()[1] for one in found] == [f"{hour:02}:00" for hour in range(1, 13)]


@pytest.mark.parametrize(
    ("tz", "day", "expected"),
    [
        ("Europe/Zurich", SPRING["Europe/Zurich"], []),  # from 01:59 to 03:00
        ("America/New_York", SPRING["America/New_York"], []),
        ("Europe/Zurich", AUTUMN["Europe/Zurich"], ["25 00:10", "25 00:40", "25 01:10", "25 01:40"]),
        ("America/New_York", AUTUMN["America/New_York"], ["01 07:10", "01 07:40"]),  # 01:00 comes twice there
    ],
)
def test_a_wildcard_within_the_hour_follows_the_time_that_passes(tz: str, day: str, expected: list[str]) -> None:
    found = fires("*/10 2 * * *", tz, f"{day} 00:00", f"{day} 12:00")
    assert [one for one in found if one.endswith(("10", "40"))] == expected


@pytest.mark.parametrize(
    ("tz", "before", "during", "after"),
    [
        ("Europe/Zurich", "28 01:30", "29 01:00", "30 00:30"),
        ("America/New_York", "07 07:30", "08 07:00", "09 06:30"),
    ],
)
def test_a_time_that_the_day_does_not_have_fires_right_after_the_gap(
    tz: str, before: str, during: str, after: str
) -> None:
    day = datetime.fromisoformat(SPRING[tz])
    found = fires("30 2 * * *", tz, f"{day - timedelta(days=1)}", f"{day + timedelta(days=1, hours=12)}")
    assert found == [before, during, after]


@pytest.mark.parametrize(
    ("tz", "expression", "expected"),
    [
        ("Europe/Zurich", "30 2 * * *", ["24 00:30", "25 00:30", "26 01:30"]),
        ("America/New_York", "30 1 * * *", ["31 05:30", "01 05:30", "02 06:30"]),
    ],
)
def test_a_time_that_the_day_has_twice_fires_once(tz: str, expression: str, expected: list[str]) -> None:
    day = datetime.fromisoformat(AUTUMN[tz])
    found = fires(expression, tz, f"{day - timedelta(days=1)}", f"{day + timedelta(days=1, hours=12)}")
    assert found == expected


@pytest.mark.parametrize(("tz", "expression"), [("Europe/Zurich", "30 2 * * *"), ("America/New_York", "30 1 * * *")])
def test_within_an_hour_that_occurs_twice_the_result_is_the_same(tz: str, expression: str) -> None:
    """There the local time says too little: 02:15 is before 02:30 the first time, and after it the second time."""
    cron, start = Cron(expression, tz), micro(datetime.fromisoformat(AUTUMN[tz]).replace(tzinfo=UTC))
    (once,) = cron.newest(start, start + 12 * 60 * MINUTE, 10)
    for minutes in range(-120, 150, 5):
        now = once + minutes * MINUTE
        assert (cron.after(now) == once) is (minutes < 0)
        assert (cron.latest(now) == once) is (minutes >= 0)


def test_going_back_over_a_day_that_ends_in_a_gap_terminates() -> None:
    """In Nuuk clocks go forward from 23:00 to 00:00; cronsim, told to go back, never arrives."""
    now = micro(datetime(2026, 3, 30, tzinfo=UTC))
    found = Cron("*/5 23 * * 6", "America/Nuuk").latest(now)
    assert found is not None and f"{moment(found).astimezone(ZoneInfo('America/Nuuk')):%m-%d %H:%M}" == "03-21 23:55"


@pytest.mark.parametrize("now", [-(10**18), 0, NEVER - 1, NEVER, NEVER + 1, 2**63 - 1])
@pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *", "@weekly"])
@pytest.mark.parametrize("tz", ["UTC", "Pacific/Apia", "America/Nuuk"])
def test_a_clock_at_the_end_of_the_calendar_is_handled(now: int, expression: str, tz: str) -> None:
    cron = Cron(expression, tz)
    assert now < cron.after(now) <= NEVER or now >= NEVER - 1
    assert len(cron.newest(0, now, 3)) in (0, 3)
    assert plan(schedule(expression, tz), now).next_at <= NEVER


# --- what is due ---

FIELDS = [
    st.sampled_from(["*", "*/7", "0", "30", "0,20,40", "5-10", "59"]),
    st.sampled_from(["*", "*/6", "0", "2", "1-3", "3", "23"]),
    st.sampled_from(["*", "*", "*", "1", "29", "8,25"]),
    st.sampled_from(["*", "*", "*", "3", "10"]),
    st.sampled_from(["*", "*", "*", "0", "6", "MON-FRI"]),
]
EXPRESSIONS = st.tuples(*FIELDS).map(" ".join)
ZONES = st.sampled_from(
    ["UTC", "Europe/Zurich", "America/New_York", "America/Nuuk", "Asia/Kathmandu", "Pacific/Apia"]
)
TURNS = ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-06-17", "2024-02-29", "2025-12-31"]
STARTS = st.builds(
    lambda day, minutes, rest: (
        micro(datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minutes)) + rest
    ),
    st.sampled_from(TURNS),
    st.integers(-2000, 2000),
    st.sampled_from([0, 1, 30 * SECOND, MINUTE - 1]),
)


def enumerate_all(cron: Cron, after: int, until: int) -> list[int]:
    """One by one: what no clock that jumped by ten years would have time for."""
    found = []
    while (after := cron.after(after)) <= until:
        found.append(after)
    return found


def matches(fields: list[str], local: datetime) -> bool:
    """An expression of wildcards, numbers, lists, ranges and steps, by the book."""

    def has(field: str, value: int, low: int) -> bool:
        if field == "MON-FRI":
            return 1 <= value % 7 <= 5
        base, _, step = field.partition("/")
        if base == "*":
            return (value - low) % int(step or 1) == 0
        first, _, last = base.partition("-")
        return str(value) in base.split(",") or (bool(last) and int(first) <= value <= int(last))

    values = [local.minute, local.hour, local.day, local.month, local.isoweekday() % 7]
    minute, hour, day, month, weekday = map(has, fields, values, [0, 0, 1, 1, 0])
    days = day and weekday if "*" in (fields[2][0], fields[4][0]) else day or weekday
    return minute and hour and month and days


@given(expression=EXPRESSIONS, tz=ZONES, start=STARTS, minutes=st.integers(1, 1500))
@settings(max_examples=60)
def test_a_wildcard_fires_in_every_minute_whose_local_time_matches(
    expression: str, tz: str, start: int, minutes: int
) -> None:
    fields = expression.split()
    if not (fields[0].startswith("*") or fields[1].startswith("*")):
        fields[0] = "*/5"
    zone, end = ZoneInfo(tz), start + minutes * MINUTE
    whole = range(start // MINUTE + 1, end // MINUTE + 1)
    expected = [one * MINUTE for one in whole if matches(fields, moment(one * MINUTE).astimezone(zone))]
    assert Cron(" ".join(fields), tz).newest(start, end, 10_000) == expected


@given(expression=EXPRESSIONS, tz=ZONES, start=STARTS, minutes=st.integers(0, 5000), limit=st.integers(1, 20))
@settings(max_examples=150)
@example(
    expression="30 2 * * *", tz="Europe/Zurich", start=micro(datetime(2026, 10, 25, tzinfo=UTC)), minutes=75, limit=1
)
@example(
    expression="*/7 23 * * 6",
    tz="America/Nuuk",
    start=micro(datetime(2026, 3, 28, tzinfo=UTC)),
    minutes=3000,
    limit=9,
)
def test_what_is_due_equals_a_naive_enumeration(
    expression: str, tz: str, start: int, minutes: int, limit: int
) -> None:
    now = start + minutes * MINUTE
    every = enumerate_all(Cron(expression, tz), start, now)
    one = {"cron": expression, "tz": tz, "handled_at": start}
    assert due(schedule(**one), now) == every[-1:]
    assert due(schedule(**one, missed="catch_up", catch_up_limit=limit), now) == every[-limit:]
    assert due(schedule(**one, missed="skip"), now) == [fire for fire in every if fire >= now - GRACE]
    step = plan(schedule(**one), now)
    assert step.handled_at == (every[-1] if every else start)
    assert step.next_at == Cron(expression, tz).after(now) > now


@given(expression=EXPRESSIONS, tz=ZONES, start=STARTS, gaps=st.lists(st.integers(0, 900), min_size=1, max_size=8))
@settings(max_examples=60)
def test_catch_up_misses_no_occurrence_at_any_polling_interval(
    expression: str, tz: str, start: int, gaps: list[int]
) -> None:
    one, fired = schedule(expression, tz, handled_at=start, missed="catch_up", catch_up_limit=1000), []
    now = start
    for gap in gaps:
        now += gap * MINUTE
        step = plan(one, now)
        fired += step.moments
        one = schedule(expression, tz, handled_at=step.handled_at, missed="catch_up", catch_up_limit=1000)
    assert fired == enumerate_all(Cron(expression, tz), start, now)


def test_nothing_is_due_early_or_after_the_clock_was_set_back() -> None:
    noon = micro(NOON)
    for missed in ("coalesce", "skip", "catch_up"):
        one = schedule("*/5 * * * *", missed=missed)
        assert due(one, noon) == []
        assert due(one, noon + 5 * MINUTE - 1) == []
        assert due(one, noon + 5 * MINUTE) == [noon + 5 * MINUTE]
        assert due(one, noon - YEAR) == []


def test_after_the_clock_was_set_back_the_schedule_continues_from_now() -> None:
    noon = micro(NOON)
    step = plan(schedule("*/5 * * * *", handled_at=noon + 10 * YEAR), noon)
    assert (step.moments, step.handled_at, step.next_at) == ([], noon, noon + 5 * MINUTE)


def test_skip_fires_occurrences_up_to_a_minute_late() -> None:
    one, noon = schedule("*/5 * * * *", handled_at=micro(NOON) - 1, missed="skip"), micro(NOON)
    assert due(one, noon + GRACE) == [noon]
    assert due(one, noon + GRACE + 1) == []


@pytest.mark.parametrize("missed", ["coalesce", "skip", "catch_up"])
@pytest.mark.parametrize("expression", ["* * * * *", "*/5 23 * * 6", "0 0 29 2 *", "0 0 * 2 MON#5"])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Zurich", "America/Nuuk"])
def test_a_jump_of_ten_years_is_handled_quickly(
    missed: Any, expression: str, tz: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not minute by minute: these are five million."""
    one, now = schedule(expression, tz, missed=missed), micro(NOON) + 10 * YEAR
    steps: list[datetime] = []

    class Counting(CronSim):
        def __next__(self) -> datetime:
            steps.append(super().__next__())
            return steps[-1]

    monkeypatch.setattr("holdfast.cron.CronSim", Counting)
    found = due(one, now)
    assert 0 < len(steps) < 1000
    assert len(found) <= (100 if missed == "catch_up" else 2 if missed == "skip" else 1)
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", "every hour at every 7th minute"),
        ("0 * * * *", "every hour"),
        ("15 * * * *", "every hour at minute 15"),
        ("5,35 * * * *", "every hour at minutes 5 and 35"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 3 * * *", "at 03:00, every day"),
        ("@daily", "at 00:00, every day"),
        ("0 9,12,18 * * *", "at 09:00, 12:00 and 18:00, every day"),
        ("30 6 * * MON-FRI", "at 06:30, on Monday to Friday"),
        ("*/10 9-17 * * 1-5", "every 10 minutes, in hours 9 to 17, on Monday to Friday"),
        ("0 0 1 1 *", "at 00:00, on day 1 of the month, in January"),
        ("0 0 L * *", "at 00:00, on the last day of the month"),
        ("0 12 * * 5#1", "at 12:00, on the first Friday of the month"),
        ("0 12 * * 5L", "at 12:00, on the last Friday of the month"),
        ("0 0 13 * 5", "at 00:00, on day 13 of the month, and on Friday"),
        ("0 0 */2 * 1", "at 00:00, on every 2nd day of the month, and only on Monday"),
        ("0 0 * jan,jul sun", "at 00:00, on Sunday, in January and July"),
        ("@every 30s", "every 30 seconds"),
        ("@every 1h", "every hour"),
    ],
)
def test_an_expression_is_described_in_words(expression: str, words: str) -> None:
    assert in_words(expression) == words


def _field(low: int, high: int, *names: str) -> st.SearchStrategy[str]:
    number, step = st.integers(low, high).map(str), st.integers(1, high).map(str)
    span = st.tuples(number, number).map(lambda pair: "-".join(sorted(pair, key=int)))
    stepped = st.tuples(st.one_of(st.just("*"), span, number), step).map("/".join)
    several = st.lists(st.one_of(number, span), min_size=2, max_size=3).map(",".join)
    return st.one_of(st.just("*"), number, span, stepped, several, *map(st.just, names))


@given(
    st.tuples(
        _field(0, 59),
        _field(0, 23),
        _field(1, 31, "L", "LW"),
        _field(1, 12, "jan", "FEB-may"),
        _field(0, 7, "mon", "MON-fri", "5#2", "fri#1", "5L", "sun,mon#2"),
    ).map(" ".join)
)
def test_every_valid_expression_has_a_description(expression: str) -> None:
    try:
        occurrences(expression)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            in_words(expression)
    else:
        assert in_words(expression)


def test_the_next_occurrences_follow_each_other() -> None:
    hour = 3600 * SECOND
    assert upcoming("0 * * * *", "UTC", 5, 3) == [hour, 2 * hour, 3 * hour]
    assert upcoming("@every 1h", "UTC", 0, 2) == [hour, 2 * hour]
