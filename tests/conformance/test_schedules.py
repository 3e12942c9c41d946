"""Cron schedules: added at run time or declared in code, and each occurrence one job, whatever the clock does."""

import logging
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Task
from holdfast.clock import SECOND
from holdfast.cron import plan
from holdfast.errors import InvalidArguments, InvalidInput, InvalidTask, ScheduleNotFound
from holdfast.run.scheduler import Scheduler
from holdfast.testing import FakeClock
from refusals import told

Sql = Callable[..., list[Any]]

NOON = datetime(2026, 6, 17, 12, tzinfo=UTC)
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 365 * 86_400
POLICIES = ["coalesce", "skip", "catch_up"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(int(NOON.timestamp()) * SECOND)


@pytest.fixture
def work(app: Holdfast) -> Task[..., None]:
    @app.task(queue="slow", priority=3, max_attempts=2, timeout=9)
    def work(n: int = 0, word: str = "") -> None: ...

    return work


def scheduler_of(app: Holdfast, clock: FakeClock) -> Scheduler:
    """What a worker of this app starts with."""
    one = Scheduler(app.store, clock, app.tasks, app.schedules.declared.values())
    one.store_declared()
    return one


@pytest.fixture
def scheduler(app: Holdfast, work: Task[..., None], clock: FakeClock) -> Scheduler:
    return scheduler_of(app, clock)


def fired(app: Holdfast, *, since: datetime = NOON) -> list[float]:
    """The minutes after noon of every job, oldest first."""
    return [(job.run_at - since) / timedelta(minutes=1) for job in reversed(app.jobs.list(limit=1000))]


def stored_fires(sql: Sql) -> int:
    ((number,),) = sql("SELECT count(*) FROM holdfast_fires")
    assert isinstance(number, int)
    return number


# --- at run time ---


def test_an_added_schedule_is_there_with_all_that_was_said(app: Holdfast, work: Task[..., None]) -> None:
    bound = work.using(queue="fast", priority=7, max_attempts=9, timeout=30, key="only-one", tags=["nightly"])
    added = app.schedules.add(
        "nightly", " 30  6 * * MON-FRI ", bound, {"n": 5}, tz="Europe/Zurich", missed="catch_up", catch_up_limit=7
    )
    for one in (added, app.schedules.get("nightly"), *app.schedules.list()):
        assert (one.name, one.cron, one.tz, one.task, one.args) == (
            "nightly",
            "30 6 * * MON-FRI",
            "Europe/Zurich",
            "work",
            {"n": 5},
        )
        assert (one.queue, one.priority, one.max_attempts, one.timeout, one.key) == ("fast", 7, 9, 30.0, "only-one")
        assert (one.missed, one.catch_up_limit, one.source, one.paused) == ("catch_up", 7, "runtime", False)
        assert one.next_at == datetime(2026, 6, 18, 4, 30, tzinfo=UTC)
        assert (one.last_at, one.last_job_id) == (None, None)


def test_without_more_said_a_schedule_has_the_options_of_its_task(app: Holdfast, work: Task[..., None]) -> None:
    for one in (app.schedules.add("a", "@daily", work), app.schedules.add("b", "@daily", "work")):
        assert (one.queue, one.priority, one.max_attempts, one.timeout) == ("slow", 3, 2, 9.0)
        assert (one.tz, one.missed, one.catch_up_limit, one.args) == ("UTC", "coalesce", 100, {})


def test_an_occurrence_becomes_a_job_with_the_schedules_arguments_and_options(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    bound = work.using(queue="fast", priority=7, max_attempts=9, timeout=30, tags=["t"])
    app.schedules.add("each", "*/5 * * * *", bound, {"n": 5, "word": "hi"})
    clock.advance(5 * MINUTE + 2)
    scheduler.fire_due()
    (job,) = app.jobs.list()
    assert (job.task, job.args, job.status) == ("work", {"n": 5, "word": "hi"}, "ready")
    assert (job.queue, job.priority, job.max_attempts, job.timeout, job.tags) == ("fast", 7, 9, 30.0, ("t",))
    assert (job.run_at, job.created_at) == (NOON + timedelta(minutes=5), NOON + timedelta(minutes=5, seconds=2))
    (event,) = app.jobs.history(job.id)
    assert (event.name, event.actor) == ("enqueued", "cron:each")
    after = app.schedules.get("each")
    assert (after.last_at, after.last_job_id) == (job.run_at, job.id)
    assert after.next_at == NOON + timedelta(minutes=10)


def test_nothing_fires_before_its_time_and_what_was_before_it_was_added_never(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("each", "*/5 * * * *", work)
    assert scheduler.fire_due() == 300.0
    clock.advance(299)
    assert scheduler.fire_due() == 1.0
    assert fired(app) == []
    clock.advance(1)
    assert scheduler.fire_due() == 300.0
    assert fired(app) == [5]


def test_looking_again_does_not_fire_again(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("each", "*/5 * * * *", work)
    for _ in range(40):
        clock.advance(30)
        scheduler.fire_due()
        scheduler.fire_due()
    assert fired(app) == [5, 10, 15, 20]


def test_without_schedules_there_is_nothing_to_wait_for(app: Holdfast, scheduler: Scheduler) -> None:
    assert scheduler.fire_due() == math.inf


def test_a_schedule_added_by_another_process_is_noticed_within_a_second(
    app: Holdfast, scheduler: Scheduler, open_app: Callable[..., Holdfast], work: Task[..., None], clock: FakeClock
) -> None:
    scheduler.fire_due()
    other = open_app(clock=clock)
    other.task(work.function)
    other.schedules.add("each", "* * * * *", "work")
    clock.advance(1)
    assert scheduler.fire_due() == 59.0


def test_the_scheduler_waits_for_the_soonest_of_several(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("daily", "@daily", work)
    app.schedules.add("hourly", "30 * * * *", work)
    assert scheduler.fire_due() == 30 * MINUTE


def test_adding_again_changes_the_schedule_of_that_name(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("each", "*/5 * * * *", work)
    clock.advance(4 * MINUTE)
    app.schedules.add("each", "*/10 * * * *", work, {"n": 2})
    clock.advance(6 * MINUTE)
    scheduler.fire_due()
    assert (fired(app), app.jobs.list()[0].args) == ([10], {"n": 2})
    assert len(app.schedules.list()) == 1


def test_a_key_keeps_occurrences_from_piling_up(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("each", "*/5 * * * *", work.using(key="one-at-a-time"))
    for _ in range(3):
        clock.advance(5 * MINUTE)
        scheduler.fire_due()
    assert fired(app) == [5]
    app.jobs.cancel(app.jobs.list()[0].id)
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    assert fired(app) == [5, 20]


def test_schedules_are_listed_by_name_however_many(app: Holdfast, work: Task[..., None], sql: Sql) -> None:
    sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) "
        "INSERT INTO holdfast_schedules (name, cron, task) SELECT printf('s%05d', i), '@daily', 'work' FROM n"
    )
    names = [one.name for one in app.schedules.list()]
    assert len(names) == 2500 and names == sorted(names)


def test_all_that_are_due_fire_however_many(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    for number in range(250):
        app.schedules.add(f"s{number}", "*/5 * * * *", work)
    clock.advance(5 * MINUTE)
    assert scheduler.fire_due() == 300.0
    assert fired(app) == [5] * 250


# --- pause, resume, remove ---


def test_a_paused_schedule_does_not_fire_and_a_resumed_one_does_not_make_up_for_it(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    for policy in POLICIES:
        app.schedules.add(policy, "*/5 * * * *", work, missed=policy)  # type: ignore[arg-type]
        assert app.schedules.pause(policy) is True
        assert app.schedules.get(policy).paused and app.schedules.get(policy).next_at is None
    clock.advance(60 * MINUTE)
    assert scheduler.fire_due() == math.inf
    for policy in POLICIES:
        assert app.schedules.resume(policy) is True
        assert app.schedules.get(policy).next_at == NOON + timedelta(minutes=65)
    clock.advance(MINUTE)
    scheduler.fire_due()
    assert fired(app) == []
    clock.advance(4 * MINUTE)
    scheduler.fire_due()
    assert fired(app) == [65, 65, 65]


def test_a_pause_between_the_look_and_the_fire_wins(app: Holdfast, work: Task[..., None], clock: FakeClock) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    seen = app.store.schedule("each")
    assert seen is not None
    app.schedules.pause("each")
    assert app.store.fire(seen, plan(seen, clock.now())) == []
    app.schedules.resume("each")
    assert app.store.fire(seen, plan(seen, clock.now())) == []
    assert fired(app) == []


def test_a_pause_by_hand_counts_too(app: Holdfast, work: Task[..., None], clock: FakeClock, sql: Sql) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    seen = app.store.schedule("each")
    assert seen is not None
    sql("UPDATE holdfast_schedules SET paused_at = 1")
    assert app.store.fire(seen, plan(seen, clock.now())) == []


def test_a_change_between_the_look_and_the_fire_wins(app: Holdfast, work: Task[..., None], clock: FakeClock) -> None:
    app.schedules.add("each", "* * * * *", work, {"n": 1})
    clock.advance(MINUTE)
    seen = app.store.schedule("each")
    assert seen is not None
    app.schedules.add("each", "* * * * *", work, {"n": 2})
    assert app.store.fire(seen, plan(seen, clock.now())) == []
    app.schedules.remove("each")
    assert app.store.fire(seen, plan(seen, clock.now())) == []
    assert fired(app) == []


def test_a_clock_set_back_between_the_plan_and_the_fire_enqueues_nothing_from_the_future(
    app: Holdfast, work: Task[..., None], clock: FakeClock
) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    seen = app.store.schedule("each")
    assert seen is not None
    made = plan(seen, clock.now())
    clock.step(-10 * YEAR)
    assert app.store.fire(seen, made) == []
    assert fired(app) == []


def test_pausing_twice_changes_nothing_the_second_time(app: Holdfast, work: Task[..., None]) -> None:
    app.schedules.add("each", "@daily", work)
    assert [app.schedules.pause("each"), app.schedules.pause("each")] == [True, False]
    assert [app.schedules.resume("each"), app.schedules.resume("each")] == [True, False]


def test_a_removed_schedule_is_gone_with_its_fires_and_its_jobs_stay(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, sql: Sql
) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    scheduler.fire_due()
    assert stored_fires(sql) == 1
    app.schedules.remove("each")
    clock.advance(MINUTE)
    assert scheduler.fire_due() == math.inf
    assert (app.schedules.list(), stored_fires(sql), fired(app)) == ([], 0, [1])


@pytest.mark.parametrize("action", ["get", "pause", "resume", "remove"])
def test_an_unknown_schedule_is_told(app: Holdfast, action: str) -> None:
    with told(ScheduleNotFound, "nothing", "app.schedules.list()"):
        getattr(app.schedules, action)("nothing")


def test_what_operators_do_is_in_the_log(app: Holdfast, work: Task[..., None], sql: Sql) -> None:
    app.schedules.add("each", "@daily", work, actor="ada")
    app.schedules.add("each", "@daily", work, actor="nobody changes nothing")
    app.schedules.add("each", "@hourly", work, tz="Europe/Zurich", actor="bob")
    app.schedules.pause("each", actor="cy")
    app.schedules.resume("each", actor="dee")
    app.schedules.remove("each", actor="eve")
    assert sql("SELECT event, actor, detail FROM holdfast_events ORDER BY id") == [
        ("schedule_added", "ada", '{"schedule":"each","cron":"@daily","tz":"UTC","task":"work"}'),
        ("schedule_changed", "bob", '{"schedule":"each","cron":"@hourly","tz":"Europe/Zurich","task":"work"}'),
        ("schedule_paused", "cy", '{"schedule":"each"}'),
        ("schedule_resumed", "dee", '{"schedule":"each"}'),
        ("schedule_removed", "eve", '{"schedule":"each"}'),
    ]


# --- what is refused ---


def test_a_bad_schedule_is_refused_and_nothing_is_stored(app: Holdfast, work: Task[..., None]) -> None:
    later = datetime(2030, 1, 1, tzinfo=UTC)
    add: Any = app.schedules.add
    with told(InvalidInput, "'61'", "minute"):
        add("x", "61 * * * *", work)
    with told(InvalidInput, "Europe/Zurich"):
        add("x", "@daily", work, tz="Europe/Zurick")
    with told(InvalidInput, "schedule name", "1 to 200"):
        add("", "@daily", work)
    with told(InvalidInput, "missed", "coalesce", "skip", "catch_up"):
        add("x", "@daily", work, missed="all")
    with told(InvalidInput, "catch_up_limit", "missed='catch_up'"):
        add("x", "@daily", work, catch_up_limit=5)
    for bad in (0, 1001, True, 1.5):
        with told(InvalidInput, "catch_up_limit"):
            add("x", "@daily", work, missed="catch_up", catch_up_limit=bad)
    with told(InvalidInput, "unknown task 'wrok'", "did you mean 'work'"):
        add("x", "@daily", "wrok")
    with told(InvalidInput, "task"):
        add("x", "@daily", work.function)
    for options in ({"delay": 5}, {"run_at": later}, {"key": "k", "key_window": 5}, {"conn": None}):
        with told(InvalidInput, "a schedule cannot use", "queue, priority"):
            add("x", "@daily", work.using(**options))
    with told(InvalidArguments, "wrong type"):
        add("x", "@daily", work, {"n": "five"})
    with told(InvalidArguments, "unexpected", "'m'"):
        add("x", "@daily", work, {"m": 5})
    with told(InvalidArguments, "by name"):
        add("x", "@daily", work, [5])
    assert app.schedules.list() == []


def test_a_task_of_another_app_is_refused(
    app: Holdfast, work: Task[..., None], open_app: Callable[..., Holdfast]
) -> None:
    with told(InvalidInput, "another app"):
        open_app().schedules.add("x", "@daily", work)
    with told(InvalidTask, "another app"):
        open_app().cron("@daily")(work)


# --- @app.cron ---


def test_a_declared_schedule_is_stored_when_a_worker_starts_and_not_before(app: Holdfast, clock: FakeClock) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Zurich", queue="night", priority=2, max_attempts=1, missed="skip")
    def tidy() -> None: ...

    assert isinstance(tidy, Task) and app.tasks["tidy"] is tidy
    assert (tidy.options.queue, tidy.options.priority, tidy.options.max_attempts) == ("night", 2, 1)
    assert app.schedules.list() == []
    scheduler = scheduler_of(app, clock)
    (stored,) = app.schedules.list()
    assert (stored.name, stored.source, stored.task, stored.queue) == ("tidy", "code", "tidy", "night")
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    assert [(job.task, job.queue, job.args) for job in app.jobs.list()] == [("tidy", "night", {})]


def test_cron_may_stand_above_task_and_more_than_once(app: Holdfast, clock: FakeClock) -> None:
    @app.cron("0 18 * * *", name="evening")
    @app.cron("0 6 * * *", name="morning")
    @app.task(queue="mail")
    async def greet(ctx: Context, name: str = "all") -> None: ...

    assert app.tasks == {"greet": greet}
    assert {one.name: one.task for one in app.schedules.declared.values()} == {"evening": "greet", "morning": "greet"}
    scheduler = scheduler_of(app, clock)
    clock.advance(DAY)
    scheduler.fire_due()
    assert fired(app) == [6 * 60, 18 * 60]


def test_a_declaration_that_cannot_work_is_refused_at_once(app: Holdfast) -> None:
    def needs(row: int, deep: bool = True) -> None: ...

    def fine() -> None: ...

    with told(InvalidTask, "needs", "row", "app.schedules.add"):
        app.cron("@daily")(needs)
    with told(InvalidInput, "five fields"):
        app.cron("every day")
    with told(InvalidInput, "text"):
        app.cron(fine)  # type: ignore[arg-type]
    with told(InvalidInput, "did you mean 'queue'"):
        app.cron("@daily", queu="x")  # type: ignore[call-arg]
    task = app.cron("@daily")(fine)
    with told(InvalidTask, "'fine' is taken", "name="):
        app.cron("@hourly")(task)
    with told(InvalidTask, "a task already", "queue"):
        app.cron("@hourly", name="second", queue="x")(task)
    with told(InvalidInput, "@app.cron", "another name"):
        app.schedules.add("fine", "@daily", task)
    assert list(app.schedules.declared) == ["fine"]


def test_a_module_that_is_loaded_again_declares_again(app: Holdfast) -> None:
    def load(expression: str) -> None:
        @app.cron(expression)
        def tidy() -> None: ...

    load("@daily")
    load("@hourly")
    assert [one.cron for one in app.schedules.declared.values()] == ["@hourly"]


def test_an_unchanged_declaration_keeps_its_place_over_a_restart(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(expression: str) -> tuple[Holdfast, Scheduler]:
        app = open_app(clock=clock)
        app.cron(expression, name="tidy")(lambda: None)
        return app, scheduler_of(app, clock)

    first, scheduler = start("*/5 * * * *")
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    first.close()
    clock.advance(20 * MINUTE)  # nobody is there
    second, scheduler = start("*/5 * * * *")
    scheduler.fire_due()
    assert fired(second) == [5, 25]
    second.close()
    clock.advance(20 * MINUTE)
    third, scheduler = start("*/15 * * * *")  # another expression: it counts from now, at 12:45
    scheduler.fire_due()
    assert fired(third) == [5, 25]
    clock.advance(15 * MINUTE)
    scheduler.fire_due()
    assert fired(third) == [5, 25, 60]


def test_another_option_of_a_declaration_is_stored_and_its_place_kept(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(queue: str) -> tuple[Holdfast, Scheduler]:
        app = open_app(clock=clock)
        app.cron("*/5 * * * *", name="tidy", queue=queue)(lambda: None)
        return app, scheduler_of(app, clock)

    start("old")
    clock.advance(5 * MINUTE)
    app, scheduler = start("new")
    scheduler.fire_due()
    assert [job.queue for job in app.jobs.list()] == ["new"]


def test_what_an_operator_paused_stays_paused_over_a_restart_and_a_change(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(expression: str) -> tuple[Holdfast, Scheduler]:
        app = open_app(clock=clock)
        app.cron(expression, name="tidy")(lambda: None)
        return app, scheduler_of(app, clock)

    app, _ = start("* * * * *")
    app.schedules.pause("tidy")
    for expression in ("* * * * *", "*/2 * * * *"):
        app, scheduler = start(expression)
        clock.advance(10 * MINUTE)
        scheduler.fire_due()
        assert app.schedules.get("tidy").paused
        assert fired(app) == []


def test_what_the_code_has_no_more_does_not_fire_and_can_be_removed(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    old, new = open_app(clock=clock), open_app(clock=clock)
    old.cron("* * * * *", name="tidy")(lambda: None)
    new.task(name="tidy")(lambda: None)  # it knows the task, and has no @app.cron for it
    of_old, of_new = scheduler_of(old, clock), scheduler_of(new, clock)
    clock.advance(MINUTE)
    assert of_new.fire_due() == math.inf
    assert fired(new) == []
    of_old.fire_due()
    assert fired(new) == [1]
    with told(InvalidInput, "@app.cron", "remove"):
        new.schedules.add("tidy", "@daily", "tidy")
    new.schedules.remove("tidy")
    assert new.schedules.add("tidy", "@daily", "tidy").source == "runtime"


def test_the_code_takes_over_a_schedule_that_was_added_under_the_same_name(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    first = open_app(clock=clock)
    first.task(name="tidy")(lambda: None)
    first.schedules.add("tidy", "@daily", "tidy")
    second = open_app(clock=clock)
    second.cron("@hourly", name="tidy")(lambda: None)
    scheduler_of(second, clock)
    (stored,) = first.schedules.list()
    assert (stored.source, stored.cron) == ("code", "@hourly")


def test_a_schedule_of_a_task_without_code_here_is_left_to_who_has_it(
    app: Holdfast, work: Task[..., None], open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    stranger = open_app(clock=clock)
    stranger.task(name="other")(lambda: None)
    app.schedules.add("each", "* * * * *", work)
    of_stranger, of_app = scheduler_of(stranger, clock), scheduler_of(app, clock)
    clock.advance(MINUTE)
    assert of_stranger.fire_due() == math.inf
    assert fired(app) == []
    of_app.fire_due()
    assert fired(app) == [1]


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
    scheduler.fire_due()
    clock.step(-10 * YEAR)
    clock.advance(1)
    scheduler.fire_due()
    clock.advance(600 * MINUTE)
    scheduler.fire_due()
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
                start.wait(30)
                scheduler.fire_due()
                end.wait(30)
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=look, args=(one,)) for one in schedulers]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        clock.advance(MINUTE)
        start.wait(30)
        end.wait(30)
    for thread in threads:
        thread.join(30)
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
    threads = [threading.Thread(target=scheduler_of, args=(app, clock)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.name for one in apps[0].schedules.list()] == ["tidy"]


# --- edited by hand ---


def test_a_damaged_schedule_is_told_once_and_does_not_stop_the_others(
    app: Holdfast,
    work: Task[..., None],
    scheduler: Scheduler,
    clock: FakeClock,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("a", "b", "c"):
        app.schedules.add(name, "* * * * *", work)
    sql("UPDATE holdfast_schedules SET cron = 'now and then' WHERE name = 'a'")
    sql("UPDATE holdfast_schedules SET tz = 'Mars/Olympus' WHERE name = 'b'")
    with caplog.at_level(logging.ERROR, "holdfast.cron"):
        for _ in range(3):
            clock.advance(MINUTE)
            assert scheduler.fire_due() == MINUTE
    assert fired(app) == [1, 2, 3]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "schedule 'a' cannot fire until it is added again",
        "schedule 'b' cannot fire until it is added again",
    ]
    assert len(app.schedules.list()) == 3
    app.schedules.add("a", "* * * * *", work)
    clock.advance(MINUTE)
    scheduler.fire_due()
    assert fired(app) == [1, 2, 3, 4, 4]


def test_a_schedule_by_plain_sql_fires_from_then_on(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, sql: Sql
) -> None:
    sql(
        "INSERT INTO holdfast_schedules (name, cron, task, handled_at) VALUES ('plain', '*/5 * * * *', 'work', ?)",
        (clock.now(),),
    )
    assert app.schedules.get("plain").next_at is None
    assert scheduler.fire_due() == 300.0
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    assert fired(app) == [5]


def test_no_repr_of_a_schedule_shows_its_arguments(app: Holdfast, work: Task[..., None]) -> None:
    one = app.schedules.add("each", "@daily", work, {"word": "the-secret"})
    record = app.store.schedule("each")
    assert "the-secret" not in f"{one!r}{record!r}{app.schedules!r}"
    assert repr(one) == "<Schedule each: work at '@daily' UTC, next 2026-06-18 00:00 UTC>"
    app.schedules.pause("each")
    assert repr(app.schedules.get("each")) == "<Schedule each: work at '@daily' UTC, paused>"
