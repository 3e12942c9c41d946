"""The worker: the context of a running handler, and cancellation."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Cancel, Context, Holdfast, Snooze, Then
from holdfast.errors import InvalidInput
from support.running_worker import PATIENCE_SECONDS, RunningWorker, comes_true, drain, eventually, outcomes

Open = Callable[..., Holdfast]


# --- what it can ask and tell ---------------------------------------------------------------------


def test_the_context_has_the_job_and_the_attempt_number(app: Holdfast) -> None:
    seen: list[tuple[object, ...]] = []

    @app.task(queue="mail", max_attempts=2, retry=0)
    def work(ctx: Context, n: int) -> str:
        job = ctx.job
        error = ctx.last_error
        told = (ctx.job_id, ctx.attempt, ctx.max_attempts, ctx.task, ctx.queue)
        seen.append((*told, job.id, job.status, job.args, None if error is None else (error.code, error.detail)))
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        return "done"

    job = work.enqueue(7)
    drain(app)
    about = ("work", "mail", job.id, "running", {"n": 7})
    assert seen == [
        (job.id, 1, 2, *about, None),
        (job.id, 2, 2, *about, ("DEPENDENCY:CONNECTION", "ConnectionError: no line")),
    ]


@pytest.mark.parametrize("ending", ["return", "raise", "snooze", "cancel", "then", "complete", "large"])
def test_the_last_progress_is_stored_however_soon_the_attempt_ends(app: Holdfast, define: Any, ending: str) -> None:
    def work(ctx: Context) -> Any:
        for step in range(1, 11):
            ctx.progress(step / 20, f"step {step}")
        if ending == "raise":
            raise ConnectionError("no line")
        if ending == "complete":
            with ctx.complete():
                return None
        ends = {"snooze": Snooze(60), "cancel": Cancel("enough"), "then": Then(after), "large": "x" * 5000}
        return ends.get(ending)

    @app.task(queue="later")
    def after() -> None: ...

    job = define(work).enqueue()
    drain(app, queues=["default"])
    assert (job.refresh().progress, job.progress_text) == (0.5, "step 10")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_progress_is_stored_while_the_handler_runs(live: Holdfast, kind: str) -> None:
    seen, release = threading.Event(), threading.Event()

    @live.task
    def work(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        seen.set()
        comes_true(release)
        ctx.progress(1)

    @live.task
    async def work_later(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        seen.set()
        while not release.is_set():
            await asyncio.sleep(0.01)
        ctx.progress(1)

    with RunningWorker(live):
        job = (work if kind == "sync" else work_later).enqueue()
        comes_true(seen)
        eventually(lambda: job.refresh().progress == 0.25)
        assert job.progress_text == "a quarter"
        release.set()
        eventually(lambda: job.refresh().status == "succeeded")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True, None])
def test_progress_must_be_a_fraction(app: Holdfast, fraction: Any) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> str:
        with pytest.raises(InvalidInput):
            ctx.progress(fraction)
        return "told"

    job = work.enqueue()
    drain(app)
    assert job.refresh().result == "told"


def test_the_start_of_a_long_job_is_stored_while_it_runs(live: Holdfast) -> None:
    release, started = threading.Event(), threading.Event()

    @live.task
    def long() -> None:
        started.set()
        comes_true(release)

    @live.task
    async def long_later() -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)

    with RunningWorker(live):
        jobs = [long.enqueue(), long_later.enqueue()]
        comes_true(started)
        eventually(lambda: all(job.refresh().started_at is not None for job in jobs))
        assert [job.status for job in jobs] == ["running", "running"]
        history = live.store.jobs.history(jobs[0].id)
        assert [entry.detail.keys() & {"started_at"} for entry in history if entry.kind == "attempt"]
        release.set()


def test_the_logger_of_a_handler_names_its_job(app: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="mail")
    def work(ctx: Context, secret: str) -> None:
        ctx.logger.warning("half way")

    with caplog.at_level(logging.INFO, "holdfast"):
        job = work.enqueue("s3cret-payload")
        drain(app)
    (record,) = [one for one in caplog.records if one.name == "holdfast.job"]
    assert (record.job_id, record.task, record.queue, record.attempt) == (job.id, "work", "mail", 1)  # type: ignore[attr-defined]
    lines = [one.getMessage() for one in caplog.records if one.name == "holdfast.worker"]
    assert [line for line in lines if f"work {job.id} succeeded" in line], lines
    assert "s3cret-payload" not in caplog.text


color: ContextVar[str] = ContextVar("color", default="none")


def test_a_context_variable_does_not_leak_into_the_next_handler(app: Holdfast) -> None:
    @app.task
    def paint() -> str:
        before = color.get()
        color.set("red")
        return before

    @app.task
    async def paint_later() -> str:
        before = color.get()
        color.set("blue")
        return before

    ids = paint.enqueue_many([{}] * 5) + paint_later.enqueue_many([{}] * 5)
    drain(app, concurrency=1)
    assert {app.jobs.get(job_id).result for job_id in ids} == {"none"}


# --- cancelling -----------------------------------------------------------------------------------


def test_a_cancel_reaches_a_function_as_a_flag(live: Holdfast) -> None:
    started, beats = threading.Event(), []

    @live.task
    def work(ctx: Context) -> str:
        started.set()
        eventually(lambda: ctx.cancelled)
        beats.append(ctx.heartbeat())
        return "too late"

    with RunningWorker(live) as running:
        job = work.enqueue()
        comes_true(started)
        assert live.jobs.cancel(job.id, reason="changed my mind")
        eventually(lambda: beats)
        report = running.stop()
    job.refresh()
    assert (job.status, job.result, beats) == ("cancelled", None, [False])
    assert outcomes(live, job.id) == ["cancelled"]
    assert (report.succeeded, report.lost) == (0, 1)


def test_a_cancel_reaches_a_coroutine_as_a_cancellation(live: Holdfast) -> None:
    started, ended = threading.Event(), []

    @live.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(2 * PATIENCE_SECONDS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)  # it may clean up
            ended.append("cleaned up")
            raise

    with RunningWorker(live) as running:
        job = work.enqueue()
        comes_true(started)
        live.jobs.cancel(job.id)
        eventually(lambda: ended)
        report = running.stop()
    assert job.refresh().status == "cancelled"
    assert (report.succeeded, report.stuck, report.lost) == (0, 0, 1)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_ignores_a_cancel_does_not_occupy_a_place(live: Holdfast, kind: str) -> None:
    started, release = threading.Event(), threading.Event()

    @live.task
    def stubborn() -> str:
        started.set()
        comes_true(release)
        return "late"

    @live.task
    async def stubborn_later() -> str:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return "late"

    @live.task
    def next_one() -> str:
        return "served"

    @live.task
    async def next_later() -> str:
        return "served"

    with RunningWorker(live, concurrency=1) as running:
        job = (stubborn if kind == "sync" else stubborn_later).enqueue()
        comes_true(started)
        live.jobs.cancel(job.id)
        others = [next_one.enqueue(), next_later.enqueue()]
        eventually(lambda: [one.refresh().result for one in others] == ["served"] * 2)
        report = running.stop()
        assert report.stuck == 1
    release.set()
    assert job.refresh().status == "cancelled"


def test_a_job_that_was_cancelled_before_its_start_does_not_run(live: Holdfast) -> None:
    runs: list[int] = []

    @live.task
    def work(n: int) -> None:
        runs.append(n)

    jobs = [work.enqueue(n) for n in range(3)]
    live.jobs.cancel(jobs[1].id)
    drain(live, concurrency=1)
    assert runs == [0, 2]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("statement", ["DELETE FROM holdfast_jobs", "UPDATE holdfast_jobs SET status = 'ready'"])
def test_a_running_job_that_is_changed_by_plain_sql_is_fenced(
    live: Holdfast, sql: Callable[..., Any], kind: str, statement: str
) -> None:
    started, stopped, runs = threading.Event(), [], []

    @live.task(name="work")
    def work(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            started.set()
            eventually(lambda: ctx.cancelled)
            stopped.append(True)
        return f"attempt {ctx.attempt}"

    @live.task(name="work_later")
    async def work_later(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            started.set()
            try:
                await asyncio.sleep(2 * PATIENCE_SECONDS)
            except asyncio.CancelledError:
                stopped.append(True)
        return f"attempt {ctx.attempt}"

    with RunningWorker(live, concurrency=1):
        job = (work if kind == "sync" else work_later).enqueue()
        comes_true(started)
        sql(statement)
        eventually(lambda: stopped)
        if statement.startswith("UPDATE"):
            eventually(lambda: job.refresh().status == "succeeded")
            assert (job.result, runs) == ("attempt 2", [1, 2])
