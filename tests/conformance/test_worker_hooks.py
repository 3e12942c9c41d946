"""Hooks around workers and jobs: `on_worker_start`, `on_worker_stop`, `before_job` and `after_job`."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput
from support.running_worker import RunningWorker, drain

Open = Callable[..., Holdfast]
Log = list[str]


@pytest.fixture
def log(app: Holdfast) -> Log:
    """Add a hook of each kind that records its call."""
    lines: Log = []
    for name in ("on_worker_start", "before_job", "after_job", "on_worker_stop"):
        getattr(app, name)(lambda name=name: lines.append(name))
    return lines


def test_hooks_run_around_the_worker_and_around_each_job(app: Holdfast, define: Any, log: Log) -> None:
    task = define(lambda ctx: log.append(f"job {ctx.job_id}"))
    for _ in range(2):
        task.enqueue()
        drain(app)
    one_run = ["on_worker_start", "before_job", "job {}", "after_job", "on_worker_stop"]
    assert log == [line.format(number) for number in (1, 2) for line in one_run]


def test_the_hook_after_a_job_runs_whatever_became_of_it(app: Holdfast, define: Any, log: Log) -> None:
    def stumble(ctx: Context) -> None:
        raise ConnectionError("no line")

    define(stumble, max_attempts=1).enqueue()
    drain(app)
    assert log == ["on_worker_start", "before_job", "after_job", "on_worker_stop"]


def test_hooks_run_in_the_thread_of_the_job(app: Holdfast) -> None:
    threads: list[int] = []
    app.before_job(lambda: threads.append(threading.get_ident()))
    app.after_job(lambda: threads.append(threading.get_ident()))

    @app.task
    def work() -> None:
        threads.append(threading.get_ident())

    work.enqueue()
    drain(app)
    assert len(threads) == 3
    assert len(set(threads)) == 1


def test_hooks_of_a_job_surround_its_middleware(app: Holdfast, define: Any, log: Log) -> None:
    @app.middleware
    def layer(ctx: Context) -> Any:
        log.append("middleware begins")
        yield
        log.append("middleware ends")

    define(lambda ctx: None).enqueue()
    drain(app)
    assert log[1:-1] == ["before_job", "middleware begins", "middleware ends", "after_job"]


def test_a_hook_of_a_job_that_raises_is_logged_and_changes_nothing(
    app: Holdfast, define: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("the pool is closed")

    app.before_job(broken)
    app.after_job(broken)
    job = define(lambda ctx: 42).enqueue()
    with caplog.at_level(logging.ERROR, "holdfast.worker"):
        drain(app)
    assert job.refresh().result == 42
    assert [record.message for record in caplog.records] == [
        "the hook before_job broken raised an exception",
        "the hook after_job broken raised an exception",
    ]


def test_a_worker_whose_start_hook_raises_takes_no_job(app: Holdfast, define: Any, log: Log) -> None:
    job = define(lambda ctx: 42).enqueue()

    @app.on_worker_start
    def fail() -> None:
        raise RuntimeError("no connection")

    with pytest.raises(RuntimeError, match="no connection"):
        drain(app)
    assert job.refresh().status == "ready"
    assert app.workers() == []


def test_a_stop_hook_that_raises_is_logged_and_the_others_run(
    app: Holdfast, define: Any, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    @app.on_worker_stop
    def fail() -> None:
        raise RuntimeError("already closed")

    app.on_worker_stop(lambda: log.append("last"))
    define(lambda ctx: 42).enqueue()
    with caplog.at_level(logging.ERROR, "holdfast.worker"):
        assert drain(app).succeeded == 1
    assert log[-2:] == ["on_worker_stop", "last"]
    assert [record.message for record in caplog.records] == ["the hook on_worker_stop fail raised an exception"]


def test_a_stop_hook_runs_after_the_jobs_and_after_other_workers_may_take_them(live: Holdfast) -> None:
    states: list[Any] = []

    @live.task
    def work() -> None: ...

    live.on_worker_stop(lambda: states.append([one.ending for one in live.workers()]))
    with RunningWorker(live) as running:
        running.stop()
    assert states == [["stopped"]]


@pytest.mark.parametrize("name", ["on_worker_start", "on_worker_stop", "before_job", "after_job"])
def test_a_hook_must_be_a_plain_function_without_arguments(app: Holdfast, name: str) -> None:
    async def coroutine() -> None: ...

    def needy(thing: int) -> None: ...

    def keywords(**anything: Any) -> None: ...  # as django.db.close_old_connections

    for wrong in (coroutine, needy, 7, None):
        with pytest.raises(InvalidInput, match=f"{name} must be given a plain function without required arguments"):
            getattr(app, name)(wrong)
    assert getattr(app, name)(keywords) is keywords


def test_where_a_worker_hook_runs_is_worker_or_pool(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="process must be 'worker', 'pool' or None, got 'thread'"):
        app.on_worker_start(process="thread")  # type: ignore[call-overload]


def test_tests_of_programs_run_the_hooks_of_jobs(app: Holdfast, define: Any, log: Log) -> None:
    from holdfast import testing

    define(lambda ctx: log.append("job")).enqueue()
    testing.drain(app)
    assert log == ["before_job", "job", "after_job"]
