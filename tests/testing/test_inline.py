"""`inline`: enqueue stores the job and runs it, through the same steps as a worker."""

import sqlite3
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock, drain, inline


def events(app: Holdfast, job_id: int) -> list[str]:
    return [entry.name for entry in app.jobs.history(job_id) if entry.kind == "event"]


def test_a_job_has_run_when_enqueue_returns(app: Holdfast) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    with inline(app):
        job = double.enqueue(4)
    assert (job.status, job.result, job.attempt) == ("succeeded", 8, 1)
    assert events(app, job.id) == ["enqueued", "claimed", "succeeded"]
    assert double.enqueue(4).status == "ready", "after the block nothing is run"


def test_without_an_app_inline_applies_to_all_apps(app: Holdfast, open_app: Callable[..., Holdfast]) -> None:
    other = open_app()
    with inline():
        assert app.task(name="one")(lambda: 1).enqueue().result == 1
        assert other.task(name="two")(lambda: 2).enqueue().result == 2


def test_with_an_app_other_apps_are_unaffected(app: Holdfast, open_app: Callable[..., Holdfast]) -> None:
    other = open_app()
    with inline(app):
        assert other.task(name="two")(lambda: 2).enqueue().status == "ready"
    assert "_inline" not in vars(app)


def test_inline_can_decorate_a_test(app: Holdfast) -> None:
    @inline(app)
    def a_test(task: Any) -> str:
        return str(task.enqueue().status)

    assert a_test(app.task(name="work")(lambda: None)) == "succeeded"


def test_a_value_that_is_not_an_app_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"inline\(app\)"), inline(lambda: None):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("options", [{"delay": 60}, {"queue": "closed"}])
def test_jobs_that_a_worker_would_not_run_now_are_only_stored(app: Holdfast, options: Any) -> None:
    app.queue("closed").pause()
    task = app.task(name="work")(lambda: None)
    with inline(app):
        job = task.using(**options).enqueue()
    assert job.attempt == 0 and job.status in ("scheduled", "ready")


def test_existing_jobs_are_left_alone(app: Holdfast) -> None:
    task = app.task(name="work")(lambda: None)
    before = task.using(priority=100).enqueue()
    with inline(app):
        assert task.enqueue().status == "succeeded"
    assert before.refresh().status == "ready"


def test_a_job_with_an_existing_key_runs_once(app: Holdfast) -> None:
    runs: list[int] = []
    task = app.task(name="work")(lambda: runs.append(1))
    waiting = task.using(key="k").enqueue()
    with inline(app):
        job = task.using(key="k").enqueue()
        assert (job.id, job.deduplicated, job.status) == (waiting.id, True, "succeeded")
        assert task.using(key="k", key_window=60).enqueue().id == job.id
    assert runs == [1]


# --- errors and outcomes ---


def test_an_exception_of_the_handler_is_settled_and_raised_by_enqueue(app: Holdfast) -> None:
    @app.task(retry=30)
    def work() -> None:
        raise ValueError("no")

    with inline(app), pytest.raises(ValueError, match="no") as caught:
        work.enqueue()
    assert caught.value.__notes__ == ["Raised by job 1, work, attempt 1: retried."]
    job = app.jobs.get(1)
    assert (job.status, job.attempt, job.error_code) == ("scheduled", 1, "INVALID_INPUT:VALUE")
    assert events(app, job.id)[-1] == "retry_scheduled"


def test_without_raise_errors_an_exception_is_only_stored(app: Holdfast) -> None:
    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    with inline(app, raise_errors=False):
        job = work.enqueue()
    assert (job.status, job.error_detail) == ("failed", "ValueError: no")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Retry(after=5), "scheduled"),
        (Retry(after=0), "ready"),
        (Snooze(5), "scheduled"),
        (Cancel("gone"), "cancelled"),
        (Fail("RESOURCE:GONE"), "failed"),
    ],
)
@pytest.mark.parametrize("raised", [True, False])
def test_outcomes_are_not_errors(app: Holdfast, outcome: Any, status: str, raised: bool) -> None:
    @app.task
    def work() -> Any:
        if raised:
            raise outcome
        return outcome

    with inline(app):
        assert work.enqueue().status == status


def test_a_retry_is_left_for_drain(app: Holdfast, clock: FakeClock) -> None:
    @app.task
    def work(ctx: Context) -> Any:
        return Retry(after=5) if ctx.attempt == 1 else "done"

    with inline(app):
        job = work.enqueue()
    assert drain(app).succeeded == 1
    assert job.refresh().result == "done"


def test_a_ctrl_c_ends_the_test_and_leaves_nothing_running(app: Holdfast) -> None:
    @app.task
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), inline(app, raise_errors=False):
        work.enqueue()
    assert app.jobs.get(1).status == "scheduled"


