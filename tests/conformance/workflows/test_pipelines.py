"""Pipelines: app.pipeline(…) and group(…) write common shapes in one line, and make jobs with after=."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then, group
from holdfast.errors import InvalidArguments, InvalidInput
from support.backend import Backend
from support.flow import Flow, Sql, statuses
from support.running_worker import drain


@pytest.fixture
def s(flow: Flow) -> Any:
    return flow.step.s


def test_steps_run_one_after_the_other(app: Holdfast, flow: Flow, s: Any) -> None:
    a, b, c = app.pipeline(s("a"), s("b"), s("c"))
    assert statuses(a, b, c) == ["ready", "blocked", "blocked"]
    drain(app)
    assert flow.ran == ["a", "b", "c"]
    assert flow.found == {"a": (), "b": ("A",), "c": ("B",)}


def test_a_group_runs_together_and_what_comes_next_waits_for_all_of_it(app: Holdfast, flow: Flow, s: Any) -> None:
    jobs = app.pipeline(s("top"), group(s("left"), s("right")), s("bottom"))
    assert [job.args["name"] for job in jobs] == ["top", "left", "right", "bottom"]
    assert statuses(*jobs) == ["ready", "blocked", "blocked", "blocked"]
    drain(app)
    assert (flow.ran[0], sorted(flow.ran[1:3]), flow.ran[3]) == ("top", ["left", "right"], "bottom")
    assert flow.found["left"] == flow.found["right"] == ("TOP",)
    assert flow.found["bottom"] == ("LEFT", "RIGHT")


def test_groups_stand_anywhere(app: Holdfast, flow: Flow, s: Any) -> None:
    jobs = app.pipeline(group(s("a"), s("b")), group(s("c"), s("d")), group(s("e")))
    assert statuses(*jobs) == ["ready"] * 2 + ["blocked"] * 3
    drain(app)
    assert flow.found["c"] == flow.found["d"] == ("A", "B")
    assert flow.found["e"] == ("C", "D")


def test_a_single_step_is_a_plain_job(app: Holdfast, flow: Flow, s: Any) -> None:
    (job,) = app.pipeline(s("alone"))
    assert job.status == "ready"
    drain(app)
    assert flow.ran == ["alone"]


def test_they_are_rows_like_any_others(app: Holdfast, flow: Flow, s: Any, sql: Sql) -> None:
    """Each is a chain of its own, and waits by the same rows as with after=."""
    jobs = app.pipeline(s("a"), group(s("b"), s("c")), s("d"))
    assert [(job.chain_id, job.chain_index) for job in jobs] == [(job.id, 0) for job in jobs]
    edges = sql("SELECT job_id, position, chain_id FROM holdfast_blockers ORDER BY job_id, position")
    a, b, c, d = (job.id for job in jobs)
    assert edges == [(b, 0, a), (c, 0, a), (d, 0, b), (d, 1, c)]
    by_hand = flow.job("by hand", jobs[1], jobs[2])
    assert sql("SELECT status, on_blocker_failure FROM holdfast_jobs WHERE id IN (?, ?)", (d, by_hand.id)) == [
        ("blocked", None),
        ("blocked", None),
    ]


def test_a_step_keeps_its_options_and_may_be_used_again(app: Holdfast, flow: Flow) -> None:
    first = flow.job("first", queue="elsewhere")
    bound = flow.step.using(queue="slow", priority=7, tags=["t"], delay=60, after=[first], on_blocker_failure="fail")
    step = bound.s("b")
    for _ in range(2):
        a, b = app.pipeline(flow.step.s("a"), step)
        assert (b.queue, b.priority, b.tags, b.on_blocker_failure) == ("slow", 7, ("t",), "fail")
        assert (b.run_at - b.created_at).total_seconds() == 60
        drain(app, queues=["default"])
        assert statuses(a, b) == ["succeeded", "blocked"], "it waits for its own, too"
    drain(app)
    assert b.refresh().status == "scheduled"


def test_a_policy_says_what_becomes_of_the_rest(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("a")
    fail = flow.step.using(on_blocker_failure="fail")
    jobs = app.pipeline(flow.step.s("a"), fail.s("b"), fail.s("c"))
    held = app.pipeline(flow.step.s("a"), flow.step.s("d"))
    drain(app)
    assert statuses(*jobs, *held) == ["failed", "failed", "failed", "failed", "blocked"]


def test_a_step_that_goes_on_as_a_chain_is_waited_for_to_its_end(app: Holdfast, flow: Flow, s: Any) -> None:
    @app.task
    def walk(left: int) -> Any:
        return Then(walk, left - 1) if left else "there"

    app.pipeline(walk.s(3), s("after"))
    drain(app)
    assert flow.found["after"] == ("there",)


def test_all_are_stored_in_one_transaction_or_none(app: Holdfast, flow: Flow, s: Any, tmp_path: Path) -> None:
    missing = flow.step.using(after=[99]).s("waits for nobody")
    with pytest.raises(LookupError):
        app.pipeline(s("a"), s("b"), missing)
    assert app.jobs.count() == 0


def test_in_the_users_transaction(app: Holdfast, flow: Flow, s: Any, backend: Backend) -> None:
    with pytest.raises(KeyError), app.transaction() as tx:
        app.pipeline(s("a"), s("b"), conn=tx)
        raise KeyError
    connection = backend.connect()
    try:
        app.pipeline(s("c"), s("d"), conn=connection)
        connection.rollback()
        app.pipeline(s("e"), group(s("f")), conn=connection)
        connection.commit()
    finally:
        connection.close()
    drain(app)
    assert flow.ran == ["e", "f"]


def test_in_a_handler_with_its_success(app: Holdfast, flow: Flow, s: Any) -> None:
    @app.task(retry=0)
    def plan(ctx: Context) -> None:
        with ctx.complete() as tx:
            app.pipeline(s("a"), s("b"), conn=tx)
            if ctx.attempt == 1:
                raise ConnectionError

    plan.enqueue()
    drain(app)
    assert flow.ran == ["a", "b"]


def test_members_of_a_batch_may_be_steps(app: Holdfast, flow: Flow, s: Any) -> None:
    with app.batch(on_success=s("callback")) as batch:
        inside = flow.step.using(batch=batch)
        app.pipeline(inside.s("a"), inside.s("b"))
    assert batch.progress().total == 2
    drain(app)
    assert flow.ran == ["a", "b", "callback"]


def test_a_long_chain(app: Holdfast, flow: Flow, s: Any) -> None:
    jobs = app.pipeline(*(s(f"n{n}") for n in range(300)))
    drain(app)
    assert flow.ran == [f"n{n}" for n in range(300)]
    assert jobs[-1].refresh().result == "N299"


def test_arguments_are_checked_when_a_step_is_made(app: Holdfast, flow: Flow, s: Any) -> None:
    with pytest.raises(InvalidArguments):
        s(7)
    with pytest.raises(InvalidArguments):
        s()
    with pytest.raises(InvalidArguments):
        flow.step.using(queue="q").s("a", color="red")
    assert "a-s3cret" not in repr(s("a-s3cret"))


def test_what_is_no_step_is_refused(app: Holdfast, flow: Flow, s: Any, tmp_path: Path) -> None:
    for wrong in (flow.step, "a", 7, None, [s("a")], flow.job("x", queue="elsewhere"), group):
        with pytest.raises(InvalidInput, match="steps"):
            app.pipeline(s("a"), wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="steps"):
            group(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        group(group(s("a")))  # type: ignore[arg-type]
    for empty in (app.pipeline, group):
        with pytest.raises(InvalidInput, match="at least one"):
            empty()
    with pytest.raises(InvalidInput, match="conn"), app.transaction() as tx:
        app.pipeline(flow.step.using(conn=tx).s("a"), conn=tx)
    with Holdfast(tmp_path / "other.db") as other, pytest.raises(InvalidInput, match="another"):
        app.pipeline(s("a"), Flow(other).step.s("b"))
    drain(app, queues=["default"])
    assert flow.ran == []
