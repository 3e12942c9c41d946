"""Bulk operations: every job that matches once, in steps that any process continues, until the end or a stop."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Then
from holdfast.errors import InvalidInput, JobNotFound, OperationNotFound
from holdfast.store import operate
from holdfast.testing import FakeClock, drain
from support.running_worker import RunningWorker, eventually


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operate, "BATCH_ROWS", 3)


def failed(app: Holdfast, number: int) -> list[int]:
    """Make so many failed jobs, every second one of queue `b`."""

    @app.task(name="work")
    def work(n: int) -> None: ...

    ids = [work.using(queue="ab"[n % 2]).enqueue(n).id for n in range(number)]
    for id in ids:
        app.jobs.fail(id, "REJECTED:TEST")
    return ids


def statuses(app: Holdfast, ids: list[int]) -> list[str]:
    return [app.jobs.get(id).status for id in ids]


def test_an_operation_changes_all_that_match_and_tells_its_progress(app: Holdfast) -> None:
    ids = failed(app, 20)
    assert app.operations.count("retry", queue="a").count == 10
    started = app.operations.start("retry", queue="a", actor="kim", reason="smtp is back")
    assert (started.state, started.matched, started.matched_all, started.changed) == ("running", 10, True, 0)
    assert statuses(app, ids) == ["failed"] * 20, "starting changes nothing yet"
    seen = []
    while (step := app.store.operations.step(started.id, "me")) is not None:
        seen.append((step.changed, step.state))
    assert seen == [(3, "running"), (6, "running"), (9, "running"), (10, "finished")]
    assert statuses(app, ids) == ["ready", "failed"] * 10
    ended = app.operations.get(started.id)
    assert (ended.progress, ended.is_over, ended.criteria["queue"]) == (1.0, True, ["a"])
    reasons = {
        (one.actor, one.detail.get("reason")) for one in app.observe.last_events(50) if one.event == "requeued"
    }
    assert reasons == {("kim", "smtp is back")}


@pytest.mark.parametrize(
    ("action", "status", "after"),
    [
        ("retry", "failed", "ready"),
        ("cancel", "ready", "cancelled"),
        ("run_now", "scheduled", "ready"),
        ("delete", "failed", "deleted"),
    ],
)
def test_every_action_does_what_it_does_to_one_job(app: Holdfast, action: Any, status: str, after: str) -> None:
    @app.task
    def work() -> None: ...

    ids = [work.using(delay=60 if status == "scheduled" else 0).enqueue().id for _ in range(7)]
    if status == "failed":
        for id in ids:
            app.jobs.fail(id, "REJECTED:TEST")
    ended = app.operations.run(app.operations.start(action, task="work").id)
    assert (ended.state, ended.changed) == ("finished", 7)
    found = {job.status for job in app.jobs.list(task="work")} or {"deleted"}
    assert found == {after}


def test_jobs_are_named_by_ids_too(app: Holdfast) -> None:
    ids = failed(app, 9)
    ended = app.operations.run(app.operations.start("delete", ids=[ids[1], ids[5], ids[1], 999]).id)
    assert (ended.matched, ended.changed) == (2, 2)
    assert app.jobs.count() == 7


def test_another_process_continues_after_the_first_has_ended(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast]
) -> None:
    ids = failed(app, 8)
    started = app.operations.start("retry", task="work")
    assert app.store.operations.step(started.id, "first") is not None
    other = open_app(clock=clock)
    assert other.store.operations.step(started.id, "second") is None, "the first is at it"
    clock.advance(10)
    ended = other.operations.run(started.id)
    assert (ended.state, ended.changed) == ("finished", 8)
    assert statuses(app, ids) == ["ready"] * 8
    assert app.store.operations.step(started.id, "first") is None


def test_a_process_that_was_overtaken_changes_nothing(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read its position and the ids of its batch; then it was stopped for a minute."""
    ids = failed(app, 8)
    started = app.operations.start("retry", task="work")
    other = open_app(clock=clock)
    find = app.store.operations._find  # type: ignore[attr-defined]

    def overtaken(*args: Any) -> Any:
        found = find(*args)
        clock.advance(60)
        other.operations.run(started.id)
        app.jobs.cancel(ids[0])
        app.jobs.fail(ids[1], "REJECTED:AGAIN")
        return found

    monkeypatch.setattr(app.store.operations, "_find", overtaken)
    assert app.store.operations.step(started.id, "slow") is None
    assert statuses(app, ids[:3]) == ["cancelled", "failed", "ready"]
    assert app.operations.get(started.id).changed == 8


