"""`expires=`: a job that has not started by then is cancelled."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Then
from holdfast.errors import InvalidInput, JobFailed
from holdfast.testing import FakeClock, assert_enqueued
from holdfast.testing import drain as run_all
from support.running_worker import RunningWorker, drain, eventually

Names = Callable[[int], list[str]]


@pytest.fixture
def quote(app: Holdfast) -> Any:
    @app.task(expires=60, retry=100)
    def quote(ctx: Context, fails: bool = False) -> Any:
        return Retry() if fails else ctx.attempt

    return quote


def test_a_job_that_starts_in_time_runs(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    job = quote.enqueue()
    assert job.expires_at == job.created_at + timedelta(seconds=60)
    clock.advance(59)
    drain(app)
    assert job.refresh().result == 1
    assert job.expires_at == job.created_at + timedelta(seconds=60)


def test_a_job_that_did_not_start_in_time_is_cancelled(
    app: Holdfast, quote: Any, clock: FakeClock, events: Names
) -> None:
    job = quote.enqueue()
    clock.advance(60)
    drain(app)
    job.refresh()
    assert (job.status, job.attempt, job.error_code) == ("cancelled", 0, "TIMEOUT:EXPIRED")
    assert job.error_detail == "the job expired before attempt 1 was started"
    assert events(job.id) == ["enqueued", "cancelled"]
    with pytest.raises(JobFailed, match="TIMEOUT:EXPIRED"):
        job.wait()


@pytest.mark.parametrize("status", ["scheduled", "blocked", "paused"])
def test_a_job_expires_in_whatever_state_it_waits(app: Holdfast, quote: Any, clock: FakeClock, status: str) -> None:
    if status == "paused":
        app.queue("default").pause()
        job = quote.enqueue()
    elif status == "blocked":
        job = quote.using(after=app.external("approval")).enqueue()
    else:
        job = quote.using(delay=30).enqueue()
    clock.advance(61)
    if status == "scheduled":
        app.queue("default").pause()  # so that no worker takes it
    drain(app)
    assert job.refresh().status == "cancelled"


def test_jobs_that_wait_for_an_expired_one_learn_of_it(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    waiting = quote.using(after=quote.enqueue(), on_blocker_failure="cancel", expires=3600).enqueue()
    clock.advance(61)
    drain(app)
    assert waiting.refresh().status == "cancelled"
    assert waiting.error_code is None


def test_a_retry_does_not_start_after_the_time_either(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    job = quote.enqueue(fails=True)
    drain(app)
    assert (job.refresh().status, job.attempt) == ("scheduled", 1)
    clock.advance(61)
    drain(app)
    assert (job.refresh().status, job.attempt, job.error_code) == ("cancelled", 1, "TIMEOUT:EXPIRED")


def test_a_running_job_is_not_interrupted(app: Holdfast, clock: FakeClock) -> None:
    @app.task(expires=60)
    def work() -> str:
        clock.advance(3600)
        return "done"

    job = work.enqueue()
    drain(app)
    assert job.refresh().result == "done"


def test_an_operator_can_run_an_expired_job_anyway(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    job = quote.enqueue()
    clock.advance(61)
    drain(app)
    assert app.jobs.retry(job.id)
    assert job.refresh().expires_at is None
    drain(app)
    assert job.refresh().status == "succeeded"


def test_it_can_be_a_number_a_timedelta_or_a_time(app: Holdfast, quote: Any) -> None:
    for value in (90, 90.0, timedelta(seconds=90)):
        job = quote.using(expires=value).enqueue()
        assert job.expires_at == job.created_at + timedelta(seconds=90)
    moment = job.created_at + timedelta(hours=1)
    assert quote.using(expires=moment).enqueue().refresh().expires_at == moment
    assert quote.using(expires=None).enqueue().refresh().expires_at is None
    assert_enqueued(quote.using(expires=90), count=3)
    assert_enqueued(quote.using(expires=moment), count=1)
    assert_enqueued(quote, expires=90, count=3)


def test_values_that_cannot_be_meant_are_refused(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    now = quote.enqueue().created_at
    for wrong in (-1, "soon", True, datetime(2030, 1, 1)):  # noqa: DTZ001  a naive time
        with pytest.raises(InvalidInput, match="expires"):
            quote.using(expires=wrong)
    with pytest.raises(InvalidInput, match="expires must be seconds, a timedelta or None for a task"):
        app.task(name="other", expires=now)(lambda: None)
    for due in ({"delay": 60}, {"run_at": now + timedelta(seconds=60)}):
        with pytest.raises(InvalidInput, match="the job would expire before it is due"):
            quote.using(**due).enqueue()


def test_replacing_a_job_replaces_its_expiry(app: Holdfast, quote: Any) -> None:
    job = quote.using(key="one").enqueue()
    quote.using(key="one", on_conflict="replace", expires=3600).enqueue()
    assert job.refresh().expires_at == job.created_at + timedelta(seconds=3600)


def test_the_next_job_of_a_chain_can_expire(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    @app.task
    def first() -> Then:
        return Then(quote)

    job = first.enqueue()
    run_all(app, seconds=0)
    last = app.chains.get(job.id).jobs()[-1]
    assert last.expires_at is not None


def test_a_schedule_hands_its_expiry_to_its_jobs(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    schedule = app.schedules.add("hourly", "0 * * * *", quote.using(expires=600))
    assert schedule.expires == 600
    run_all(app, seconds=3600)
    (job,) = app.jobs.list(task="quote")
    assert job.expires_at == job.created_at + timedelta(seconds=600)


def test_plain_sql_can_set_it(app: Holdfast, quote: Any, clock: FakeClock, sql: Any) -> None:
    moment = clock.now() + 5_000_000
    ((job_id,),) = sql("INSERT INTO holdfast_jobs (task, expires_at) VALUES ('quote', ?) RETURNING id", (moment,))
    clock.advance(6)
    drain(app)
    assert app.jobs.get(job_id).status == "cancelled"


def test_explain_tells_when_a_job_expires_and_that_it_has(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    job = quote.enqueue()
    assert f"It expires at {job.expires_at:%Y-%m-%d %H:%M:%S} UTC, in 1m." in app.jobs.explain(job.id).reason
    clock.advance(61)
    assert f"{job.expires_at:%H:%M:%S} UTC, and the next worker cancels it." in app.jobs.explain(job.id).reason
    drain(app)
    explained = app.jobs.explain(job.id)
    assert explained.reason == f"Job {job.id} (quote) was cancelled: the job expired before attempt 1 was started."
    assert explained.advice == f"Run it anyway: holdfast retry {job.id}"


def test_an_idle_worker_cancels_a_job_at_its_time(live: Holdfast, no_polling: None) -> None:
    @live.task
    def other() -> None: ...

    live.queue("default").pause()
    with RunningWorker(live):
        job = other.using(expires=0.2).enqueue()
        eventually(lambda: job.refresh().status == "cancelled")


def test_the_doctor_tells_of_expired_jobs_that_no_worker_cancels(app: Holdfast, quote: Any, clock: FakeClock) -> None:
    job = quote.enqueue()
    clock.advance(59)
    assert app.check().of("EXPIRED_JOBS") is None
    clock.advance(3600)
    found = app.check().of("EXPIRED_JOBS")
    assert found is not None
    assert found.severity == "warning"
    assert list(found.detail["ids"]) == [job.id]
    drain(app)
    assert app.check().of("EXPIRED_JOBS") is None
