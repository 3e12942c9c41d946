"""Which exceptions are retried (`retry_on=`, `give_up_on=`), and what an operator's retry gives."""

import inspect
from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Retry, Snooze
from holdfast.app.options import TaskOptions
from holdfast.errors import InvalidInput
from holdfast.model.job import DEFAULT_MAX_ATTEMPTS, NewJob
from support.running_worker import drain, let_time_run_out, outcomes


def raising(error: BaseException) -> Any:
    def work(ctx: Context) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("options", "error", "ends"),
    [
        ({"give_up_on": ValueError}, ValueError("no"), ["failed"]),
        ({"give_up_on": (KeyError, LookupError)}, IndexError("no"), ["failed"]),
        ({"give_up_on": ValueError}, OSError("no"), ["retry_scheduled", "failed"]),
        ({"retry_on": ConnectionError}, ConnectionResetError("no"), ["retry_scheduled", "failed"]),
        ({"retry_on": [ConnectionError, TimeoutError]}, ValueError("no"), ["failed"]),
        ({"retry_on": OSError, "give_up_on": FileNotFoundError}, FileNotFoundError("no"), ["failed"]),
        (
            {"retry_on": OSError, "give_up_on": FileNotFoundError},
            PermissionError("no"),
            ["retry_scheduled", "failed"],
        ),
        ({"retry_on": OSError}, Retry(after=0), ["retry_scheduled", "failed"]),
        ({"retry_on": ()}, RuntimeError("no"), ["failed"]),
    ],
)
def test_the_type_of_an_exception_decides_about_a_retry(
    app: Holdfast, define: Any, options: Any, error: BaseException, ends: list[str]
) -> None:
    job = define(raising(error), max_attempts=2, retry=0, **options).enqueue()
    drain(app)
    assert outcomes(app, job.id) == ends


def test_giving_up_keeps_the_code_and_the_traceback(app: Holdfast, define: Any) -> None:
    job = define(raising(ValueError("bad row")), give_up_on=ValueError).enqueue()
    drain(app)
    assert (job.refresh().error_code, job.error_detail) == ("INVALID_INPUT:VALUE", "ValueError: bad row")
    (attempt,) = [entry for entry in app.jobs.history(job.id) if entry.kind == "attempt"]
    assert "raise error" in (app.jobs.traceback(attempt.detail["fingerprint"]) or "")


def test_a_timeout_is_retried_whatever_the_types(app: Holdfast) -> None:
    @app.task(retry_on=(), max_attempts=2, timeout=3600, retry=0)
    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            let_time_run_out(ctx)
            while not ctx.cancelled:
                pass

    job = work.enqueue()
    drain(app)
    assert outcomes(app, job.id) == ["retry_scheduled", "succeeded"]


@pytest.mark.parametrize("wrong", [7, "ValueError", ["ValueError"], int, [None]])
def test_types_must_be_exception_classes(app: Holdfast, wrong: Any) -> None:
    for name in ("retry_on", "give_up_on"):
        with pytest.raises(InvalidInput, match=f"{name} must be an exception class or several"):
            app.task(name="work", **{name: wrong})(lambda: None)


# --- by an operator -------------------------------------------------------------------------------


def test_a_retry_by_an_operator_gives_as_many_attempts_as_before(app: Holdfast, define: Any) -> None:
    job = define(raising(ValueError("no")), max_attempts=3, retry=0).enqueue()
    drain(app)
    for spent in (3, 6):
        assert app.jobs.retry(job.id)
        assert (job.refresh().attempt, job.max_attempts) == (spent, spent + 3)
        drain(app)
    assert len(outcomes(app, job.id)) == 9


def test_snoozes_and_early_failures_do_not_change_how_many(app: Holdfast, define: Any) -> None:
    outcomes_in_turn = [Snooze(0), Snooze(0), Fail("REJECTED:NO")]
    job = define(lambda ctx: outcomes_in_turn[ctx.attempt - 1], max_attempts=4).enqueue()
    drain(app)
    assert (job.refresh().attempt, job.max_attempts) == (3, 6)
    app.jobs.retry(job.id)
    assert (job.refresh().attempt, job.max_attempts) == (3, 7)


def test_an_operator_can_give_another_number_once(app: Holdfast, define: Any) -> None:
    job = define(raising(ValueError("no")), max_attempts=3, retry=0).enqueue()
    drain(app)
    app.jobs.retry(job.id, attempts=1)
    assert job.refresh().max_attempts == 4
    drain(app)
    app.jobs.retry(job.id, attempts=7)
    assert job.refresh().max_attempts == 11
    drain(app)
    app.jobs.retry(status="failed")
    assert job.refresh().max_attempts == 14


def test_the_backoff_begins_anew_after_a_retry_by_an_operator(app: Holdfast, define: Any) -> None:
    numbers: list[int] = []

    def policy(attempt: int) -> float:
        numbers.append(attempt)
        return 0

    job = define(raising(ValueError("no")), max_attempts=3, retry=policy).enqueue()
    drain(app)
    app.jobs.retry(job.id)
    drain(app)
    assert numbers == [1, 2, 3, 1, 2, 3]


def test_requeued_dead_letters_get_as_many_deliveries_as_before(app: Holdfast) -> None:
    inbox = app.queue("inbox", max_attempts=2)
    job_id = inbox.send("hello")
    for _ in range(2):
        message = inbox.receive()
        assert message is not None
        message.release()
    assert inbox.requeue() == 1
    assert app.jobs.get(job_id).max_attempts == 4


def test_there_is_one_default_for_max_attempts(app: Holdfast, sql: Any) -> None:
    @app.task
    def work() -> None: ...

    message = app.queue("inbox").send("hello")
    ((by_sql,),) = sql("INSERT INTO holdfast_jobs (task) VALUES ('work') RETURNING id")
    schedule = app.schedules.add("nightly", "0 0 * * *", work)
    jobs = [work.enqueue(), app.jobs.get(message), app.jobs.get(by_sql), schedule]
    assert {job.max_attempts for job in jobs} == {DEFAULT_MAX_ATTEMPTS}
    sql(
        "INSERT INTO holdfast_schedules (name, cron, task) VALUES ('by_sql', '0 0 * * *', 'work')",
    )
    assert app.schedules.get("by_sql").max_attempts == DEFAULT_MAX_ATTEMPTS
    assert inspect.signature(NewJob).parameters["max_attempts"].default == DEFAULT_MAX_ATTEMPTS
    assert TaskOptions("x").max_attempts == DEFAULT_MAX_ATTEMPTS
