"""The block that makes a batch: what it raises, and whose transaction it is in."""

import pytest

from holdfast import Batch, Context, Holdfast, Job
from holdfast.errors import BatchNotFound
from support.backend import Backend
from support.flow import Flow, Sql, statuses
from support.running_worker import drain


def test_if_the_block_raises_its_members_are_cancelled_and_nobody_is_called(app: Holdfast, flow: Flow) -> None:
    jobs: list[Job[str]] = []
    batches: list[Batch] = []
    with pytest.raises(KeyError), app.batch(on_success=flow.step.s("yes"), on_done=flow.step.s("over")) as batch:
        batches.append(batch)
        jobs += [flow.job("a", batch=batch), flow.job("b", batch=batch, delay=60)]
        jobs.append(flow.job("c", jobs[0], batch=batch))
        raise KeyError("in the block")
    assert statuses(*jobs) == ["cancelled"] * 3
    assert "KeyError" in (jobs[0].error_detail or "")
    drain(app)
    assert flow.ran == []
    progress = batches[0].wait(timeout=0)
    assert (progress.cancelled, progress.total, progress.is_done) == (3, 3, True)


@pytest.mark.parametrize("members", ["none", "all have ended"])
def test_a_batch_whose_block_raised_is_done_even_if_there_is_nobody_to_cancel(
    app: Holdfast, flow: Flow, members: str
) -> None:
    with pytest.raises(KeyError), app.batch(on_done=flow.step.s("over"), on_success=flow.step.s("yes")) as batch:
        if members != "none":
            flow.job("a", batch=batch)
            drain(app)
        raise KeyError
    drain(app)
    assert flow.ran == ([] if members == "none" else ["a"])
    assert batch.wait(timeout=0).is_done


def test_in_a_transaction_a_batch_is_there_as_a_whole_or_not_at_all(app: Holdfast, flow: Flow) -> None:
    with (
        pytest.raises(KeyError),
        app.transaction() as tx,
        app.batch(on_done=flow.step.s("over"), conn=tx) as batch,
    ):
        flow.job("a", batch=batch, conn=tx)
        raise KeyError
    assert app.jobs.count() == 0
    with pytest.raises(BatchNotFound):
        batch.progress()
    with app.transaction() as tx:
        with app.batch(on_done=flow.step.s("over"), conn=tx) as batch:
            flow.job("b", batch=batch, conn=tx)
        with pytest.raises(BatchNotFound):
            app.batches.get(batch.id)  # as others see it
    drain(app)
    assert flow.ran == ["b", "over"]


def test_in_a_transaction_of_the_users_own_connection(app: Holdfast, flow: Flow, backend: Backend, sql: Sql) -> None:
    sql("CREATE TABLE orders (number INTEGER)")
    connection = backend.connect()
    try:
        for ends_well in (False, True):
            connection.execute("INSERT INTO orders VALUES (7)")
            with app.batch(on_done=flow.step.s("over"), conn=connection) as batch:
                flow.step.using(batch=batch, conn=connection).enqueue_many([{"name": "a"}, {"name": "b"}])
            if ends_well:
                connection.commit()
            else:
                connection.rollback()
    finally:
        connection.close()
    drain(app)
    assert sorted(flow.ran) == ["a", "b", "over"]
    assert sql("SELECT count(*) FROM orders") == [(1,)]


def test_an_error_that_is_dealt_with_inside_the_transaction_gives_the_batch_up(app: Holdfast, flow: Flow) -> None:
    with app.transaction() as tx:
        with pytest.raises(KeyError), app.batch(on_done=flow.step.s("over"), conn=tx) as batch:
            flow.job("a", batch=batch, conn=tx)
            raise KeyError
        flow.job("b", conn=tx)
    drain(app)
    assert flow.ran == ["b"]
    assert batch.wait(timeout=0).cancelled == 1


def test_a_handler_may_make_a_batch(app: Holdfast, flow: Flow) -> None:
    made: list[int] = []

    @app.task
    def split(ctx: Context) -> None:
        with app.batch(on_success=flow.step.s("joined")) as batch:
            for name in "abc":
                flow.job(name, batch=batch)
        made.append(batch.id)

    split.enqueue()
    drain(app)
    assert (flow.ran[-1], sorted(flow.ran[:-1]), len(made)) == ("joined", ["a", "b", "c"], 1)


def test_a_handler_may_make_a_batch_with_its_own_success(app: Holdfast, flow: Flow) -> None:
    @app.task(max_attempts=2, retry=0)
    def split(ctx: Context) -> None:
        with ctx.complete() as tx, app.batch(on_success=flow.step.s("joined"), conn=tx) as batch:
            for name in "abc":
                flow.job(name, batch=batch, conn=tx)
            if ctx.attempt == 1:
                raise ConnectionError

    job = split.enqueue()
    drain(app)
    assert (flow.ran[-1], sorted(flow.ran[:-1])) == ("joined", ["a", "b", "c"])
    assert (job.refresh().status, job.attempt) == ("succeeded", 2)


def test_what_waits_for_the_callback_waits_for_all_members(app: Holdfast, flow: Flow) -> None:
    """A batch itself is nothing to wait for; its callback is, once it is there."""
    with app.batch(on_success=flow.step.using(queue="late").s("joined")) as batch:
        flow.job("a", batch=batch)
    drain(app, queues=["default"])
    assert batch.success_job_id is not None
    flow.job("after all", batch.success_job_id)
    drain(app)
    assert flow.ran == ["a", "joined", "after all"]