def test_a_pytest_fail_in_a_handler_fails_the_test(app: Holdfast) -> None:
    @app.task
    async def work() -> None:
        pytest.fail("as it should")

    with pytest.raises(pytest.fail.Exception, match="as it should"), inline(app, raise_errors=False):
        work.enqueue()


def test_a_sys_exit_is_a_failure_of_the_handler(app: Holdfast) -> None:
    @app.task
    def work() -> None:
        raise SystemExit(3)

    with inline(app, raise_errors=False):
        assert work.enqueue().error_code == "INTERNAL:ERROR"


def test_a_handler_that_cancels_its_own_job_sees_it_and_loses_the_lease(app: Holdfast) -> None:
    seen: list[bool] = []

    @app.task
    def work(ctx: Context) -> str:
        seen.append(ctx.cancelled)
        app.jobs.cancel(ctx.job_id)
        seen.append(ctx.cancelled)
        return "too late"

    with inline(app):
        job = work.enqueue()
    assert (job.status, job.result, seen) == ("cancelled", None, [False, True])


def test_progress_is_stored(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context) -> None:
        ctx.progress(0.5, "half")

    with inline(app):
        job = work.enqueue()
    assert (job.progress, job.progress_text) == (0.5, "half")


def test_middleware_is_around_the_handler(app: Holdfast) -> None:
    seen: list[Any] = []

    @app.middleware
    def around(ctx: Context) -> Any:
        seen.append(ctx.job_id)
        seen.append((yield))

    with inline(app):
        app.task(name="work")(lambda: "done").enqueue()
    assert seen == [1, "done"]


def test_a_context_variable_that_a_handler_sets_does_not_leak(app: Holdfast) -> None:
    who = ContextVar("who", default="nobody")
    with inline(app):
        app.task(name="work")(lambda: who.set("job") and None).enqueue()
    assert who.get() == "nobody"


def test_a_task_for_processes_runs_in_this_thread(app: Holdfast) -> None:
    with inline(app):
        job = app.task(name="where", pool="process")(this_thread).enqueue()
    assert job.result == threading.get_ident()


def this_thread() -> int:
    return threading.get_ident()


# --- many, and transactions ---


def test_enqueue_many_runs_all_and_then_raises_the_first_error(app: Holdfast) -> None:
    @app.task
    def work(number: int) -> None:
        if number:
            raise ValueError(f"number {number}")

    with inline(app), pytest.raises(ValueError, match="number 1"):
        work.enqueue_many([{"number": number} for number in (0, 1, 2)])
    assert [job.status for job in app.jobs.list()] == ["scheduled", "scheduled", "succeeded"]


def test_a_job_of_a_transaction_runs_when_it_has_committed(app: Holdfast) -> None:
    task = app.task(name="work")(lambda: None)
    with inline(app):
        with app.transaction() as tx:
            job = task.using(conn=tx).enqueue()
            task.using(conn=tx).enqueue_many([{}, {}])
            assert app.jobs.count() == 0
        assert app.jobs.count(status="succeeded") == 3
        assert job.refresh().status == "succeeded"


def test_a_job_of_a_transaction_that_was_rolled_back_never_runs(app: Holdfast) -> None:
    runs: list[int] = []
    task = app.task(name="work")(lambda number: runs.append(number))
    with inline(app):
        with pytest.raises(RuntimeError), app.transaction() as tx:
            task.using(conn=tx).enqueue(1)
            raise RuntimeError
        task.using(delay=60).enqueue(2)  # it gets the same id
    assert runs == []


def test_a_job_enqueued_with_conn_runs_at_the_end_of_the_block(app: Holdfast, url: str) -> None:
    task = app.task(name="work")(lambda: None)
    conn = sqlite3.connect(url)
    with inline(app):
        with conn:
            first = task.using(conn=conn).enqueue()
        task.enqueue()
        assert first.refresh().status == "succeeded", "or at the next enqueue"
        with conn:
            second = task.using(conn=conn).enqueue()
        assert second.refresh().status == "ready"
    assert second.refresh().status == "succeeded"
    conn.close()


def test_a_connection_that_never_commits_delays_nothing(app: Holdfast, url: str) -> None:
    task = app.task(name="work")(lambda: None)
    conn = sqlite3.connect(url)
    with inline(app):
        task.using(conn=conn).enqueue()
    conn.rollback()
    conn.close()
    assert app.jobs.count() == 0


def test_after_an_error_in_the_block_no_more_jobs_run(app: Holdfast, url: str) -> None:
    task = app.task(name="work")(lambda: None)
    conn = sqlite3.connect(url)
    with pytest.raises(RuntimeError), inline(app):
        with conn:
            job = task.using(conn=conn).enqueue()
        raise RuntimeError
    conn.close()
    assert job.refresh().status == "ready"
