"""`inline` within itself: handlers that enqueue, nested blocks, threads and event loops."""

import asyncio
import threading
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import NeverIdle
from holdfast.testing import inline
from support.running_worker import PATIENCE_SECONDS

# --- handlers that enqueue ---


def test_a_job_that_a_handler_enqueues_runs_immediately(app: Holdfast) -> None:
    @app.task
    def inner() -> str:
        return "inner"

    @app.task
    def outer() -> Any:
        return inner.enqueue().wait(timeout=0)

    with inline(app):
        assert outer.enqueue().result == "inner"


def test_an_error_of_a_nested_job_is_not_an_error_of_the_handler(app: Holdfast) -> None:
    @app.task
    def inner() -> None:
        raise ValueError("of the inner one")

    @app.task
    def outer() -> str:
        return inner.enqueue().status

    with inline(app), pytest.raises(ValueError, match="of the inner one"):
        outer.enqueue()
    assert [(job.task, job.status) for job in app.jobs.list()] == [("inner", "scheduled"), ("outer", "succeeded")]
    assert app.jobs.list(task="outer")[0].result == "scheduled"


def test_a_long_chain_runs_to_its_end(app: Holdfast) -> None:
    @app.task
    def count_down(number: int) -> None:
        if number:
            count_down.enqueue(number - 1)

    with inline(app):
        count_down.enqueue(500)
    assert app.jobs.count(status="succeeded") == 501


@pytest.mark.parametrize("raise_errors", [True, False])
def test_a_handler_that_enqueues_itself_for_ever_is_named(app: Holdfast, raise_errors: bool) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    with inline(app, limit=50, raise_errors=raise_errors), pytest.raises(NeverIdle) as caught:
        again.enqueue()
    assert "50 jobs of again ran, up to job 50" in str(caught.value)
    assert app.jobs.count(status="succeeded") == 50
    assert app.jobs.count(status="running") == 0


def test_a_handler_that_catches_everything_cannot_hide_an_endless_loop(app: Holdfast) -> None:
    @app.task
    def again() -> None:
        try:
            again.enqueue()
            again.enqueue()
        except BaseException:  # noqa: BLE001
            again.enqueue()

    with inline(app, limit=50), pytest.raises(NeverIdle, match="jobs of again"):
        again.enqueue()


def test_a_handler_may_enqueue_in_a_transaction(app: Holdfast) -> None:
    inner = app.task(name="inner")(lambda: "inner")

    @app.task
    def outer() -> None:
        with app.transaction() as tx:
            inner.using(conn=tx).enqueue()

    with inline(app):
        outer.enqueue()
    assert app.jobs.count(status="succeeded") == 2


# --- nested blocks, threads, asyncio ---


def test_blocks_may_be_nested(app: Holdfast) -> None:
    @app.task
    def work() -> None:
        raise ValueError

    with inline(app):
        with inline(app, raise_errors=False):
            assert work.enqueue().status == "scheduled"
        with pytest.raises(ValueError):
            work.enqueue()
        with inline():
            pass
        with pytest.raises(ValueError):
            work.enqueue()
    assert work.enqueue().status == "ready"


def test_a_handler_may_open_a_block_itself(app: Holdfast) -> None:
    inner = app.task(name="inner")(lambda: "inner")

    @app.task
    def outer() -> Any:
        with inline(app):
            return inner.enqueue().result

    with inline(app):
        assert outer.enqueue().result == "inner"


def test_every_thread_runs_its_own_jobs(app: Holdfast) -> None:
    ran: list[tuple[int, int]] = []

    @app.task
    def work(thread: int) -> None:
        ran.append((thread, threading.get_ident()))

    def enqueue_some() -> None:
        for _ in range(20):
            assert work.enqueue(threading.get_ident()).status == "succeeded"

    threads = [threading.Thread(target=enqueue_some) for _ in range(4)]
    with inline(app):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(ran) == 80
    assert all(enqueuer == runner for enqueuer, runner in ran)


def test_a_handler_may_wait_for_a_thread_that_enqueues(app: Holdfast) -> None:
    inner = app.task(name="inner")(lambda: None)

    @app.task
    def outer() -> None:
        thread = threading.Thread(target=inner.enqueue)
        thread.start()
        thread.join()

    with inline(app):
        outer.enqueue()
    assert app.jobs.count(status="succeeded") == 2


def test_an_async_task_runs_on_a_loop(app: Holdfast) -> None:
    @app.task
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    with inline(app):
        assert work.enqueue().result == 7


@pytest.mark.parametrize("awaited", [True, False])
def test_an_async_task_runs_where_a_loop_is_running(app: Holdfast, awaited: bool) -> None:
    @app.task
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    @app.task
    async def outer() -> Any:
        job = await inner.aenqueue() if awaited else inner.enqueue()
        return job.result

    async def the_test() -> Any:
        with inline(app):
            return (await outer.aenqueue() if awaited else outer.enqueue()).result

    assert asyncio.run(the_test()) == "inner"


def test_an_error_of_an_async_task_is_raised_where_it_is_awaited(app: Holdfast) -> None:
    @app.task
    async def work() -> None:
        raise LookupError("no")

    async def the_test() -> None:
        with inline(app), pytest.raises(LookupError, match="no"):
            await work.aenqueue()

    asyncio.run(the_test())


def test_an_enqueue_from_work_that_outlives_its_round_starts_a_new_round(app: Holdfast) -> None:
    """What a handler leaves running in the background has the handler's context, and raises its own errors."""
    go, errors = threading.Event(), []

    @app.task
    def fails() -> None:
        raise ValueError("late")

    def later() -> None:
        go.wait(PATIENCE_SECONDS)
        try:
            fails.enqueue()
        except ValueError as error:
            errors.append(str(error))

    left: list[threading.Thread] = []

    @app.task
    def starts() -> None:
        from contextvars import copy_context

        left.append(threading.Thread(target=copy_context().run, args=(later,)))
        left[0].start()

    with inline(app):
        starts.enqueue()
        go.set()
        left[0].join()
    assert errors == ["late"]
