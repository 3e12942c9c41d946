"""Statistics of long periods: read from hours and days, and the same as the sums of the minutes."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Retention
from holdfast.clock import SECOND
from holdfast.fold import MINUTE
from holdfast.testing import FakeClock
from support.transitions import fold_all

HOUR, QUARTER, DAY = 60, 6 * 60, 24 * 60
OF_ALL = -HOUR
Sql = Callable[..., list[Any]]
Sums = dict[tuple[int, str, str | None, str, int], int]


@pytest.fixture
def busy(app: Holdfast, clock: FakeClock) -> Holdfast:
    """Three days in which messages were handled now and then, in three queues."""
    chance = random.Random(1)
    for number in range(120):
        queue = app.queue(f"queue-{number % 3}")
        queue.send(number)
        clock.advance(chance.uniform(0, 1800))
        if number % 4:
            message = queue.receive()
            assert message is not None and message.ack()
        clock.advance(chance.uniform(0, 2700))
        if number % 10 == 9:
            app.store.statistics.fold()
    return app


def read(app: Holdfast, since: int, step: int, queue: str | None = None) -> Sums:
    found = app.store.statistics.minutes(since, step, None, queue)
    return {(one.minute, one.queue, one.task, one.measure, one.bucket): one.count for one in found}


def added_up(app: Holdfast, since: int, step: int) -> Sums:
    """The same from the minutes, one by one."""
    sums: Counter[tuple[int, str, str | None, str, int]] = Counter()
    for (minute, *rest), n in read(app, since, 1).items():
        sums[minute // step * step, rest[0], rest[1], rest[2], rest[3]] += n
    return dict(sums)


def added_up_of_all(app: Holdfast, since: int, step: int) -> Counter[tuple[int, str, int]]:
    """The same of all queues and tasks together."""
    sums: Counter[tuple[int, str, int]] = Counter()
    for (minute, _, _, *measure), n in added_up(app, since, step).items():
        sums[minute, measure[0], measure[1]] += n
    return sums


def require_exact(app: Holdfast, clock: FakeClock) -> None:
    now = clock.now() // MINUTE
    for back in (0, 30, 59, 60, 61, 119, 200, DAY, DAY + 17, 2 * DAY, 3 * DAY + 1, 9 * DAY):
        for step in (1, 7, HOUR, 2 * HOUR, QUARTER, DAY, 7 * DAY, DAY * 2**30):
            assert read(app, now - back, step) == added_up(app, now - back, step), (back, step)
            merged = app.store.statistics.minutes(now - back, step, merged=True)
            of_all = {(one.minute, one.measure, one.bucket): one.count for one in merged}
            assert of_all == added_up_of_all(app, now - back, step), (back, step)
            assert {(one.queue, one.task) for one in merged} <= {("", None)}


def test_long_periods_are_exact_while_minutes_are_rolled_up(busy: Holdfast, clock: FakeClock) -> None:
    require_exact(busy, clock)
    while busy.store.statistics.fold():
        require_exact(busy, clock)
    for _ in range(3):
        clock.advance(25 * 60)
        busy.queue("queue-0").send(1)
        fold_all(busy)
        require_exact(busy, clock)


def test_long_periods_are_read_from_hours_and_days(busy: Holdfast, clock: FakeClock, sql: Sql) -> None:
    fold_all(busy)
    everything = read(busy, 0, DAY * 2**30)
    rolled = sql("SELECT rolled FROM holdfast_fold")[0][0]
    charted = busy.observe.timeline(timedelta(days=4), timedelta(hours=2))
    sql("DELETE FROM holdfast_minutes WHERE minute < ?", [rolled])
    assert read(busy, 0, DAY * 2**30) == everything
    assert busy.observe.timeline(timedelta(days=4), timedelta(hours=2)) == charted
    of_one = {key: n for key, n in everything.items() if key[1] == "queue-1"}
    assert read(busy, 0, DAY * 2**30, "queue-1") == of_one
    sql("DELETE FROM holdfast_rollups WHERE minutes = ?", [HOUR])
    quarters = read(busy, 0, QUARTER)
    assert Counter(key[1:] for key in quarters).keys() == {key[1:] for key in everything}
    assert busy.observe.timeline(timedelta(days=4), timedelta(hours=2)) == charted
    sql("DELETE FROM holdfast_rollups WHERE minutes = ?", [QUARTER])
    assert read(busy, 0, DAY * 2**30) == everything


def test_whole_hours_and_days_are_read_without_the_minutes_before_them(
    busy: Holdfast, clock: FakeClock, sql: Sql
) -> None:
    fold_all(busy)
    now = clock.now() // MINUTE
    for period, length in ((DAY, HOUR), (7 * DAY, DAY)):
        begin = (now - period) // length * length
        exact = timedelta(minutes=now - begin)
        assert busy.observe.latency(since=timedelta(minutes=period), whole=True) == busy.observe.latency(since=exact)
        found = busy.observe.attempts(timedelta(minutes=period), whole=True)
        assert found == busy.observe.attempts(exact) != []
    everything = busy.observe.latency(since=timedelta(days=7), whole=True)
    rolled = sql("SELECT rolled FROM holdfast_fold")[0][0]
    sql("DELETE FROM holdfast_minutes WHERE minute < ?", [rolled])
    sql("DELETE FROM holdfast_rollups WHERE minutes IN (60, 360)")
    assert busy.observe.latency(since=timedelta(days=7), whole=True) == everything
    assert busy.observe.latency(since=timedelta(minutes=90), whole=True) == busy.observe.latency(
        since=timedelta(minutes=90)
    ), "a short period is exact"


def test_durations_are_read_apart_from_the_other_measures(busy: Holdfast) -> None:
    fold_all(busy)
    for step, merged in ((1, False), (HOUR, False), (DAY, True)):
        parts = [busy.store.statistics.minutes(0, step, merged=merged, timed=timed) for timed in (True, False)]
        assert {one.measure for one in parts[0]} == {"wait", "run"}
        assert {"enqueued", "succeeded"} <= {one.measure for one in parts[1]}
        whole = busy.store.statistics.minutes(0, step, merged=merged)
        assert sorted(parts[0] + parts[1], key=str) == sorted(whole, key=str)


def test_what_is_folded_late_is_rolled_up_too(busy: Holdfast, clock: FakeClock) -> None:
    fold_all(busy)
    clock.advance(-2 * DAY * 60)
    busy.queue("queue-0").send("the clock was set back")
    fold_all(busy)
    clock.advance(2 * DAY * 60)
    require_exact(busy, clock)
    assert sum(n for key, n in read(busy, 0, DAY).items() if key[3] == "enqueued") == 121


def test_a_process_that_was_overtaken_rolls_nothing_up_twice(
    busy: Holdfast, open_app: Callable[..., Holdfast], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process rolls up between the look of this one and its transaction."""
    fold_all(busy)
    clock.advance(61)
    busy.queue("queue-0").send(1)
    while busy.store.statistics._statistics._fold_events():  # type: ignore[attr-defined]
        pass
    clock.advance(61)
    mine, other = busy.store.statistics._statistics, open_app()  # type: ignore[attr-defined]
    read_snapshot = mine._database.read_snapshot

    def look(work: Any) -> Any:
        found = read_snapshot(work)
        monkeypatch.setattr(mine._database, "read_snapshot", read_snapshot)
        fold_all(other)
        return found

    monkeypatch.setattr(mine._database, "read_snapshot", look)
    assert mine._roll_up() == 0
    require_exact(busy, clock)


def test_hours_and_days_are_pruned_when_all_of_their_minutes_are(busy: Holdfast, clock: FakeClock, sql: Sql) -> None:
    fold_all(busy)
    now = clock.now() // MINUTE
    for days in (2, 1, 0):
        rules = Retention(rollups=timedelta(days=days))
        report = busy.prune(retention=rules, dry_run=True)
        assert busy.prune(retention=rules).minutes == report.minutes > 0
        before = (clock.now() - days * DAY * 60 * SECOND) // MINUTE
        kept = sql("SELECT minutes, last FROM holdfast_rollups")
        assert all(last >= before for _, last in kept)
        assert not days or {length for length, _ in kept} == {OF_ALL, HOUR, QUARTER, DAY}
        assert read(busy, now - days * DAY, DAY * 2**30) == added_up(busy, now - days * DAY, DAY * 2**30)
    clock.advance(2 * DAY * 60)
    busy.prune(retention=Retention(rollups=timedelta(days=1)))
    assert sql("SELECT count(*) FROM holdfast_rollups") == [(0,)]
