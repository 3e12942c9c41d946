"""Blockers: large and small graphs, ends at the same instant, and circles."""

import threading
from typing import Any

from holdfast import Context, Holdfast, Job, Then
from holdfast.clock import SECOND
from holdfast.errors import CircularWait
from holdfast.model.job import Claimed, Settlement
from support.flow import Flow, Open, Sql, statuses
from support.running_worker import PATIENCE_SECONDS, drain
from support.transitions import claim_tasks, resolve

# --- shapes ---


def test_a_diamond(app: Holdfast, flow: Flow) -> None:
    top = flow.job("top")
    left, right = flow.job("left", top), flow.job("right", top)
    bottom = flow.job("bottom", left, right)
    drain(app)
    assert flow.ran[0] == "top"
    assert sorted(flow.ran[1:3]) == ["left", "right"]
    assert flow.ran[3:] == ["bottom"]
    assert flow.found["left"] == flow.found["right"] == ("TOP",)
    assert flow.found["bottom"] == ("LEFT", "RIGHT")
    assert bottom.wait(timeout=0) == "BOTTOM"


def test_a_job_after_a_thousand(app: Holdfast, flow: Flow) -> None:
    ids = flow.step.enqueue_many([{"name": f"n{n}"} for n in range(1000)])
    last = flow.step.using(after=ids[::-1]).enqueue("last")
    drain(app)
    assert flow.ran[-1] == "last"
    assert flow.found["last"] == tuple(f"N{n}" for n in range(999, -1, -1))
    assert last.refresh().status == "succeeded"


def test_five_thousand_after_one(app: Holdfast, flow: Flow, sql: Sql) -> None:
    first = flow.job("first")
    ids = flow.step.using(after=[first]).enqueue_many([{"name": f"n{n}"} for n in range(5000)])
    assert app.jobs.count(status="blocked") == 5000
    drain(app)
    assert app.jobs.count(status="succeeded") == 5001
    assert sorted(flow.ran[1:]) == sorted(f"n{n}" for n in range(5000))
    unblocked = "SELECT count(*), count(DISTINCT job_id) FROM holdfast_events WHERE event = 'unblocked'"
    assert sql(unblocked) == [(len(ids), len(ids))], "each once"
    assert sql("SELECT * FROM holdfast_endings") == []


def test_a_line_of_a_thousand(app: Holdfast, flow: Flow) -> None:
    with app.transaction() as tx:
        job = flow.job("n0", conn=tx)
        for n in range(1, 1000):
            job = flow.job(f"n{n}", job, conn=tx)
    drain(app)
    assert flow.ran == [f"n{n}" for n in range(1000)]


