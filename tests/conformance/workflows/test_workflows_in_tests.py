"""Chains, blockers, batches and external jobs in tests of programs: inline, drain, assert_enqueued."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then, group
from holdfast.clock import as_datetime
from holdfast.errors import NeverIdle
from holdfast.testing import FakeClock, assert_enqueued, drain, enqueued, inline, refute_enqueued
from support.flow import Flow, Sql, statuses
from support.plain import filled


def add_walk(app: Holdfast) -> Any:
    @app.task
    def walk(left: int, delay: int = 0) -> Any:
        return Then(walk.using(delay=delay), left - 1, delay) if left else "there"

    return walk


# --- drain ---


def test_drain_walks_a_chain_to_its_end(app: Holdfast, clock: FakeClock) -> None:
    start = clock.now()
    walk = add_walk(app)
    quick, slow = walk.enqueue(3), walk.enqueue(3, 3600)
    ran = drain(app)
    assert (ran.succeeded, len(ran)) == (8, 8)
    assert quick.wait_chain(timeout=0) == slow.wait_chain(timeout=0) == "there"
    assert clock.now() - start == 3 * 3600 * 1_000_000


def test_drain_stops_at_a_time_in_the_middle_of_a_chain(app: Holdfast, clock: FakeClock) -> None:
    root = add_walk(app).enqueue(3, 60)
    drain(app, seconds=90)
    chain = app.chains.get(root.id)
    assert (chain.length, chain.status) == (3, "scheduled")
    drain(app)
    assert chain.refresh().status == "succeeded"


def test_drain_runs_what_is_released_on_the_way(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a", delay=60)
    flow.job("b", a, delay=30)
    flow.job("c", a, delay=90)
    held = flow.job("held", flow.failed_job())
    ran = drain(app)
    assert flow.ran == ["a", "b", "c"]
    assert (ran.succeeded, held.refresh().status) == (3, "blocked")


def test_drain_runs_the_callbacks_of_a_batch(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("b")
    with app.batch(on_success=flow.step.s("success"), on_done=flow.step.using(delay=10).s("done")) as batch:
        for name in "abc":
            flow.job(name, batch=batch)
    ran = drain(app)
    assert (ran.succeeded, ran.failed) == (3, 1)
    assert flow.ran == ["a", "b", "c", "done"]
    assert batch.progress().is_done


def test_drain_goes_on_to_the_deadline_of_an_external_job(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    deadline = as_datetime(clock.now()) + timedelta(hours=1)
    approve = app.external("approve", timeout_at=deadline)
    for_ever = app.external("approve")
    flow.job("a", approve, on_blocker_failure="run")
    drain(app, seconds=3599)
    assert approve.refresh().status == "blocked"
    drain(app)
    assert (approve.refresh().error_code, flow.ran) == ("TIMEOUT:EXTERNAL", ["a"])
    assert (for_ever.refresh().status, as_datetime(clock.now())) == ("blocked", deadline)


def test_drain_counts_those_that_wait_for_others(app: Holdfast, flow: Flow) -> None:
    """Its limit is for what goes on for ever, not for what was there when it began."""
    blocker = flow.job("a")
    flow.step.using(after=blocker).enqueue_many([{"name": f"n{n}"} for n in range(1200)])
    assert drain(app).succeeded == 1201


def test_drain_stops_a_chain_that_never_ends(app: Holdfast) -> None:
    @app.task
    def forever() -> Then:
        return Then(forever)

    forever.enqueue()
    with pytest.raises(NeverIdle, match="forever"):
        drain(app, limit=50)


def test_drain_counts_what_completed_itself_and_what_was_lost(app: Holdfast, sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER)")

    @app.task(retry=0)
    def job(ctx: Context, cancels: bool) -> Any:
        if cancels:
            app.jobs.cancel(ctx.job_id or 0)
        with ctx.complete("done") as tx:
            tx.execute(filled("INSERT INTO ledger VALUES (?)", ctx.job_id))
            if ctx.attempt == 1 and ctx.job_id == 3:
                raise ConnectionError

    job.enqueue_many([{"cancels": False}, {"cancels": True}, {"cancels": False}])
    ran = drain(app)
    assert (ran.succeeded, ran.lost, ran.retried) == (2, 1, 1)
    assert sql("SELECT job FROM ledger ORDER BY job") == [(1,), (3,)]
    assert [type(error).__name__ for error in ran.errors] == ["LeaseLost", "ConnectionError"]


# --- inline ---


def test_inline_runs_a_chain_before_enqueue_returns(app: Holdfast) -> None:
    walk = add_walk(app)
    with inline(app):
        root = walk.enqueue(200)
        assert root.wait_chain(timeout=0) == "there"
    assert (root.status, app.chains.get(root.id).length) == ("succeeded", 201)


def test_inline_runs_who_waited_when_the_last_blocker_has_ended(app: Holdfast, flow: Flow) -> None:
    a, b = flow.job("a"), app.external("b")
    waiting = flow.job("c", a, b)
    below = flow.job("d", waiting)
    with inline(app):
        app.jobs.complete(b.id, "B")
        assert flow.ran == []
        app.jobs.complete(a.id, "by hand")
        assert flow.ran == ["c", "d"]
    assert flow.found["c"] == ("by hand", "B")
    assert statuses(waiting, below) == ["succeeded", "succeeded"]


def test_inline_runs_a_job_whose_blockers_have_ended_at_once(app: Holdfast, flow: Flow) -> None:
    with inline(app):
        a = flow.job("a")
        b = flow.job("b", a)
        assert (b.status, b.result) == ("succeeded", "B")


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_inline_runs_what_is_to_run_after_a_failure(app: Holdfast, flow: Flow, how: str) -> None:
    approve = app.external("approve")
    between = flow.job("between", approve, on_blocker_failure="fail")
    flow.job("run", between, on_blocker_failure="run")
    with inline(app):
        if how == "fail":
            app.jobs.fail(approve.id, "REJECTED:BUDGET")
        else:
            app.jobs.cancel(approve.id)
        assert flow.ran == ["run"]


def test_inline_runs_the_callbacks_when_the_block_of_a_batch_ends(app: Holdfast, flow: Flow) -> None:
    with inline(app):
        with app.batch(on_success=flow.step.s("success"), on_done=flow.step.s("done")) as batch:
            flow.job("a", batch=batch)
            flow.step.using(batch=batch).enqueue_many([{"name": "b"}])
            assert flow.ran == ["a", "b"]
        assert sorted(flow.ran[2:]) == ["done", "success"]
        with app.batch(on_done=flow.step.s("empty")):
            pass
        assert flow.ran[4:] == ["empty"]
    assert batch.progress().succeeded == 2


def test_inline_runs_a_static_graph(app: Holdfast, flow: Flow) -> None:
    with inline(app):
        jobs = app.pipeline(flow.step.s("a"), group(flow.step.s("b"), flow.step.s("c")), flow.step.s("d"))
        assert flow.ran == ["a", "b", "c", "d"]
    assert statuses(*jobs) == ["succeeded"] * 4


def test_inline_runs_what_a_block_brought_when_it_has_committed(app: Holdfast, flow: Flow, sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER)")

    @app.task
    def job(ctx: Context) -> Any:
        with ctx.complete(Then(flow.step, "next")) as tx:
            tx.execute(filled("INSERT INTO ledger VALUES (?)", ctx.job_id))
            flow.job("child", conn=tx)
            assert flow.ran == []

    with inline(app):
        root = job.enqueue()
        assert sorted(flow.ran) == ["child", "next"]
    assert (root.wait_chain(timeout=0), sql("SELECT job FROM ledger")) == ("NEXT", [(root.id,)])


def test_inline_raises_what_a_block_raised_and_nothing_of_it_is_stored(app: Holdfast, flow: Flow) -> None:
    @app.task(max_attempts=1)
    def job(ctx: Context) -> None:
        with ctx.complete() as tx:
            flow.job("child", conn=tx)
            raise ConnectionError("no line")

    with inline(app), pytest.raises(ConnectionError, match="no line"):
        job.enqueue()
    assert (app.jobs.count(), flow.ran) == (1, [])


def test_inline_runs_thousands_of_dependents(app: Holdfast, flow: Flow) -> None:
    approve = app.external("approve")
    flow.step.using(after=approve).enqueue_many([{"name": f"n{n}"} for n in range(2500)])
    with inline(app, limit=3000):
        app.jobs.complete(approve.id)
    assert app.jobs.count(status="succeeded") == 2501


# --- what was enqueued ---


def test_a_continuation_and_a_callback_are_found_as_enqueued(app: Holdfast, flow: Flow) -> None:
    @app.task
    def root() -> Then:
        return Then(flow.step.using(queue="slow", delay=60), "next")

    root.enqueue()
    with app.batch(on_done=flow.step.s("callback")):
        pass
    drain(app, seconds=0)
    (found,) = assert_enqueued(flow.step, "next", queue="slow", delay=60, status="scheduled")
    assert found.chain_index == 1
    assert_enqueued(flow.step, name="callback", count=1)
    refute_enqueued(flow.step, "other")


def test_what_waits_is_found_by_what_it_was_enqueued_with(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    with app.batch() as batch:
        b = flow.job("b", a, batch=batch, on_blocker_failure="fail")
    assert [job.id for job in assert_enqueued(flow.step, status="blocked")] == [b.id]
    bound = flow.step.using(after=a, batch=batch, on_blocker_failure="fail")
    assert [job.id for job in assert_enqueued(bound, "b")] == [b.id]
    refute_enqueued(flow.step.using(after=a, on_blocker_failure="cancel"), "b")
    approve = app.external("approve", {"id": 7})
    assert approve.id in [job.id for job in enqueued(app, status="blocked")]