def test_a_job_that_fails_again_is_not_retried_twice(app: Holdfast) -> None:
    ids = failed(app, 5)
    started = app.operations.start("retry", task="work")
    app.store.operations.step(started.id, "me")
    app.jobs.fail(ids[0], "REJECTED:AGAIN")
    app.operations.run(started.id)
    while app.store.operations.step(started.id, "me"):
        pass
    assert app.jobs.get(ids[0]).status == "failed"


def test_jobs_that_come_later_are_left_alone(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    early = work.enqueue().id
    started = app.operations.start("cancel", task="work")
    late = work.enqueue().id
    assert app.operations.run(started.id).changed == 1
    assert statuses(app, [early, late]) == ["cancelled", "ready"]


def test_a_stopped_operation_changes_nothing_more(app: Holdfast) -> None:
    ids = failed(app, 9)
    started = app.operations.start("retry", task="work", actor="kim")
    app.store.operations.step(started.id, "me")
    assert app.operations.stop(started.id, actor="ada", reason="wrong ones") is True
    assert app.operations.stop(started.id) is False
    assert app.store.operations.step(started.id, "me") is None
    ended = app.operations.get(started.id)
    assert (ended.state, ended.changed) == ("stopped", 3)
    assert statuses(app, ids) == ["ready"] * 3 + ["failed"] * 6
    log = [
        (one.event, one.actor, one.detail) for one in app.observe.last_events(50) if one.event.startswith("operation")
    ]
    assert log == [
        ("operation_started", "kim", {"operation": started.id, "action": "retry"}),
        ("operation_stopped", "ada", {"operation": started.id, "action": "retry", "reason": "wrong ones"}),
    ]


def test_a_worker_carries_operations_out(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.app.operations.IDLE_SECONDS", 0.01)
    failed(app, 10)
    started = app.operations.start("delete", task="work")
    with RunningWorker(app):
        eventually(lambda: app.operations.get(started.id).is_over)
    assert app.jobs.count(task="work") == 0


def test_a_chain_is_deleted_as_a_whole_or_not_at_all(app: Holdfast) -> None:
    @app.task
    def last(n: int) -> None: ...

    @app.task
    def first(n: int) -> Then:
        return Then(last, n)

    root = first.enqueue(1).id
    drain(app)
    assert app.operations.run(app.operations.start("delete", task="first").id).changed == 0
    assert app.operations.run(app.operations.start("delete", task_like="*st").id).changed == 2
    with pytest.raises(JobNotFound):
        app.jobs.get(root)


def test_operations_are_listed_in_pages_and_the_oldest_are_forgotten(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "KEPT_OPERATIONS", 4)
    for _ in range(6):
        app.operations.run(app.operations.start("cancel", queue="none").id)
    first = app.operations.list(limit=3)
    assert [one.id for one in first] == [6, 5, 4]
    assert first.next is not None
    older = app.operations.list(limit=3, cursor=first.next)
    assert [one.id for one in older] == [3]
    assert older.previous is not None
    assert [one.id for one in app.operations.list(limit=3, cursor=older.previous)] == [6, 5, 4]
    with pytest.raises(OperationNotFound, match="there is no operation 1"):
        app.operations.get(1)


@pytest.mark.parametrize(
    ("action", "how"),
    [
        ("explode", {"queue": "a"}),
        ("retry", {}),
        ("retry", {"ids": []}),
        ("retry", {"ids": [0]}),
        ("retry", {"ids": [1], "queue": "a"}),
        ("retry", {"status": "ready"}),
        ("retry", {"queue": "a", "delay": -1}),
        ("retry", {"queue": "a", "attempts": 0}),
        ("cancel", {"status": "succeeded"}),
        ("retry", {"ids": list(range(1, 10_002))}),
    ],
)
def test_wrong_operations_are_refused(app: Holdfast, action: Any, how: Any) -> None:
    with pytest.raises(InvalidInput):
        app.operations.start(action, **how)
    assert list(app.operations.list()) == []


def test_criteria_of_another_version_end_the_operation(app: Holdfast) -> None:
    failed(app, 2)
    started = app.operations.start("retry", task="work")
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_operations SET criteria = '{\"status\": 7}'")
    step = app.store.operations.step(started.id, "me")
    assert step is not None and (step.state, step.changed) == ("failed", 0)
    assert "criteria" in (app.operations.get(started.id).error or "")
