"""Schedules at run time: added, paused, removed, refused, and edited by hand."""

import logging
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.cron import plan
from holdfast.errors import InvalidArguments, InvalidInput, InvalidTask, ScheduleNotFound
from holdfast.model.schedule import ScheduleRecord
from holdfast.testing import FakeClock
from holdfast.worker.scheduler import Scheduler
from support.backend import Backend
from support.refusals import told
from support.running_worker import RunningWorker, comes_true
from support.scheduling import MINUTE, NOON, POLICIES, YEAR, Sql, fire_all, fired, stored_fires

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


def test_schedules_are_listed_by_name_however_many(app: Holdfast, work: Task[..., None], backend: Backend) -> None:
    backend.sql_many(
        "INSERT INTO holdfast_schedules (name, cron, task) VALUES (?, '@daily', 'work')",
        [(f"s{number:05}",) for number in range(2500)],
    )
    names = [one.name for one in app.schedules.list()]
    assert len(names) == 2500 and names == sorted(names)


def test_all_that_are_due_fire_however_many(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    add_many(app, work, 250)
    clock.advance(5 * MINUTE)
    assert fire_all(scheduler) == 300.0
    assert fired(app) == [5] * 250


def add_many(app: Holdfast, task: Task[..., None], count: int, **options: Any) -> None:
    for number in range(count):
        app.schedules.add(f"s{number:04}", "*/5 * * * *", task, **options)


def test_many_that_are_due_fire_in_steps_of_a_few_transactions(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_many(app, work, 250)
    clock.advance(5 * MINUTE)
    transactions: list[int] = []
    run = app.store.database.run  # type: ignore[attr-defined]
    monkeypatch.setattr(app.store.database, "run", lambda *given, **how: transactions.append(1) or run(*given, **how))  # type: ignore[attr-defined]
    assert scheduler.fire_due() == 0.0, "there are more"
    assert (len(transactions), len(fired(app))) == (2, 200)
    assert scheduler.fire_due() == 300.0
    assert (len(transactions), len(fired(app))) == (3, 250)


def test_a_step_is_bounded_by_the_number_of_jobs_as_well(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    add_many(app, work, 5, missed="catch_up", catch_up_limit=400)
    clock.advance(400 * 5 * MINUTE)
    assert scheduler.fire_due() == 0.0
    assert app.jobs.count() == 1200
    assert fire_all(scheduler) == 300.0
    assert app.jobs.count() == 2000


def test_one_that_cannot_be_enqueued_keeps_the_others_of_its_transaction_from_nothing(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    add_many(app, work, 3)
    clock.advance(5 * MINUTE)
    job = ScheduleRecord.job

    def refuse(self: ScheduleRecord, fire_at: int, *more: Any) -> Any:
        if self.name == "s0001":
            raise TypeError("not a number")
        return job(self, fire_at, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScheduleRecord, "job", refuse)
        fire_all(scheduler)
    assert len(fired(app)) == 2
    assert "schedule 's0001' cannot fire" in caplog.text


def test_a_worker_stops_and_runs_jobs_while_many_schedules_catch_up(
    app: Holdfast, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is short, and housekeeping looks whether the worker is to stop before the next one."""
    ran = threading.Event()

    @app.task
    def innocent() -> None:
        ran.set()

    @app.task
    def scheduled() -> None: ...

    add_many(app, scheduled, 1000)
    clock.advance(5 * MINUTE)
    steps: list[int] = []
    fire_due = Scheduler.fire_due

    def step(self: Scheduler) -> float:
        steps.append(1)
        seconds = fire_due(self)
        if len(steps) == 2:
            innocent.enqueue()
            comes_true(ran, "a job runs while there are more")
            running.worker.stop()
        return seconds

    monkeypatch.setattr(Scheduler, "fire_due", step)
    with RunningWorker(app, concurrency=2, grace=60) as running:
        running.report()
    assert len(steps) == 2
    assert app.jobs.count(task="scheduled") == 400


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
    seen = next(iter(app.store.schedules.list(name="each")), None)
    assert seen is not None
    app.schedules.pause("each")
    assert app.store.schedules.fire([(seen, plan(seen, clock.now()))]) == []
    app.schedules.resume("each")
    assert app.store.schedules.fire([(seen, plan(seen, clock.now()))]) == []
    assert fired(app) == []


def test_a_pause_by_hand_counts_too(app: Holdfast, work: Task[..., None], clock: FakeClock, sql: Sql) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    seen = next(iter(app.store.schedules.list(name="each")), None)
    assert seen is not None
    sql("UPDATE holdfast_schedules SET paused_at = 1")
    assert app.store.schedules.fire([(seen, plan(seen, clock.now()))]) == []


def test_a_change_between_the_look_and_the_fire_wins(app: Holdfast, work: Task[..., None], clock: FakeClock) -> None:
    app.schedules.add("each", "* * * * *", work, {"n": 1})
    clock.advance(MINUTE)
    seen = next(iter(app.store.schedules.list(name="each")), None)
    assert seen is not None
    app.schedules.add("each", "* * * * *", work, {"n": 2})
    assert app.store.schedules.fire([(seen, plan(seen, clock.now()))]) == []
    app.schedules.remove("each")
    assert app.store.schedules.fire([(seen, plan(seen, clock.now()))]) == []
    assert fired(app) == []


def test_a_clock_set_back_between_the_plan_and_the_fire_enqueues_nothing_from_the_future(
    app: Holdfast, work: Task[..., None], clock: FakeClock
) -> None:
    app.schedules.add("each", "* * * * *", work)
    clock.advance(MINUTE)
    seen = next(iter(app.store.schedules.list(name="each")), None)
    assert seen is not None
    made = plan(seen, clock.now())
    clock.step(-10 * YEAR)
    assert app.store.schedules.fire([(seen, made)]) == []
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


def test_what_operators_do_is_in_the_log(app: Holdfast, work: Task[..., None]) -> None:
    app.schedules.add("each", "@daily", work, actor="ada")
    app.schedules.add("each", "@daily", work, actor="nobody changes nothing")
    app.schedules.add("each", "@hourly", work, tz="Europe/Zurich", actor="bob")
    app.schedules.pause("each", actor="cy")
    app.schedules.resume("each", actor="dee")
    app.schedules.remove("each", actor="eve")
    daily = {"schedule": "each", "cron": "@daily", "tz": "UTC", "task": "work"}
    assert [(one.event, one.actor, one.detail) for one in app.observe.events()] == [
        ("schedule_added", "ada", daily),
        ("schedule_changed", "bob", daily | {"cron": "@hourly", "tz": "Europe/Zurich"}),
        ("schedule_paused", "cy", {"schedule": "each"}),
        ("schedule_resumed", "dee", {"schedule": "each"}),
        ("schedule_removed", "eve", {"schedule": "each"}),
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
    for options in ({"delay": 5}, {"run_at": later}, {"key": "k", "key_window": 5}):
        with told(InvalidInput, "a schedule does not take", "queue, priority"):
            add("x", "@daily", work.using(**options))
    with told(InvalidArguments, "wrong type"):
        add("x", "@daily", work, {"n": "five"})
    with told(InvalidArguments, "unknown argument 'm'"):
        add("x", "@daily", work, {"m": 5})
    with told(InvalidArguments, "args must be a mapping"):
        add("x", "@daily", work, [5])
    assert app.schedules.list() == []


def test_a_task_of_another_app_is_refused(
    app: Holdfast, work: Task[..., None], open_app: Callable[..., Holdfast]
) -> None:
    with told(InvalidInput, "another app"):
        open_app().schedules.add("x", "@daily", work)
    with told(InvalidTask, "another app"):
        open_app().cron("@daily")(work)


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
    record = next(iter(app.store.schedules.list(name="each")), None)
    assert "the-secret" not in f"{one!r}{record!r}{app.schedules!r}"
    assert repr(one) == "<Schedule each: work at '@daily' UTC, next 2026-06-18 00:00 UTC>"
    app.schedules.pause("each")
    assert repr(app.schedules.get("each")) == "<Schedule each: work at '@daily' UTC, paused>"


def test_a_schedule_tells_its_next_occurrences_and_its_last_runs(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    schedule = app.schedules.add("hourly", "0 * * * *", work)
    assert schedule.in_words == "every hour"
    times = schedule.upcoming()
    assert (len(times), times[0]) == (5, schedule.next_at)
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(hours=1)}
    assert app.schedules.runs("hourly") == []
    ids = []
    for _ in range(3):
        clock.advance(3600)
        scheduler.fire_due()
        ids.append(app.jobs.list(limit=1)[0].id)
    app.jobs.complete(ids[1])
    app.jobs.delete(ids[0])
    runs = app.schedules.runs("hourly")
    assert [(run.job_id, run.status) for run in runs] == [(ids[2], "ready"), (ids[1], "succeeded"), (ids[0], None)]
    assert [run.at for run in runs] == list(reversed(times[:3]))
    assert len(app.schedules.runs("hourly", limit=1)) == 1
    app.schedules.pause("hourly")
    assert app.schedules.get("hourly").upcoming() == []
