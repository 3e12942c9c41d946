"""Completing in coroutines: a block must not await, and acomplete does the work in a thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.errors import LeaseLost, TransactionError
from holdfast.worker.event_loop import EventLoop
from support.backend import Backend
from support.flow import Flow, Sql
from support.plain import filled
from support.running_worker import drain, outcomes


@pytest.fixture(autouse=True)
def _ledger(sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER, attempt INTEGER)")


def write(ctx: Context, tx: Any) -> None:
    tx.execute(filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))


def ledger(sql: Sql) -> list[Any]:
    return sorted(sql("SELECT job, attempt FROM ledger"))


def test_acomplete_runs_a_function_of_the_transaction(app: Holdfast, flow: Flow, sql: Sql) -> None:
    returned: list[Any] = []

    @app.task
    async def job(ctx: Context) -> None:
        def work(tx: Any) -> str:
            write(ctx, tx)
            flow.job("child", conn=tx)
            tx.result = Then(flow.step, "next")
            return "returned"

        returned.append(await ctx.acomplete(work, "not this"))

    one = job.enqueue()
    report = drain(app)
    assert (one.wait_chain(timeout=0), returned) == ("NEXT", ["returned"])
    assert (ledger(sql), sorted(flow.ran), report.succeeded) == ([(one.id, 1)], ["child", "next"], 3)


def test_what_is_raised_in_acomplete_undoes_it(app: Holdfast, sql: Sql) -> None:
    @app.task(retry=0)
    async def job(ctx: Context) -> Any:
        def work(tx: Any) -> None:
            write(ctx, tx)
            if ctx.attempt == 1:
                raise ConnectionError

        await ctx.acomplete(work, "done")

    one = job.enqueue()
    drain(app)
    assert (outcomes(app, one.id), one.refresh().result) == (["retry_scheduled", "succeeded"], "done")
    assert ledger(sql) == [(one.id, 2)]


def test_acomplete_tells_of_a_lost_lease(app: Holdfast, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLoop, "_cancel", lambda *_: None)  # on a slow machine the worker would do so first
    caught: list[BaseException] = []

    @app.task
    async def job(ctx: Context) -> None:
        app.jobs.cancel(ctx.job_id or 0)
        try:
            await ctx.acomplete(lambda tx: write(ctx, tx))
        except LeaseLost as error:
            caught.append(error)
            raise

    one = job.enqueue()
    report = drain(app)
    assert (len(caught), one.refresh().status, ledger(sql), report.lost) == (1, "cancelled", [], 1)


def test_many_coroutines_complete_at_the_same_time(app: Holdfast, sql: Sql) -> None:
    @app.task(max_attempts=1)
    async def job(ctx: Context, n: int) -> Any:
        await asyncio.sleep(0)
        if n % 2:
            await ctx.acomplete(lambda tx: write(ctx, tx), n)
        else:
            with ctx.complete(n) as tx:
                write(ctx, tx)
        await asyncio.sleep(0)

    ids = job.enqueue_many([{"n": n} for n in range(60)])
    report = drain(app, concurrency=20)
    assert report.succeeded == 60
    assert [app.jobs.get(job_id).result for job_id in ids] == list(range(60))
    assert [
        job_id for job_id, _attempt in ledger(sql)
    ] == ids  # each once; one that had to wait may have been given back


def test_a_coroutine_that_awaits_in_the_block_fails_and_stores_nothing(app: Holdfast, sql: Sql) -> None:
    @app.task(retry=0, max_attempts=2)
    async def waits(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            await asyncio.sleep(0.01)

    one = waits.enqueue()
    drain(app)
    assert (one.refresh().status, one.attempt, ledger(sql)) == ("failed", 2, [])
    assert "must not await" in (one.error_detail or "")


def test_aenqueue_in_the_block_fails_and_does_not_hang(app: Holdfast, flow: Flow, sql: Sql) -> None:
    caught: list[type[BaseException]] = []

    @app.task(max_attempts=1)
    async def job(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            try:
                await flow.step.aenqueue("child")
            except TransactionError as error:
                caught.append(type(error))
                raise

    one = job.enqueue()
    drain(app)
    assert (one.refresh().status, ledger(sql), flow.ran, caught) == ("failed", [], [], [TransactionError])


def test_an_ordinary_call_of_a_coroutine_completes_in_a_transaction(app: Holdfast, sql: Sql) -> None:
    @app.task
    async def job(ctx: Context, how: str) -> None:
        if how == "acomplete":
            await ctx.acomplete(lambda tx: write(ctx, tx))
        else:
            with ctx.complete() as tx:
                write(ctx, tx)

    asyncio.run(job("acomplete"))
    asyncio.run(job("complete"))
    assert ledger(sql) == [(None, 0), (None, 0)]


# --- async with ctx.acomplete() ---


def test_a_block_commits_with_the_success_of_the_job(app: Holdfast, flow: Flow, sql: Sql) -> None:
    @app.task
    async def job(ctx: Context) -> str:
        async with ctx.acomplete(result="not this") as tx:
            write(ctx, tx)
            flow.job("child", conn=tx)
            tx.result = Then(flow.step, "next")
        return ""

    one = job.enqueue()
    report = drain(app)
    assert one.wait_chain(timeout=0) == "NEXT"
    assert (ledger(sql), sorted(flow.ran), report.succeeded) == ([(one.id, 1)], ["child", "next"], 3)


def test_what_is_raised_in_the_block_undoes_it(app: Holdfast, sql: Sql) -> None:
    @app.task(retry=0)
    async def job(ctx: Context) -> Any:
        async with ctx.acomplete(result="done") as tx:
            write(ctx, tx)
            if ctx.attempt == 1:
                raise ConnectionError

    one = job.enqueue()
    drain(app)
    assert (outcomes(app, one.id), one.refresh().result) == (["retry_scheduled", "succeeded"], "done")
    assert ledger(sql) == [(one.id, 2)]


def test_a_lost_lease_is_told_when_the_block_ends(app: Holdfast, sql: Sql) -> None:
    caught: list[type[Exception]] = []

    @app.task
    async def job(ctx: Context) -> None:
        app.jobs.cancel(ctx.job_id or 0)
        try:
            async with ctx.acomplete() as tx:
                write(ctx, tx)
        except LeaseLost as error:
            caught.append(type(error))
            raise

    job.enqueue()
    drain(app)
    assert (caught, ledger(sql)) == ([LeaseLost], [])


def test_awaiting_in_the_block_is_refused_and_undoes_it(app: Holdfast, sql: Sql) -> None:
    @app.task(max_attempts=1)
    async def job(ctx: Context) -> None:
        async with ctx.acomplete() as tx:
            write(ctx, tx)
            await asyncio.sleep(0)

    one = job.enqueue()
    drain(app)
    assert one.refresh().status == "failed" and "must not await" in (one.error_detail or "")
    assert ledger(sql) == []


def test_a_plain_write_in_the_block_that_is_not_part_of_it_is_refused_at_once(app: Holdfast, flow: Flow) -> None:
    refused: list[str] = []

    @app.task
    async def job(ctx: Context) -> None:
        async with ctx.acomplete():
            try:
                flow.job("without conn")
            except TransactionError as error:
                refused.append(str(error))

    one = job.enqueue()
    drain(app)
    assert one.refresh().status == "succeeded" and "pass conn=tx" in refused[0]


def test_many_coroutines_complete_at_once_with_few_threads(app: Holdfast, sql: Sql) -> None:
    """Each waits in a thread for the lock; the end of a block does not need one of these threads."""

    @app.task
    async def job(ctx: Context, n: int) -> None:
        async with ctx.acomplete() as tx:
            tx.execute(filled("INSERT INTO ledger VALUES (?, ?)", n, 0))

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        await asyncio.gather(*(job(n) for n in range(20)))

    asyncio.run(main())
    assert ledger(sql) == [(n, 0) for n in range(20)]


def test_a_cancelled_block_is_undone(app: Holdfast, backend: Backend, sql: Sql) -> None:
    """Cancelled while it waits to begin: the transaction that it then gets is rolled back."""

    @app.task
    async def job(ctx: Context) -> None:
        async with ctx.acomplete() as tx:
            write(ctx, tx)

    async def main() -> None:
        with backend.hold_transactions(app) as held:
            completing = asyncio.ensure_future(job())
            await asyncio.sleep(0.05)
            completing.cancel()
            asyncio.get_running_loop().call_later(0.05, held.release)
            with pytest.raises(asyncio.CancelledError):
                await completing
        app.queue("inbox").send("the lock is free")

    asyncio.run(main())
    assert ledger(sql) == []
