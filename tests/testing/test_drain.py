"""`drain` runs due jobs in the calling thread, on a clock that jumps to the next due time."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, JobError, Retry, Snooze, Then
from holdfast.clock import SECOND
from holdfast.errors import InvalidInput, NeverIdle
from holdfast.model.job import NewJob
from holdfast.testing import Drained, FakeClock, Ran, drain, inline

MINUTE = 60 * SECOND


def test_ready_jobs_run_and_are_reported(app: Holdfast) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    job = double.enqueue(4)
    drained = drain(app)
    assert list(drained) == [Ran(job.id, "double", 1, "succeeded")]
    assert (job.refresh().status, job.result) == ("succeeded", 8)
    assert drained.succeeded == 1 and repr(drained) == "<Drained: 1 succeeded>"


def test_an_empty_queue_drains_to_nothing(app: Holdfast, clock: FakeClock) -> None:
    now = clock.now()
    drained = drain(app)
    assert (len(drained), repr(drained), clock.now()) == (0, "<Drained: nothing to run>", now)


def test_jobs_run_in_the_order_of_a_worker(app: Holdfast) -> None:
    ran: list[str] = []

    @app.task
    def work(name: str) -> None:
        ran.append(name)
        if name == "first":
            work.using(priority=10).enqueue("urgent")

    for name in ("first", "second"):
        work.enqueue(name)
    work.using(priority=5).enqueue("before")
    drain(app)
    assert ran == ["before", "first", "urgent", "second"]


def test_the_clock_jumps_to_the_next_due_time(app: Holdfast, clock: FakeClock) -> None:
    start, at = clock.now(), []
    task = app.task(name="work")(lambda: at.append(clock.now() - start))
    for delay in (3600, 60, 7.5, 0):
        task.using(delay=delay).enqueue()
    assert drain(app).succeeded == 4
    assert at == [0, 7.5 * SECOND, MINUTE, 60 * MINUTE]


def test_retries_follow_the_retry_policy(app: Holdfast, clock: FakeClock) -> None:
    start, at = clock.now(), []

    @app.task(retry=[10, 20, 30], max_attempts=4)
    def work() -> None:
        at.append((clock.now() - start) // SECOND)
        raise JobError("DEPENDENCY:DOWN", "still")

    job = work.enqueue()
    drained = drain(app)
    assert at == [0, 10, 30, 60]
    assert [one.outcome for one in drained] == ["retried", "retried", "retried", "failed"]
    assert (drained.retried, drained.failed, len(drained.errors)) == (3, 1, 4)
    assert (job.refresh().status, job.attempt, job.error_code) == ("failed", 4, "DEPENDENCY:DOWN")


def test_every_outcome_is_counted(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context, what: str) -> Any:
        if ctx.attempt > 1:
            return None
        app.jobs.cancel(ctx.job_id) if what == "lost" else None
        outcomes = {"retry": Retry(), "snooze": Snooze(1), "cancel": Cancel(), "fail": Fail("RESOURCE:GONE")}
        return outcomes.get(what)

    for what in ("retry", "snooze", "cancel", "fail", "lost"):
        work.enqueue(what)
    drained = drain(app)
    counts = (drained.succeeded, drained.retried, drained.snoozed, drained.cancelled, drained.failed, drained.lost)
    assert counts == (2, 1, 1, 1, 1, 1)
    assert drained.errors == []


def test_a_snooze_does_not_use_up_attempts(app: Holdfast, clock: FakeClock) -> None:
    start = clock.now()

    @app.task(max_attempts=1)
    def poll() -> Any:
        return "there" if clock.now() >= start + 10 * MINUTE else Snooze(60)

    job = poll.enqueue()
    assert repr(drain(app)) == "<Drained: 10 snoozed, 1 succeeded>"
    assert job.refresh().result == "there"


def test_times_are_those_of_the_fake_clock(app: Holdfast, clock: FakeClock) -> None:
    @app.task
    def slow() -> Any:
        clock.advance(5)
        return Retry(after=10)

    job = slow.using(max_attempts=2).enqueue()
    drain(app)
    assert job.refresh().started_at is not None and job.finished_at is not None
    assert job.finished_at - job.created_at == timedelta(seconds=5 + 10 + 5)
    assert job.finished_at - job.started_at == timedelta(seconds=5)


def test_a_handler_that_moves_the_clock_by_years_keeps_its_job(app: Holdfast, clock: FakeClock) -> None:
    @app.task
    def slow() -> None:
        clock.advance(10 * 365 * 24 * 3600)
        drain(app)

    slow.enqueue()
    assert repr(drain(app)) == "<Drained: 1 succeeded>"


def test_drain_does_not_wait_on_a_real_clock(open_app: Callable[..., Holdfast]) -> None:
    app = open_app()
    task = app.task(name="work")(lambda: None)
    later, now = task.using(delay=60).enqueue(), task.enqueue()
    assert drain(app).succeeded == 1
    assert (now.refresh().status, later.refresh().status) == ("succeeded", "scheduled")
    with pytest.raises(InvalidInput, match="FakeClock"):
        drain(app, seconds=60)


# --- until a moment ---


def test_seconds_advances_the_clock_by_that_much(app: Holdfast, clock: FakeClock) -> None:
    task = app.task(name="work")(lambda: None)
    soon, later = task.using(delay=60).enqueue(), task.using(delay=61).enqueue()
    start = clock.now()
    assert drain(app, seconds=60).succeeded == 1
    assert (soon.refresh().status, later.refresh().status) == ("succeeded", "scheduled")
    assert clock.now() == start + MINUTE
    drain(app, seconds=timedelta(hours=1))
    assert clock.now() == start + 61 * MINUTE and later.refresh().status == "succeeded"


def test_until_advances_the_clock_to_that_time(app: Holdfast, clock: FakeClock) -> None:
    end = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(hours=1)
    drain(app, until=end)
    assert clock.now() == end.timestamp() * SECOND
    drain(app, until=end - timedelta(hours=1))
    assert clock.now() == end.timestamp() * SECOND, "time does not run backwards"


@pytest.mark.parametrize(
    "options",
    [
        {"until": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"until": 5},
        {"seconds": -1},
        {"seconds": 1, "until": datetime(2030, 1, 1, tzinfo=UTC)},
        {"limit": 0},
        {"raise_errors": 1},
    ],
)
def test_invalid_options_are_refused(app: Holdfast, options: Any) -> None:
    with pytest.raises(InvalidInput):
        drain(app, **options)


def test_a_value_that_is_not_an_app_is_refused() -> None:
    with pytest.raises(InvalidInput, match="drain: app must be a Holdfast"):
        drain(lambda: None)  # type: ignore[arg-type]


# --- what goes on for ever ---


def test_a_job_that_snoozes_for_ever_is_named(app: Holdfast) -> None:
    poll = app.task(name="poll")(lambda: Snooze(60))
    app.task(name="other")(lambda: None).enqueue()
    job = poll.enqueue()
    with pytest.raises(NeverIdle, match=rf"job {job.id} of poll ran \d+ times and snoozed the last time"):
        drain(app, limit=20)
    assert app.jobs.count(status="running") == 0


def test_a_job_that_snoozes_without_delay_is_named_too(app: Holdfast) -> None:
    app.task(name="poll")(lambda: Snooze(0)).enqueue()
    with pytest.raises(NeverIdle, match="job 1 of poll"):
        drain(app, seconds=1, limit=20)


def test_a_handler_that_enqueues_itself_for_ever_is_named(app: Holdfast) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(NeverIdle, match="21 jobs of again ran, up to job 21"):
        drain(app, limit=20)


def test_limit_raises_the_number_of_attempts(app: Holdfast) -> None:
    app.task(name="poll")(lambda: Snooze(60)).enqueue()
    assert drain(app, seconds=600).snoozed == 11


def test_many_waiting_jobs_do_not_reach_the_limit(app: Holdfast) -> None:
    app.task(name="work")(lambda: None).enqueue_many([{}] * 30)
    assert drain(app, limit=1).succeeded == 30


# --- errors ---


def test_errors_can_be_raised(app: Holdfast) -> None:
    @app.task
    def work() -> None:
        raise ValueError("no")

    work.enqueue()
    with pytest.raises(ValueError, match="no") as caught:
        drain(app, raise_errors=True)
    assert caught.value.__notes__ == ["Raised by job 1, work, attempt 1: retried."]
    assert app.jobs.get(1).status == "scheduled"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_ctrl_c_is_raised_and_leaves_nothing_running(app: Holdfast, is_async: bool) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    async def awork() -> None:
        raise KeyboardInterrupt

    app.task(name="work")(awork if is_async else work).enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    assert app.jobs.get(1).status == "scheduled"


def test_an_async_handler_that_is_cancelled_is_retried(app: Holdfast) -> None:
    @app.task(max_attempts=2)
    async def work() -> None:
        raise asyncio.CancelledError

    work.enqueue()
    assert repr(drain(app)) == "<Drained: 1 retried, 1 failed>"


def test_a_result_that_cannot_be_stored_fails_the_job(app: Holdfast) -> None:
    app.task(name="work")(lambda: object()).enqueue()
    assert drain(app).failed == 1
    assert app.jobs.get(1).error_code == "RESULT:NOT_JSON"


def test_then_is_settled_as_by_a_worker(app: Holdfast) -> None:
    ship = app.task(name="ship")(lambda: None)
    app.task(name="work")(lambda: Then(ship)).enqueue()
    drained = drain(app)
    assert drained[0].task == "work"


def test_a_job_of_an_unknown_task_is_left_alone(app: Holdfast, clock: FakeClock) -> None:
    app.store.jobs.insert(NewJob(queue="default", task="of_another_program", args="{}"))
    app.store.jobs.insert(NewJob(queue="default", task="of_another_program", args="{}", delay=MINUTE))
    now = clock.now()
    assert len(drain(app)) == 0 and clock.now() == now
    assert [job.status for job in app.jobs.list()] == ["scheduled", "ready"]


def test_a_payload_that_cannot_be_decoded_fails_only_its_job(app: Holdfast) -> None:
    @app.task
    def work(number: int) -> None: ...


def test_messages_cancelled_jobs_and_paused_queues_are_left_alone(app: Holdfast, clock: FakeClock) -> None:
    now, inbox = clock.now(), app.queue("inbox")
    inbox.send("hello", delay=60)
    inbox.send("hello")
    assert inbox.receive() is not None
    task = app.task(name="work")(lambda: None)
    app.jobs.cancel(task.enqueue().id)
    app.queue("closed").pause()
    task.using(queue="closed").enqueue()
    assert len(drain(app)) == 0 and clock.now() == now


# --- where it runs ---


def test_all_kinds_of_tasks_run_in_this_thread(app: Holdfast) -> None:
    @app.task
    async def a_coroutine() -> int:
        return threading.get_ident()

    jobs = [app.task(name=pool, pool=pool)(this_thread).enqueue() for pool in ("thread", "process")]  # type: ignore[call-overload]
    jobs.append(a_coroutine.enqueue())
    drain(app)
    assert {job.refresh().result for job in jobs} == {threading.get_ident()}


def this_thread() -> int:
    return threading.get_ident()


def test_under_a_running_loop_an_async_task_has_a_loop_of_its_own(app: Holdfast) -> None:
    @app.task
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    job = work.enqueue()

    async def the_test() -> Drained:
        return drain(app)

    assert asyncio.run(the_test()).succeeded == 1
    assert job.refresh().result == 7


def test_two_threads_may_drain_together(app: Holdfast) -> None:
    ran: list[int] = []
    task = app.task(name="work")(lambda number: ran.append(number))
    task.enqueue_many([{"number": number} for number in range(60)])
    drained: list[Drained] = []
    threads = [threading.Thread(target=lambda: drained.append(drain(app))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == list(range(60))
    assert sum(one.succeeded for one in drained) == 60


def test_inline_and_drain_work_together(app: Holdfast) -> None:
    inner = app.task(name="inner")(lambda: None)

    @app.task
    def outer() -> str:
        return inner.enqueue().status

    job = outer.using(delay=60).enqueue()
    with inline(app):
        drained = drain(app)
    assert [one.task for one in drained] == ["outer"]
    assert job.refresh().result == "succeeded"


# --- schedules ---


def test_schedules_fire_on_the_way_to_an_end(app: Holdfast, clock: FakeClock) -> None:
    clock.advance(-clock.now() / SECOND % 3600)  # the next full hour
    start, at = clock.now(), []

    @app.cron("*/15 * * * *")
    def tidy() -> None:
        at.append((clock.now() - start) // MINUTE)

    assert drain(app, seconds=3600).succeeded == 4
    assert at == [15, 30, 45, 60]
    assert clock.now() == start + 60 * MINUTE


def test_without_an_end_only_due_occurrences_fire(app: Holdfast, clock: FakeClock) -> None:
    runs: list[int] = []

    @app.cron("*/15 * * * *")
    def tidy() -> None:
        runs.append(1)

    app.task(name="later")(lambda: None).using(delay=7200).enqueue()
    assert [one.task for one in drain(app)] == ["later"]
    assert runs == []
    assert [one.task for one in drain(app)] == ["tidy"], "what was passed over is due now, once"


def test_a_schedule_that_was_added_fires_too(app: Holdfast) -> None:
    @app.task
    def report(kind: str) -> str:
        return kind

    app.schedules.add("weekly", "@weekly", report, {"kind": "week"})
    assert drain(app, seconds=timedelta(days=14)).succeeded == 2
    app.schedules.pause("weekly")
    assert len(drain(app, seconds=timedelta(days=14))) == 0


def test_a_cron_job_is_retried_between_its_occurrences(app: Holdfast) -> None:
    @app.cron("0 * * * *")
    def tidy(ctx: Context) -> Any:
        return Retry(after=60) if ctx.attempt == 1 else None

    drained = drain(app, seconds=3 * 3600 + 60)
    assert [one.outcome for one in drained] == ["retried", "succeeded"] * 3
