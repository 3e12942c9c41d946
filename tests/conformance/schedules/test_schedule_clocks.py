"""Each occurrence one job, whatever the clock does and however many workers look."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.clock import SECOND
from holdfast.errors import DamagedRow
from holdfast.testing import FakeClock
from holdfast.worker.scheduler import Scheduler
from support.running_worker import PATIENCE_SECONDS
from support.scheduling import DAY, HOUR, MINUTE, NOON, POLICIES, YEAR, Sql, fire_all, fired, scheduler_of

# --- missed, and clocks that are set ---


def add_all(app: Holdfast, work: Task[..., None], cron: str = "*/5 * * * *", **options: Any) -> None:
    """One schedule for each policy; each job says whose it is by its queue."""
    for policy in POLICIES:
        limit = {"catch_up_limit": 10} if policy == "catch_up" else {}
        app.schedules.add(policy, cron, work.using(queue=policy), missed=policy, **limit, **options)  # type: ignore[arg-type]


def fired_by_policy(app: Holdfast) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for job in reversed(app.jobs.list(limit=1000)):
        found[job.queue].append((job.run_at - NOON) / timedelta(minutes=1))
    return found


def test_what_was_missed_while_nobody_was_there(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    add_all(app, work)
    clock.advance(22 * MINUTE)
    scheduler.fire_due()
    assert fired_by_policy(app) == {"coalesce": [20], "skip": [], "catch_up": [5, 10, 15, 20]}
    clock.advance(3 * MINUTE)
    scheduler.fire_due()
    assert fired_by_policy(app) == {"coalesce": [20, 25], "skip": [25], "catch_up": [5, 10, 15, 20, 25]}


def test_catching_up_takes_the_newest_up_to_its_limit(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    add_all(app, work)
    clock.advance(DAY)
    scheduler.fire_due()
    day = 24 * 60
    assert fired_by_policy(app)["catch_up"] == [day - 5 * back for back in range(9, -1, -1)]


@pytest.mark.parametrize("step", [HOUR, 10 * YEAR], ids=["an hour", "ten years"])
def test_a_clock_set_forward_fires_what_the_policy_says_and_set_right_again_goes_on(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, step: int
) -> None:
    add_all(app, work)
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    clock.step(step)
    scheduler.fire_due()
    ahead, minutes = fired_by_policy(app), step / MINUTE
    assert ahead == {
        "coalesce": [5, 5 + minutes],
        "skip": [5, 5 + minutes],
        "catch_up": [5, *[5 + minutes - 5 * back for back in range(9, -1, -1)]],
    }
    clock.step(-step)
    clock.advance(1)
    assert scheduler.fire_due() == 5 * MINUTE - 1
    assert fired_by_policy(app) == ahead
    for _ in range(13):
        clock.advance(5 * MINUTE)
        scheduler.fire_due()
    after = fired_by_policy(app)
    for policy in POLICIES:
        assert sorted(after[policy]) == sorted({*ahead[policy], *range(10, 71, 5)}), "each once, and none left out"


@pytest.mark.parametrize("step", [HOUR, 10 * YEAR], ids=["an hour", "ten years"])
def test_a_clock_set_back_does_not_fire_twice_and_set_right_again_goes_on(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, step: int
) -> None:
    add_all(app, work)
    for _ in range(14):
        clock.advance(5 * MINUTE)
        scheduler.fire_due()
    before = fired_by_policy(app)
    assert before == {policy: list(range(5, 71, 5)) for policy in POLICIES}
    clock.step(-step)
    clock.advance(1)
    scheduler.fire_due()
    assert fired_by_policy(app) == before
    for _ in range(3):  # where nothing has fired yet, ten years ago, it fires; an hour ago everything has
        clock.advance(5 * MINUTE)
        scheduler.fire_due()
    wrong = {policy: set(times) - set(before[policy]) for policy, times in fired_by_policy(app).items()}
    assert wrong == dict.fromkeys(POLICIES, {75 + 5 * n - step / MINUTE for n in range(3)} if step > HOUR else set())
    clock.step(step)
    scheduler.fire_due()
    for policy, times in fired_by_policy(app).items():
        assert len(times) == len(set(times)), f"{policy} fired twice"
        made_up = {"coalesce": {85.0}, "skip": {85.0}, "catch_up": {75.0, 80.0, 85.0}}[policy]
        assert set(times) - set(before[policy]) - wrong[policy] == made_up


@pytest.mark.parametrize("policy", POLICIES)
def test_a_clock_that_trembles_around_an_occurrence_fires_it_once(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, policy: Any
) -> None:
    app.schedules.add("each", "*/5 * * * *", work, missed=policy)
    clock.advance(5 * MINUTE - 1)
    for step in (0.9, 0.2, -0.3, 0.5, -1, 1, -2, 2, -120, 120):
        clock.step(step)
        scheduler.fire_due()
    assert fired(app) == [5]


@pytest.mark.parametrize("clock_at", [-(10**15), 2**62], ids=["long ago", "beyond the calendar"])
def test_a_clock_out_of_its_mind_stops_nothing_for_good(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, clock_at: int
) -> None:
    add_all(app, work)
    offset = clock_at // SECOND - int(NOON.timestamp())
    clock.step(offset)
    with suppress(DamagedRow):  # where the database takes no such dates
        scheduler.fire_due()
    clock.step(-offset)
    before = len(app.jobs.list())
    scheduler.fire_due()
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    assert before <= 12
    assert all(times[-1] == 5 for times in fired_by_policy(app).values())


@pytest.mark.parametrize(
    ("start", "expression", "expected"),
    [
        (datetime(2026, 3, 28, 22, 30, tzinfo=UTC), "0 * * * *", [30, 90, 150, 210, 270, 330]),
        (datetime(2026, 3, 28, 22, 30, tzinfo=UTC), "30 2 * * *", [150]),
        (datetime(2026, 10, 24, 22, 30, tzinfo=UTC), "0 * * * *", [30, 90, 150, 210, 270, 330]),
        (datetime(2026, 10, 24, 22, 30, tzinfo=UTC), "30 2 * * *", [120]),
    ],
    ids=["hourly in spring", "fixed in spring", "hourly in autumn", "fixed in autumn"],
)
def test_clocks_that_change_for_summer_skip_and_double_nothing(
    open_app: Callable[..., Holdfast], start: datetime, expression: str, expected: list[float]
) -> None:
    clock = FakeClock(int(start.timestamp()) * SECOND)
    app = open_app(clock=clock)
    app.task(name="work")(lambda: None)
    scheduler = scheduler_of(app, clock)
    app.schedules.add("each", expression, "work", tz="Europe/Zurich")
    for _ in range(6 * 12):
        clock.advance(5 * MINUTE)
        scheduler.fire_due()
    assert fired(app, since=start) == expected


def test_only_the_newest_fires_are_kept_by_the_order_in_which_they_came(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, sql: Sql
) -> None:
    """A wrong clock, ten years ahead, must not make the right ones look old."""
    app.schedules.add("each", "* * * * *", work, missed="catch_up", catch_up_limit=1000)
    app.schedules.add("other", "@hourly", work)
    clock.step(10 * YEAR)
    fire_all(scheduler)
    clock.step(-10 * YEAR)
    clock.advance(1)
    fire_all(scheduler)
    clock.advance(600 * MINUTE)
    fire_all(scheduler)
    kept = [row[0] for row in sql("SELECT fire_at FROM holdfast_fires WHERE schedule = 'each' ORDER BY id")]
    assert len(kept) == 1000
    assert [minute / 60 / SECOND - NOON.timestamp() / 60 for minute in kept[-600:]] == list(range(1, 601))
    assert sql("SELECT count(*) FROM holdfast_fires WHERE schedule = 'other'") == [(2,)]


# --- several workers ---


def test_workers_that_look_at_once_enqueue_each_occurrence_once(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    apps = [open_app(clock=clock) for _ in range(2)]
    schedulers = []
    for app in apps:
        app.cron("* * * * *", name="coalesce")(lambda: None)
        app.cron("*/2 * * * *", name="catch_up", missed="catch_up")(lambda: None)
        schedulers += [scheduler_of(app, clock), scheduler_of(app, clock)]
    rounds, problems = 30, list[BaseException]()
    start, end = threading.Barrier(len(schedulers) + 1), threading.Barrier(len(schedulers) + 1)

    def look(scheduler: Scheduler) -> None:
        try:
            for _ in range(rounds):
                start.wait(PATIENCE_SECONDS)
                scheduler.fire_due()
                end.wait(PATIENCE_SECONDS)
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=look, args=(one,)) for one in schedulers]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        clock.advance(MINUTE)
        start.wait(PATIENCE_SECONDS)
        end.wait(PATIENCE_SECONDS)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert problems == []
    times = {
        task: [
            (job.run_at - NOON) / timedelta(minutes=1) for job in reversed(apps[0].jobs.list(task=task, limit=1000))
        ]
        for task in ("coalesce", "catch_up")
    }
    assert times == {"coalesce": list(range(1, 31)), "catch_up": list(range(2, 31, 2))}


def test_workers_that_start_at_once_store_a_declaration_once(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    apps = [open_app(clock=clock) for _ in range(4)]
    for app in apps:
        app.cron("@daily", name="tidy")(lambda: None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda app: scheduler_of(app, clock), apps))
    assert [one.name for one in apps[0].schedules.list()] == ["tidy"]
