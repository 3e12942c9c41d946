"""`@app.every(seconds)`: schedules by elapsed time; and schedules that an operator fires by hand."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.cron import occurrences
from holdfast.errors import InvalidInput, InvalidTask, ScheduleNotFound
from holdfast.testing import FakeClock, drain
from holdfast.worker.scheduler import Scheduler
from support.scheduling import NOON, POLICIES, fired, scheduler_of


def seconds_after_noon(app: Holdfast) -> list[float]:
    return [60 * minutes for minutes in fired(app)]


# --- every so many seconds ------------------------------------------------------------------------


def test_a_task_is_enqueued_every_so_many_seconds_without_drift(app: Holdfast, clock: FakeClock) -> None:
    @app.every(30)
    def tick() -> None: ...

    assert app.tasks["tick"] is tick
    clock.advance(10)
    scheduler = scheduler_of(app, clock)
    for late in (21, 29.5, 30, 31, 28.5):  # the worker looks at uneven times
        clock.advance(late)
        scheduler.fire_due()
    assert seconds_after_noon(app) == [30, 60, 90, 120, 150]


def test_it_takes_a_timedelta_and_the_options_of_cron(app: Holdfast, clock: FakeClock) -> None:
    @app.every(timedelta(minutes=5), missed="catch_up", catch_up_limit=2, queue="reports", name="five")
    def report() -> None: ...

    scheduler = scheduler_of(app, clock)
    schedule = app.schedules.get("five")
    assert (schedule.cron, schedule.tz, schedule.missed) == ("@every 300s", "UTC", "catch_up")
    assert (schedule.queue, schedule.next_at) == ("reports", NOON + timedelta(minutes=5))
    clock.advance(3600)
    scheduler.fire_due()
    assert fired(app) == [55, 60]


@pytest.mark.parametrize(("policy", "jobs"), list(zip(POLICIES, [1, 1, 60], strict=True)))
def test_what_was_missed_is_made_up_as_the_schedule_says(
    app: Holdfast, clock: FakeClock, policy: Any, jobs: int
) -> None:
    @app.every(60, missed=policy)
    def tick() -> None: ...

    scheduler = scheduler_of(app, clock)
    clock.advance(3630)
    scheduler.fire_due()
    assert len(fired(app)) == jobs
    assert fired(app)[-1] == 60


def test_an_interval_can_be_added_at_run_time(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    added = app.schedules.add("often", "@every  45s", work)
    assert (added.cron, added.next_at) == ("@every 45s", NOON + timedelta(seconds=45))
    clock.advance(45)
    scheduler.fire_due()
    assert seconds_after_noon(app) == [45]


@pytest.mark.parametrize(
    ("text", "seconds"), [("@every 90s", 90), ("@every 5m", 300), ("@every 2h", 7200), ("@every 1d", 86400)]
)
def test_units_of_intervals(text: str, seconds: int) -> None:
    start = 20_000 * 86_400 * 10**6  # midnight
    assert occurrences(text).after(start) == start + seconds * 10**6
    assert occurrences(text).newest(start, start + 3 * seconds * 10**6, 2) == [
        start + n * seconds * 10**6 for n in (2, 3)
    ]


@pytest.mark.parametrize("wrong", [0, 0.5, 1.5, -1, "30", None, True, 10**12])
def test_an_interval_must_be_whole_seconds(app: Holdfast, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="every must be a whole number of seconds, at least 1"):
        app.every(wrong)


@pytest.mark.parametrize("wrong", ["@every", "@every 5", "@every 0s", "@every 1.5s", "@every 5 weeks", "@every -1s"])
def test_an_expression_that_is_no_interval_is_refused(app: Holdfast, work: Task[..., None], wrong: str) -> None:
    with pytest.raises(InvalidInput, match="@every 30s"):
        app.schedules.add("often", wrong, work)


def test_a_task_with_required_arguments_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidTask, match="calls its task without arguments"):

        @app.every(30)
        def tick(n: int) -> None: ...


def test_drain_fires_intervals_on_the_way(app: Holdfast) -> None:
    @app.every(10)
    def tick() -> None: ...

    assert drain(app, seconds=60).succeeded == 6


# --- jitter ---------------------------------------------------------------------------------------


def test_jitter_delays_each_job_by_a_random_time(app: Holdfast, clock: FakeClock) -> None:
    @app.every(60, jitter=10)
    def tick() -> None: ...

    scheduler = scheduler_of(app, clock)
    for _ in range(20):
        clock.advance(60)
        scheduler.fire_due()
    late = [at - 60 * number for number, at in enumerate(seconds_after_noon(app), 1)]
    assert len(late) == 20
    assert all(0 <= one <= 10 for one in late)
    assert len(set(late)) > 10
    assert app.schedules.get("tick").jitter == 10


def test_cron_schedules_take_jitter_too(app: Holdfast, work: Task[..., None]) -> None:
    assert app.schedules.add("daily", "@daily", work, jitter=timedelta(minutes=5)).jitter == 300
    assert app.schedules.add("daily", "@daily", work).jitter == 0
    with pytest.raises(InvalidInput, match="jitter"):
        app.schedules.add("daily", "@daily", work, jitter=-1)


# --- by hand --------------------------------------------------------------------------------------


def test_a_schedule_can_be_run_by_hand(
    app: Holdfast, work: Task[..., None], scheduler: Scheduler, clock: FakeClock
) -> None:
    app.schedules.add("nightly", "0 0 * * *", work.using(queue="fast", tags=["t"]), {"n": 5})
    before = app.schedules.get("nightly").next_at
    job = app.schedules.run_now("nightly", actor="kim", reason="customer asked")
    assert (job.task, job.args, job.queue, job.tags, job.status) == ("work", {"n": 5}, "fast", ("t",), "ready")
    after = app.schedules.get("nightly")
    assert (after.next_at, after.last_job_id) == (before, job.id)
    (enqueued,) = app.jobs.history(job.id)
    assert enqueued.actor == "kim"
    event = app.observe.last_events(1)[0]
    assert (event.event, event.actor) == ("schedule_run", "kim")
    assert event.detail == {"schedule": "nightly", "job": job.id, "reason": "customer asked"}
    assert scheduler.fire_due() > 0


def test_a_paused_schedule_can_be_run_by_hand_and_stays_paused(app: Holdfast, work: Task[..., None]) -> None:
    app.schedules.add("nightly", "0 0 * * *", work)
    app.schedules.pause("nightly")
    assert app.schedules.run_now("nightly").status == "ready"
    assert app.schedules.get("nightly").paused


def test_a_run_by_hand_whose_key_is_taken_returns_that_job(app: Holdfast, work: Task[..., None]) -> None:
    app.schedules.add("nightly", "0 0 * * *", work.using(key="one"))
    first = app.schedules.run_now("nightly")
    again = app.schedules.run_now("nightly")
    assert (again.id, again.deduplicated) == (first.id, True)


def test_a_schedule_that_is_not_there_cannot_be_run(app: Holdfast) -> None:
    with pytest.raises(ScheduleNotFound, match="nightly"):
        app.schedules.run_now("nightly")
