"""Blockers: a job that waits for the chains of others, and finds their results."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.clock import SECOND
from holdfast.errors import InvalidInput, JobNotFound
from holdfast.failure import Failure
from holdfast.model.job import Claimed, ClaimRequest, Settlement
from holdfast.testing import FakeClock
from support.flow import Events, Flow, Sql, numbers, statuses
from support.running_worker import RunningWorker, drain, eventually

Claim = Callable[..., Claimed]


# --- waiting and being released ---


def test_a_job_waits_for_all_that_it_is_after(app: Holdfast, flow: Flow, events: Events) -> None:
    a, b = flow.job("a", queue="first"), flow.job("b", queue="second")
    c = flow.job("c", a, b)
    assert c.status == "blocked"
    drain(app, queues=["default"])
    assert flow.ran == []
    drain(app, queues=["first", "default"])
    assert (flow.ran, statuses(a, b, c)) == (["a"], ["succeeded", "ready", "blocked"])
    drain(app)
    assert (flow.ran, c.refresh().status) == (["a", "b", "c"], "succeeded")
    assert flow.found["c"] == ("A", "B")
    assert events(c.id) == ["enqueued", "unblocked", "claimed", "succeeded"]


def test_results_are_in_the_order_of_after(app: Holdfast, flow: Flow) -> None:
    a, b = flow.job("a"), flow.job("b")
    flow.job("c", b, a, b)
    drain(app)
    assert flow.found["c"] == ("B", "A", "B")


def test_a_handler_that_waited_for_nobody_has_no_blockers(app: Holdfast, flow: Flow) -> None:
    flow.job("a")
    flow.step.using(after=[]).enqueue("b")
    drain(app)
    assert flow.found == {"a": (), "b": ()}
    assert flow.step("in person") == "IN PERSON"
    assert flow.found["in person"] == ()


def test_the_results_of_blockers_have_their_types(app: Holdfast) -> None:
    @app.task
    def when() -> datetime:
        return datetime(2026, 6, 17, 12, tzinfo=UTC)

    @app.task
    def tell(ctx: Context) -> str:
        (moment,) = ctx.blocker_results
        return str(moment.year)

    job = tell.using(after=when.enqueue()).enqueue()
    drain(app)
    assert job.refresh().result == "2026"


def test_after_takes_jobs_chains_and_ids_in_any_iterable(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    for given in (a, a.id, app.chains.get(a.id), [a], (a.id,), (one for one in [a]), app.jobs.list()):
        waiting = flow.step.using(after=given).enqueue("x")
        assert waiting.status == "blocked", given
        app.jobs.cancel(waiting.id)
        app.jobs.delete(waiting.id)


def test_one_bound_task_makes_many_jobs_that_wait(app: Holdfast, flow: Flow) -> None:
    bound = flow.step.using(after=(flow.job(name) for name in "ab"))
    jobs = [bound.enqueue("c"), bound.enqueue("d")]
    ids = bound.enqueue_many([{"name": "e"}, {"name": "f"}])
    assert statuses(*jobs) == ["blocked"] * 2
    drain(app)
    assert numbers(app, [*(job.id for job in jobs), *ids]) == {"succeeded": 4}
    assert flow.found["c"] == flow.found["f"] == ("A", "B")


@pytest.mark.parametrize("after", [True, "1", 1.0, 0, -1, object(), ["1"], [None], [True], [[1]], {1: 2.5}.values()])
def test_what_is_no_job_is_refused(app: Holdfast, flow: Flow, after: Any) -> None:
    flow.job("a")
    with pytest.raises(InvalidInput):
        flow.step.using(after=after)


def test_nobody_waits_for_a_batch_or_a_message(app: Holdfast, flow: Flow) -> None:
    """Their ids are numbers, too, and may be those of other jobs."""
    with app.batch() as batch:
        flow.job("a", batch=batch)
    message = app.queue("inbox").send("hello")
    for after in (batch, [batch], app.queue("inbox").receive(), message, [message]):
        with pytest.raises(InvalidInput):
            flow.step.using(after=after).enqueue("x")  # type: ignore[arg-type]
    assert app.jobs.count() == 2


def test_a_job_that_does_not_exist_cannot_be_waited_for(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    with pytest.raises(JobNotFound, match="99"):
        flow.job("b", a, 99)
    with pytest.raises(JobNotFound, match="99"):
        flow.step.using(after=[99]).enqueue_many([{"name": "b"}])
    assert app.jobs.count() == 1


def test_a_job_waits_for_ten_thousand_at_most(app: Holdfast, flow: Flow) -> None:
    flow.step.using(after=range(1, 10_001))
    with pytest.raises(InvalidInput, match="batch"):
        flow.step.using(after=range(1, 10_002))


def test_blockers_that_have_ended_well_count_at_once(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    drain(app)
    b = flow.job("b", a)
    c = flow.job("c", a, delay=60)
    assert (b.status, c.status) == ("ready", "scheduled")
    (many,) = flow.step.using(after=[a]).enqueue_many([{"name": "d"}])
    assert app.jobs.get(many).status == "ready"
    drain(app)
    assert flow.found["b"] == flow.found["d"] == ("A",)


def test_a_time_that_lies_ahead_is_kept(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    a = flow.job("a")
    late, soon = flow.job("late", a, delay=3600), flow.job("soon", a, delay=60)
    run_at = late.run_at
    assert statuses(late, soon) == ["blocked", "blocked"]
    clock.advance(100)
    drain(app)
    assert statuses(late, soon) == ["scheduled", "succeeded"]
    assert late.run_at == run_at
    clock.advance(3500)
    drain(app)
    assert flow.ran == ["a", "soon", "late"]


def test_priority_is_kept(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a", priority=10)
    flow.job("low", a, priority=1)
    flow.job("high", a, priority=5)
    flow.job("other", priority=3)
    drain(app, concurrency=1)
    assert flow.ran[0] == "a"
    assert flow.ran.index("high") < flow.ran.index("low")


def test_a_blocked_job_is_seen_in_its_queue_and_in_lists(app: Holdfast, flow: Flow) -> None:
    flow.job("b", flow.job("a", queue="one"), queue="two")
    assert [(queue.name, queue.ready, queue.blocked) for queue in app.queues()] == [("one", 1, 0), ("two", 0, 1)]
    assert [job.args["name"] for job in app.jobs.list(status="blocked")] == ["b"]


# --- what it waits for is a chain ---


def test_a_job_waits_for_the_end_of_the_chain_and_has_its_last_result(app: Holdfast, flow: Flow) -> None:
    @app.task
    def root() -> Then:
        return Then(middle)

    @app.task(queue="slow")
    def middle() -> Then:
        return Then(flow.step.using(queue="slower"), "last")

    first = root.enqueue()
    waiting = flow.job("waiting", first)
    for queues in (["default"], ["default", "slow"]):
        drain(app, queues=queues)
        assert waiting.refresh().status == "blocked"
    drain(app)
    assert flow.found["waiting"] == ("LAST",)


def test_waiting_for_a_job_in_the_middle_is_waiting_for_its_chain(app: Holdfast, flow: Flow) -> None:
    @app.task
    def root() -> Then:
        return Then(middle)

    @app.task(queue="slow")
    def middle() -> Then:
        return Then(flow.step, "last")

    first = root.enqueue()
    drain(app, queues=["default"])
    waiting = flow.job("waiting", app.chains.get(first.id).last, app.chains.get(first.id))
    drain(app)
    assert flow.found["waiting"] == ("LAST", "LAST")
    assert waiting.refresh().status == "succeeded"


def test_a_job_in_a_chain_may_wait_for_others(app: Holdfast, flow: Flow) -> None:
    slow = flow.job("slow", queue="slow")

    @app.task
    def root() -> Then:
        return Then(flow.step.using(after=[slow], on_blocker_failure="fail"), "next")

    first = root.enqueue()
    waiting = flow.job("waiting", first)
    drain(app, queues=["default"])
    chain = app.chains.get(first.id)
    assert (chain.status, chain.last.on_blocker_failure) == ("blocked", "fail")
    drain(app)
    assert flow.ran == ["slow", "next", "waiting"]
    assert flow.found["next"] == ("SLOW",)
    assert waiting.refresh().status == "succeeded"


def test_a_job_in_a_chain_may_wait_for_what_has_ended(app: Holdfast, flow: Flow) -> None:
    early = flow.job("early")
    drain(app)

    @app.task
    def root() -> Then:
        return Then(flow.step.using(after=early), "next")

    first = root.enqueue()
    drain(app)
    assert first.wait_chain(timeout=0) == "NEXT"
    assert flow.found["next"] == ("EARLY",)


# --- in a transaction ---


@pytest.mark.parametrize("how", ["succeed", "succeed at length", "fail", "stop"])
@pytest.mark.parametrize("claims", [False, True])
def test_who_waits_is_told_by_whoever_ends_the_job(
    app: Holdfast, flow: Flow, claim: Claim, how: str, claims: bool
) -> None:
    """And need not wait for somebody to look."""
    blocker = flow.job("a")
    claimed = claim("step")
    jobs = [flow.job("b", blocker, queue="after", on_blocker_failure=policy) for policy in ("fail", "run")]
    flow.job("other")
    result = '"x"' if how == "succeed" else f'"{"x" * 5000}"' if how.startswith("succeed") else None
    ended = Settlement(claimed.lease, how.split()[0], 1, 2, result, failure=Failure("A:B"))  # type: ignore[arg-type]
    wanted = ClaimRequest(["step"], 1, 30 * SECOND, "worker-1", [("default", 1)])
    exchanged = app.store.jobs.settle_and_claim([ended], [wanted] if claims else [])
    assert (exchanged.lost, len(exchanged.claimed)) == ([], int(claims))
    assert statuses(*jobs) == (["ready", "ready"] if result else ["failed", "ready"])


def test_in_a_transaction_they_are_there_together_or_not_at_all(app: Holdfast, flow: Flow) -> None:
    with pytest.raises(KeyError), app.transaction() as tx:
        a = flow.job("a", conn=tx)
        assert flow.job("b", a, conn=tx).status == "blocked"
        raise KeyError
    assert app.jobs.count() == 0
    with app.transaction() as tx:
        a = flow.job("a", conn=tx)
        b = flow.job("b", a, conn=tx)
    assert statuses(a, b) == ["ready", "blocked"]
    drain(app)
    assert flow.ran == ["a", "b"]


def test_a_missing_blocker_leaves_the_callers_transaction_usable(app: Holdfast, flow: Flow) -> None:
    with app.transaction() as tx:
        with pytest.raises(JobNotFound):
            flow.job("b", 77, conn=tx)
        flow.job("c", conn=tx)
    drain(app)
    assert flow.ran == ["c"]


def test_an_end_by_plain_sql_counts_at_the_next_look_of_a_worker(live: Holdfast, sql: Sql) -> None:
    flow = Flow(live)
    a = flow.job("a", delay=3600)
    b = flow.job("b", a)
    with RunningWorker(live):
        sql("UPDATE holdfast_jobs SET status = 'succeeded', result = '\"by hand\"' WHERE id = ?", (a.id,))
        eventually(lambda: b.refresh().status == "succeeded")
    assert flow.found["b"] == ("by hand",)


def test_a_worker_that_waits_is_woken_by_a_release(no_polling: None, live: Holdfast) -> None:
    flow = Flow(live)
    approve = live.external("approve")
    job = flow.job("a", approve)
    with RunningWorker(live):
        eventually(lambda: live.workers())
        live.jobs.complete(approve.id, "yes")
        eventually(lambda: job.refresh().status == "succeeded")