def test_blockers_that_end_together_release_the_job_once(open_app: Open, live: Holdfast, sql: Sql) -> None:
    """Two apps, as in two processes: each has a connection and a worker of its own."""
    apps = [live, open_app()]
    for one in apps:
        Flow(one)
    step = live.tasks["step"]
    for turn in range(60):
        blockers = [step.enqueue(f"{turn}-{side}") for side in "ab"]
        waiting = step.using(after=blockers, queue="after").enqueue(f"{turn}-c")
        claims = [claim_tasks(one.store, ["default"], ["step"], 1, 30 * SECOND, "w")[0] for one in apps]
        gate = threading.Barrier(2)

        def settle(one: Holdfast, claimed: Claimed, gate: threading.Barrier = gate) -> None:
            gate.wait(PATIENCE_SECONDS)
            one.store.jobs.settle_and_claim([Settlement(claimed.lease, "succeed", 1, 2, result='"x"')], [])

        threads = [threading.Thread(target=settle, args=pair) for pair in zip(apps, claims, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        resolve(live.store)
        assert waiting.refresh().status == "ready", turn
    count = "SELECT count(*), count(DISTINCT job_id) FROM holdfast_events WHERE event = 'unblocked'"
    assert sql(count) == [(60, 60)]


def test_tables_of_another_name(open_app: Open) -> None:
    app = open_app(prefix="other_")
    flow = Flow(app)

    @app.task
    def root() -> Then:
        return Then(flow.step, "next")

    with app.batch(on_success=flow.step.s("callback")) as batch:
        first = root.using(batch=batch).enqueue()
        bad = flow.job("bad", first, app.external("approve"), batch=batch, on_blocker_failure="fail")
    drain(app)
    app.jobs.cancel(task="approve")
    assert bad.refresh().error_code == "DEPENDENCY:BLOCKER"
    app.jobs.retry(task="approve")
    app.jobs.retry(bad.id)
    app.jobs.complete(app.jobs.list(task="approve")[0].id)
    drain(app)
    assert flow.ran == ["next", "bad", "callback"]
    assert app.jobs.delete(status="succeeded") == 5


# --- circles ---


def test_a_chain_cannot_wait_for_itself(app: Holdfast, flow: Flow) -> None:
    waiting: list[Job[Any]] = []

    @app.task
    def root(ctx: Context, case: str) -> Then:
        mine = ctx.job_id
        after = {"itself": [mine], "direct": waiting[:1], "far": waiting[2:3]}[case]
        return Then(flow.step.using(after=after), "never")

    for case in ("itself", "direct", "far"):
        first = root.enqueue(case)
        waiting[:] = [flow.job("one", first)]
        waiting.append(flow.job("two", waiting[0]))
        waiting.append(flow.job("three", waiting[1]))
        drain(app)
        assert (first.refresh().status, first.error_code) == ("failed", "RESULT:BAD_CONTINUATION"), case
        assert "wait for itself" in (first.error_detail or "")
        assert app.chains.get(first.id).length == 1
        assert statuses(*waiting) == ["blocked"] * 3


def test_a_circle_is_told_to_whoever_completes(app: Holdfast, flow: Flow) -> None:
    caught: list[Exception] = []

    @app.task(max_attempts=1)
    def root(ctx: Context) -> None:
        try:
            with ctx.complete(Then(flow.step.using(after=[ctx.job_id]), "never")):
                pass
        except CircularWait as error:
            caught.append(error)
            raise

    first = root.enqueue()
    drain(app)
    assert len(caught) == 1
    assert first.refresh().status == "failed"
    assert app.jobs.count() == 1


def test_no_circle_comes_of_retrying(app: Holdfast, flow: Flow) -> None:
    """What once gave up waiting for a chain may be what that chain goes on to wait for."""
    held: list[Job[Any]] = []

    @app.task(max_attempts=1)
    def root(ctx: Context) -> Then:
        if ctx.attempt == 1:
            raise ConnectionError
        return Then(flow.step.using(after=held), "end")

    first = root.enqueue()
    held.append(flow.job("held", first, on_blocker_failure="fail"))
    drain(app)
    assert statuses(first, *held) == ["failed", "failed"]
    app.jobs.retry(first.id)
    drain(app)
    assert app.chains.get(first.id).status == "blocked"
    app.jobs.retry(held[0].id)
    drain(app)
    circle = [app.chains.get(first.id).status, held[0].refresh().status]
    assert circle != ["blocked", "blocked"], "each waits for the other, for ever"


def test_no_circle_comes_of_retrying_two_at_once(app: Holdfast, flow: Flow) -> None:
    held: list[Job[Any]] = []

    @app.task(max_attempts=1)
    def root(ctx: Context) -> Then:
        if ctx.attempt == 1:
            raise ConnectionError
        return Then(flow.step.using(after=held, on_blocker_failure="fail"), "end")

    first = root.enqueue()
    held.append(flow.job("held", first, on_blocker_failure="fail"))
    drain(app)
    app.jobs.retry(first.id)
    drain(app)
    last = app.chains.get(first.id).last
    assert statuses(last, *held) == ["failed", "failed"], "each gave up on the other"
    app.jobs.retry(status="failed")
    drain(app)
    assert statuses(last, *held) != ["blocked", "blocked"], "each waits for the other, for ever"
