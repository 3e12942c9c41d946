"""Completing when it is too late, twice, or while others interfere: the user's table and the job agree every time."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.errors import LeaseLost, TransactionError
from holdfast.testing import FakeClock
from support.flow import Flow, Sql
from support.plain import filled
from support.running_worker import (
    PATIENCE_SECONDS,
    RunningWorker,
    comes_true,
    drain,
    eventually,
    let_time_run_out,
    outcomes,
)
from support.transitions import recover

Define = Callable[..., Any]


@pytest.fixture(autouse=True)
def _ledger(sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER, attempt INTEGER)")


def write(ctx: Context, tx: Any) -> None:
    tx.execute(filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))


def ledger(sql: Sql) -> list[Any]:
    return sql("SELECT job, attempt FROM ledger ORDER BY job, attempt")


# --- too late ---


def lose(app: Holdfast, sql: Sql, how: str, job_id: int) -> None:
    if how == "cancelled":
        app.jobs.cancel(job_id)
    elif how == "completed":
        app.jobs.complete(job_id, "by hand")
    elif how == "failed":
        app.jobs.fail(job_id, "BY:HAND")
    elif how == "deleted":
        app.jobs.cancel(job_id)
        app.jobs.delete(job_id)
    elif how == "recovered":  # its worker was taken for dead
        sql("UPDATE holdfast_jobs SET worker = 'another', lease = 0 WHERE id = ?", (job_id,))
        recover(app.store)
    else:  # and another one has claimed the job
        sql("UPDATE holdfast_jobs SET worker = 'another', attempt = attempt + 1 WHERE id = ?", (job_id,))


@pytest.mark.parametrize("how", ["cancelled", "completed", "failed", "deleted", "recovered", "taken over"])
def test_a_fenced_attempt_stores_nothing_and_is_told(
    app: Holdfast, define: Define, flow: Flow, sql: Sql, how: str
) -> None:
    caught: list[BaseException] = []

    def body(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        lose(app, sql, how, ctx.job_id or 0)
        try:
            with ctx.complete(Then(flow.step, "never")) as tx:
                caught.append(AssertionError("the block was entered"))
                write(ctx, tx)
        except LeaseLost as error:
            caught.append(error)
            raise

    job = define(body, retry=0).enqueue()
    report = drain(app, concurrency=1)
    assert [type(error) for error in caught] == [LeaseLost]
    assert f"attempt 1 of job {job.id} has lost its lease" in str(caught[0])
    assert (ledger(sql), flow.ran) == ([], [])
    assert report.lost == 1
    assert report.succeeded == (1 if how == "recovered" else 0)
    if how == "deleted":
        assert app.jobs.count() == 0
    else:
        ended = {"recovered": "succeeded", "taken over": "running", "completed": "succeeded"}.get(how, how)
        assert (job.refresh().status, job.result) == (ended, "by hand" if how == "completed" else None)


def test_a_handler_that_swallows_the_loss_has_lost_all_the_same(app: Holdfast, define: Define, sql: Sql) -> None:
    def body(ctx: Context) -> str:
        app.jobs.cancel(ctx.job_id or 0)
        with pytest.raises(LeaseLost), ctx.complete() as tx:
            write(ctx, tx)
        return "as if nothing had happened"

    job = define(body).enqueue()
    report = drain(app)
    assert (job.refresh().status, job.result, ledger(sql), report.lost) == ("cancelled", None, [], 1)


def test_the_lease_is_scanned_again_when_the_block_ends(app: Holdfast, define: Define, sql: Sql) -> None:
    """Nobody else can take the job while the block lasts; the block itself can."""

    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            if ctx.attempt == 1:
                tx.execute(filled("UPDATE holdfast_jobs SET status = 'ready' WHERE id = ?", ctx.job_id))

    job = define(body, retry=0).enqueue()
    drain(app, concurrency=1)
    assert (job.refresh().status, ledger(sql)) == ("succeeded", [(job.id, 2)])


def test_a_lease_that_has_ended_and_that_nobody_took_is_held_still(
    app: Holdfast, define: Define, sql: Sql, clock: FakeClock
) -> None:
    def body(ctx: Context) -> None:
        clock.advance(100_000)
        with ctx.complete() as tx:
            write(ctx, tx)

    job = define(body).enqueue()
    drain(app)
    assert (job.refresh().status, ledger(sql)) == ("succeeded", [(job.id, 1)])


def test_others_wait_for_the_block_and_come_too_late(live: Holdfast, sql: Sql) -> None:
    """Who cancels in the middle of the block gets the lock when the job has succeeded."""
    inside, cancelling = threading.Event(), threading.Event()
    answers: list[bool] = []

    @live.task
    def job(ctx: Context) -> None:
        with ctx.complete("done") as tx:
            write(ctx, tx)
            inside.set()
            comes_true(cancelling)

    one = job.enqueue()

    def cancel() -> None:
        comes_true(inside)
        cancelling.set()
        answers.append(live.jobs.cancel(one.id))

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with RunningWorker(live):
        canceller.join(PATIENCE_SECONDS)
        eventually(lambda: one.refresh().is_finished)
    agree = {True: ("cancelled", []), False: ("succeeded", [(one.id, 1)])}
    assert (one.refresh().status, ledger(sql)) == agree[answers[0]]
    assert answers == [False]


# --- more than once ---


def test_a_second_block_is_refused_and_the_first_counts(app: Holdfast, define: Define, sql: Sql) -> None:
    refused: list[str] = []

    def body(ctx: Context) -> None:
        with ctx.complete("first") as tx:
            write(ctx, tx)
        try:
            with ctx.complete("second") as tx:
                write(ctx, tx)
        except TransactionError as error:
            refused.append(str(error))

    job = define(body).enqueue()
    drain(app)
    assert (job.refresh().result, ledger(sql)) == ("first", [(job.id, 1)])
    assert "already completed" in refused[0]


def test_a_block_within_a_block_is_refused(app: Holdfast, define: Define, sql: Sql) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete("outer") as tx:
            write(ctx, tx)
            if ctx.attempt == 1:
                with ctx.complete("inner"):
                    pass
            with pytest.raises(TransactionError), ctx.complete("inner"):
                pass

    job = define(body, retry=0).enqueue()
    drain(app)
    assert (outcomes(app, job.id), job.refresh().result) == (["retry_scheduled", "succeeded"], "outer")
    assert ledger(sql) == [(job.id, 2)]


def test_what_would_wait_for_the_block_is_refused_in_it(app: Holdfast, define: Define, flow: Flow, sql: Sql) -> None:
    """An enqueue without conn=, a second transaction, an operation: each would wait for the end of the block."""
    would_wait: list[Callable[[], Any]] = [
        lambda: flow.job("child"),
        lambda: flow.step.enqueue_many([{"name": "child"}]),
        lambda: app.transaction().__enter__(),
        lambda: app.jobs.cancel(1),
        lambda: app.batch().__enter__(),
        lambda: app.external("approve"),
        lambda: app.queue("inbox").send("hello"),
    ]

    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            for call in would_wait:
                with pytest.raises(TransactionError, match="conn="):
                    call()
            if ctx.attempt == 1:
                flow.job("child")

    job = define(body, retry=0).enqueue()
    drain(app)
    assert (outcomes(app, job.id), ledger(sql)) == (["retry_scheduled", "succeeded"], [(job.id, 2)])
    assert app.jobs.count() == 1


# --- after it ---


@pytest.mark.parametrize("value", ["a result", Then])
def test_what_is_returned_after_it_is_too_late_and_logged(
    app: Holdfast, define: Define, flow: Flow, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    def body(ctx: Context) -> Any:
        with ctx.complete("in time"):
            pass
        return Then(flow.step, "too late") if value is Then else value

    job = define(body).enqueue()
    with caplog.at_level(logging.WARNING, "holdfast"):
        report = drain(app)
    assert (job.refresh().status, job.result, app.jobs.count(), report.succeeded) == ("succeeded", "in time", 1, 1)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "after ctx.complete()" in record.getMessage()
    assert str(job.id) in record.getMessage()
    assert "a result" not in record.getMessage() or value is not Then


@pytest.mark.parametrize("error", [ConnectionError("no line"), KeyboardInterrupt(), Then, SystemExit(3)])
def test_what_is_raised_after_it_does_not_undo_the_success(
    app: Holdfast, define: Define, sql: Sql, flow: Flow, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete("in time") as tx:
            write(ctx, tx)
        raise Then(flow.step, "too late") if error is Then else error

    job = define(body).enqueue()
    with caplog.at_level(logging.WARNING, "holdfast"):
        report = drain(app)
    assert (job.refresh().status, job.result, job.attempt) == ("succeeded", "in time", 1)
    assert (ledger(sql), report.succeeded, report.retried, report.failed) == ([(job.id, 1)], 1, 0, 0)
    assert "after ctx.complete(); the job has succeeded" in caplog.text
    assert "no line" not in caplog.text


def test_a_worker_says_that_it_succeeded(app: Holdfast, define: Define, caplog: pytest.LogCaptureFixture) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete("s3cret"):
            pass

    job = define(body).enqueue()
    with caplog.at_level(logging.INFO, "holdfast.worker"):
        drain(app)
    (line,) = [record for record in caplog.records if "succeeded" in record.getMessage()]
    assert line.getMessage().startswith(f"job {job.id} succeeded (attempt 1 of 5")
    assert line.holdfast["outcome"] == "succeeded"  # type: ignore[attr-defined]
    assert "s3cret" not in caplog.text


# --- out of time ---


def test_a_timeout_after_the_block_does_not_undo_the_success(live: Holdfast, sql: Sql) -> None:
    release = threading.Event()

    @live.task(timeout=3600)
    def job(ctx: Context) -> Any:
        with ctx.complete("in time") as tx:
            write(ctx, tx)
        let_time_run_out(ctx)
        eventually(lambda: ctx.cancelled)
        comes_true(release)

    @live.task(timeout=3600)
    async def job_later(ctx: Context) -> Any:
        with ctx.complete("in time") as tx:
            write(ctx, tx)
        let_time_run_out(ctx)
        await asyncio.sleep(2 * PATIENCE_SECONDS)

    jobs = [job.enqueue(), job_later.enqueue()]
    with RunningWorker(live) as running:
        eventually(lambda: all(one.refresh().is_finished for one in jobs))
        eventually(lambda: not running.worker._worker_run.dispatcher.active, "they are given up")
        report = running.stop()
        release.set()
    assert [(one.refresh().status, one.result, one.attempt) for one in jobs] == [("succeeded", "in time", 1)] * 2
    assert sorted(ledger(sql)) == sorted((one.id, 1) for one in jobs)
    assert (report.succeeded, report.retried, report.failed, report.lost) == (2, 0, 0, 0)


def test_if_the_time_ends_in_the_block_the_table_and_the_job_agree(live: Holdfast, sql: Sql) -> None:
    begun: list[int] = []

    @live.task(timeout=3600, retry=0, max_attempts=3)
    def job(ctx: Context) -> None:
        begun.append(ctx.attempt)
        with ctx.complete() as tx:
            write(ctx, tx)
            if ctx.attempt == 1:
                let_time_run_out(ctx)
                eventually(lambda: ctx.cancelled)

    one = job.enqueue()
    with RunningWorker(live):
        eventually(lambda: one.refresh().is_finished)
    assert one.status == "succeeded"
    assert ledger(sql) == [(one.id, one.attempt)], "the writes of the attempt that succeeded, and of no other"


def test_a_worker_that_is_stopped_in_the_block_leaves_the_table_and_the_job_in_agreement(
    live: Holdfast, sql: Sql
) -> None:
    inside, release = threading.Event(), threading.Event()

    @live.task
    def job(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            inside.set()
            comes_true(release)

    one = job.enqueue()
    with RunningWorker(live) as running:
        comes_true(inside)
        running.worker.stop()
        running.worker.stop()
        release.set()
        running.report()
    eventually(lambda: one.refresh().status != "running")
    assert (one.status, ledger(sql)) in [("succeeded", [(one.id, 1)]), ("ready", [])]
