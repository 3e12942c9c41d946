"""Pruning of workflows: a chain is deleted as a whole, a blocker only after the jobs that waited for it."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Fail, Holdfast, Retention, Rule, Task, Then
from holdfast.testing import FakeClock
from support.backend import Backend
from support.finished_jobs import DAY
from support.flow import Flow, Sql
from support.running_worker import drain
from support.transitions import resolve

MONTH = 31 * DAY


def left(app: Holdfast) -> list[int]:
    return sorted(job.id for job in app.jobs.list(limit=1000))


@pytest.fixture
def walk(app: Holdfast) -> Task[..., Any]:
    @app.task(queue="walk")
    def walk(left: int, then_fail: bool = False) -> Any:
        if not left and then_fail:
            return Fail("TEST:BROKEN")
        return Then(walk, left - 1, then_fail) if left else "there"

    return walk


# --- chains ---


def test_a_chain_is_deleted_as_a_whole(
    app: Holdfast, clock: FakeClock, walk: Task[..., Any], backend: Backend
) -> None:
    walk.enqueue(5)
    drain(app)
    assert len(left(app)) == 6
    clock.advance(MONTH)
    assert app.prune(dry_run=True).succeeded == 6
    assert app.prune().succeeded == 6
    assert left(app) == []
    backend.check_consistency()
    assert backend.sql("SELECT * FROM holdfast_endings") == []


def test_the_age_of_a_chain_counts_from_its_last_job(app: Holdfast, clock: FakeClock, walk: Task[..., Any]) -> None:
    """The first job is 40 days old, the last one 10."""
    app.task(name="last", queue="walk")(lambda: None)
    app.task(name="first", queue="walk")(lambda: Then(app.tasks["last"].using(delay=30 * DAY))).enqueue()
    drain(app)
    clock.advance(30 * DAY)
    drain(app)
    clock.advance(10 * DAY)
    assert app.prune().jobs == 0
    clock.advance(21 * DAY)
    assert app.prune().jobs == 2


def test_a_chain_is_kept_as_long_as_any_of_its_jobs(app: Holdfast, clock: FakeClock, walk: Task[..., Any]) -> None:
    """Its last job failed, and failed jobs are kept longer."""
    walk.enqueue(3, True)
    drain(app)
    clock.advance(MONTH)
    assert app.prune().jobs == 0
    clock.advance(2 * MONTH)
    report = app.prune()
    assert (report.succeeded, report.failed) == (3, 1)


def test_an_unfinished_chain_is_kept(app: Holdfast, clock: FakeClock, walk: Task[..., Any]) -> None:
    app.task(name="first")(lambda: Then(walk.using(delay=900 * DAY), 1)).enqueue()
    drain(app)
    clock.advance(20 * MONTH)
    assert app.prune(retention=Retention(newest=0)).jobs == 0
    assert len(left(app)) == 2


def test_a_very_long_chain_is_deleted_from_its_end(app: Holdfast, clock: FakeClock, backend: Backend) -> None:
    long = 2500
    backend.sql_many(
        """INSERT INTO holdfast_jobs (task, status, finished_at, chain_id, chain_index, continued)
        VALUES ('walk', 'succeeded', ?, ?, ?, ?)""",
        [(clock.now(), 1 if place else None, place, place < long) for place in range(long + 1)],
    )
    clock.advance(MONTH)
    seen: list[int] = []
    lengths: list[int] = []

    def look(done: int) -> None:
        if done not in seen and done < long + 1:
            seen.append(done)
            lengths.append(app.chains.get(1).length)

    assert app.prune(progress=look).succeeded == long + 1
    assert len(lengths) > 2 and sorted(lengths, reverse=True) == lengths
    assert left(app) == []


# --- blockers ---


def test_blockers_of_an_unfinished_job_are_kept(app: Holdfast, clock: FakeClock, flow: Flow) -> None:
    a = flow.job("a")
    drain(app)
    waiting = flow.job("b", a, delay=500 * DAY)
    clock.advance(10 * MONTH)
    assert app.prune(retention=Retention(succeeded=0, newest=0)).jobs == 0
    assert left(app) == [a.id, waiting.id]


def test_blockers_of_a_failed_job_are_kept_for_a_retry(app: Holdfast, clock: FakeClock, flow: Flow) -> None:
    a = flow.job("a")
    flow.broken.add("b")
    b = flow.job("b", a)
    drain(app)
    clock.advance(MONTH)
    assert app.prune().jobs == 0
    flow.broken.clear()
    assert app.jobs.retry(b.id)
    drain(app)
    assert flow.found["b"] == ("A",)
    clock.advance(MONTH)
    assert app.prune(dry_run=True).succeeded == 2
    assert app.prune().succeeded == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_long_path_of_blockers_is_deleted_in_one_run(
    app: Holdfast, clock: FakeClock, flow: Flow, dry_run: bool
) -> None:
    app.pipeline(*(flow.step.s(str(number)) for number in range(60)))
    drain(app)
    clock.advance(MONTH)
    assert app.prune(dry_run=dry_run).succeeded == 60


def test_a_shared_blocker_is_deleted_after_the_last_waiting_job(
    app: Holdfast, clock: FakeClock, flow: Flow, sql: Sql
) -> None:
    a = flow.job("a")
    flow.step.using(after=a).enqueue_many([{"name": "x"}] * 700)
    drain(app)
    clock.advance(MONTH)
    assert app.prune(dry_run=True).succeeded == 701
    assert app.prune().succeeded == 701
    assert sql("SELECT count(*) FROM holdfast_blockers") == [(0,)]


def test_different_rules_along_a_graph_keep_needed_blockers(app: Holdfast, clock: FakeClock, flow: Flow) -> None:
    a = flow.job("a", queue="fast")
    b = flow.job("b", a, queue="slow")
    drain(app)
    clock.advance(2 * DAY)
    rules = Retention(rules=[Rule(queue="fast", age=timedelta(days=1))])
    assert app.prune(retention=rules).jobs == 0
    clock.advance(MONTH)
    assert app.prune(retention=rules).jobs == 2
    assert left(app) == [] and b.id > a.id


# --- batches ---


def test_members_are_kept_until_their_batch_is_done(app: Holdfast, clock: FakeClock, flow: Flow) -> None:
    with app.batch() as batch:
        early = flow.step.using(batch=batch).enqueue("early")
        late = flow.step.using(batch=batch, delay=60 * DAY).enqueue("late")
    drain(app)
    clock.advance(40 * DAY)
    assert app.prune().jobs == 0
    assert app.batches.get(batch.id).progress().total == 2
    clock.advance(21 * DAY)
    drain(app)
    assert {early.refresh().status, late.refresh().status} == {"succeeded"}
    assert app.prune().jobs == 0, "it is as old as its batch's end"
    clock.advance(MONTH)
    assert app.prune().jobs == 2


def test_a_batch_is_deleted_with_its_last_member_and_callback(
    app: Holdfast, clock: FakeClock, flow: Flow, sql: Sql
) -> None:
    with app.batch(on_done=flow.step.s("done")) as batch:
        for name in "abc":
            flow.step.using(batch=batch).enqueue(name)
    drain(app)
    assert flow.ran[-1] == "done"
    clock.advance(MONTH)
    report = app.prune()
    assert (report.succeeded, report.batches) == (4, 1)
    assert sql("SELECT count(*) FROM holdfast_batches") == sql("SELECT count(*) FROM holdfast_endings") == [(0,)]


def test_an_empty_batch_is_deleted_by_age(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    with app.batch():
        pass
    drain_nothing(app)
    assert sql("SELECT count(*) FROM holdfast_batches WHERE done_at IS NOT NULL") == [(1,)]
    assert app.prune().batches == 0
    clock.advance(MONTH)
    assert app.prune().batches == 1


def test_pruning_failed_members_does_not_report_success(app: Holdfast, clock: FakeClock, flow: Flow) -> None:
    flow.broken.add("a")
    with app.batch(on_success=flow.step.s("success")) as batch:
        flow.step.using(batch=batch).enqueue("a")
        flow.step.using(batch=batch).enqueue("b")
    drain(app)
    clock.advance(4 * MONTH)
    app.prune()
    drain(app)
    assert "success" not in flow.ran


def drain_nothing(app: Holdfast) -> None:
    resolve(app.store)
