"""Batches: many members, and one more job when all of them have ended."""

import threading
from typing import Any

import pytest

from holdfast import Batch, Cancel, Context, Fail, Holdfast, Then
from holdfast.app.workflows import BatchProgress
from holdfast.errors import BatchEnded, BatchNotFound, InvalidInput, WaitTimeout
from holdfast.testing import FakeClock
from support.flow import Events, Flow, Open, Sql
from support.running_worker import PATIENCE_SECONDS, RunningWorker, comes_true, drain, eventually


class Callbacks:
    """Two tasks to be called back, and what they found."""

    def __init__(self, app: Holdfast) -> None:
        self.called: list[Any] = []

        @app.task(queue="callbacks", priority=-100)
        def on_done(ctx: Context, word: str = "done") -> str:
            self._note(word, ctx.batch)
            return word

        @app.task(queue="callbacks", priority=-100)
        def on_success(ctx: Context, word: str = "success") -> str:
            self._note(word, ctx.batch)
            return word

        self.on_done, self.on_success = on_done, on_success

    def _note(self, word: str, batch: Batch | None) -> None:
        if batch is None:
            self.called.append((word, "but has no batch"))
        else:
            progress = batch.progress()
            self.called.append((word, batch.id, progress.succeeded, progress.total))

    @property
    def words(self) -> list[str]:
        return sorted(word for word, *_ in self.called)


@pytest.fixture
def callbacks(app: Holdfast) -> Callbacks:
    return Callbacks(app)


def make(app: Holdfast, flow: Flow, callbacks: Callbacks, *names: str, **options: Any) -> Batch:
    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        for name in names:
            flow.job(name, batch=batch, **options)
    return batch


# --- the callbacks ---


def test_both_are_called_once_when_all_members_have_succeeded(
    app: Holdfast, flow: Flow, callbacks: Callbacks, events: Events
) -> None:
    batch = make(app, flow, callbacks, "a", "b", "c")
    drain(app, queues=["default"])
    assert callbacks.called == []
    assert app.jobs.count(queue="callbacks", status="ready") == 2
    drain(app)
    assert sorted(callbacks.called) == [("done", batch.id, 3, 3), ("success", batch.id, 3, 3)]
    assert batch.success_job_id is not None
    assert batch.done_job_id is not None
    success, done = app.jobs.get(batch.success_job_id), app.jobs.get(batch.done_job_id)
    assert (success.task, done.task, success.batch_id, done.batch_id) == ("on_success", "on_done", None, None)
    assert events(success.id) == ["enqueued", "claimed", "succeeded"]


def test_only_on_done_is_called_if_some_did_not_end_well(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    flow.broken.add("b")
    batch = make(app, flow, callbacks, "a", "b", "c")
    drain(app)
    assert callbacks.called == [("done", batch.id, 2, 3)]
    assert batch.success_job_id is None


@pytest.mark.parametrize("how", ["failed", "cancelled", "retried"])
def test_on_success_is_called_later_if_those_that_failed_are_retried(
    app: Holdfast, flow: Flow, callbacks: Callbacks, clock: FakeClock, how: str
) -> None:
    @app.task(max_attempts=2, retry=0)
    def stubborn(ctx: Context) -> Any:
        if ctx.attempt == 1:
            return {"failed": Fail("TEST:BROKEN"), "cancelled": Cancel("no")}.get(how) or 1 / 0
        return "well"

    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        flow.job("a", batch=batch)
        member = stubborn.using(batch=batch).enqueue()
    drain(app)
    if how != "retried":
        assert callbacks.words == ["done"]
        clock.advance(60)
        app.jobs.retry(member.id)
        assert (batch.progress().pending, batch.progress().is_done) == (1, False)
        drain(app)
        assert batch.progress().is_done
    assert callbacks.words == ["done", "success"], "each once"


def test_what_fails_again_calls_nobody_again(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    flow.broken.add("a")
    batch = make(app, flow, callbacks, "a")
    for _ in range(3):
        drain(app)
        app.jobs.retry(task="step", status="failed")
    drain(app)
    assert callbacks.words == ["done"]
    assert batch.success_job_id is None


def test_callbacks_are_tasks_bound_tasks_or_steps(app: Holdfast, callbacks: Callbacks, clock: FakeClock) -> None:
    later = callbacks.on_done.using(queue="elsewhere", delay=60, priority=7, tags=["report"])
    with app.batch(on_success=callbacks.on_success.s("with words"), on_done=later):
        clock.advance(1000)
    done, success = sorted(app.jobs.list(), key=lambda job: job.task or "")
    assert (success.args, success.status, success.queue) == ({"word": "with words"}, "ready", "callbacks")
    assert (done.queue, done.priority, done.tags, done.status) == ("elsewhere", 7, ("report",), "scheduled")
    assert (done.run_at - done.created_at).total_seconds() == 60, "from the end of the batch"
    assert (done.created_at.timestamp(), done.args) == (clock.now() / 1e6, {})


@pytest.mark.parametrize("name", ["on_success", "on_done"])
def test_what_is_no_callback_is_refused_at_once(app: Holdfast, flow: Flow, callbacks: Callbacks, name: str) -> None:
    waiting = flow.step.using(after=[flow.job("a")]).s("b")
    keyed = callbacks.on_done.using(key="k")
    for bad in (
        "on_done",
        print,
        7,
        flow.step,
        flow.step.s,
        waiting,
        keyed,
        keyed.s("x"),
        callbacks.on_done.function,
    ):
        with pytest.raises(InvalidInput):
            app.batch(**{name: bad})
    with pytest.raises(BatchNotFound):
        app.batches.get(1)


def test_without_callbacks_a_batch_is_still_done(app: Holdfast, flow: Flow) -> None:
    with app.batch() as batch:
        flow.job("a", batch=batch)
    drain(app)
    assert batch.progress().is_done
    assert (batch.success_job_id, batch.done_job_id) == (None, None)
    assert app.jobs.count() == 1


def test_an_empty_batch_is_done_when_its_block_ends(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    batch = make(app, flow, callbacks)
    assert batch.progress().is_done
    drain(app)
    assert sorted(callbacks.called) == [("done", batch.id, 0, 0), ("success", batch.id, 0, 0)]


def test_members_that_end_before_the_block_does_call_nobody_early(
    app: Holdfast, flow: Flow, callbacks: Callbacks
) -> None:
    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        for name in ("a", "b"):
            flow.job(name, batch=batch)
            drain(app)
            progress = batch.progress()
            assert (progress.pending, progress.sealed, progress.is_done) == (0, False, False)
    drain(app)
    assert callbacks.words == ["done", "success"]
    assert callbacks.called[0][2:] == (2, 2)


# --- many ---


def test_ten_thousand_members_and_one_callback(app: Holdfast, callbacks: Callbacks, sql: Sql) -> None:
    @app.task
    def member(n: int) -> int:
        return n

    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        member.using(batch=batch).enqueue_many({"n": n} for n in range(10_000))
    assert batch.progress().ready == 10_000
    drain(app)
    assert sorted(callbacks.called) == [("done", batch.id, 10_000, 10_000), ("success", batch.id, 10_000, 10_000)]
    assert sql("SELECT count(*) FROM holdfast_endings") == [(0,)]


def test_several_workers_on_one_batch_call_back_once(open_app: Open, live: Holdfast) -> None:
    apps = [live, open_app()]
    both = [(Flow(one), Callbacks(one)) for one in apps]
    callbacks = both[0][1]
    with live.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        live.tasks["step"].using(batch=batch).enqueue_many([{"name": f"n{n}"} for n in range(600)])
    with RunningWorker(apps[0], concurrency=4), RunningWorker(apps[1], concurrency=4):
        batch.wait(timeout=PATIENCE_SECONDS)
        eventually(lambda: live.jobs.count(queue="callbacks", status="succeeded") == 2)
    assert sorted(both[0][1].words + both[1][1].words) == ["done", "success"]
    assert len(both[0][0].ran) + len(both[1][0].ran) == 600


# --- members of many kinds ---


def test_members_may_add_members(app: Holdfast, callbacks: Callbacks) -> None:
    @app.task
    def grow(ctx: Context, depth: int) -> None:
        if depth:
            grow.using(batch=ctx.batch).enqueue_many([{"depth": depth - 1}] * 2)

    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        grow.using(batch=batch).enqueue(5)
    drain(app)
    assert sorted(callbacks.called) == [("done", batch.id, 63, 63), ("success", batch.id, 63, 63)]


def test_a_batch_that_has_ended_takes_no_more(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    refused: list[str] = []

    @app.task
    def too_late(ctx: Context) -> None:
        with pytest.raises(BatchEnded, match=f"batch {ctx.batch.id} has ended"):
            flow.job("late", batch=ctx.batch)
        refused.append("late")

    with app.batch(on_done=too_late) as batch:
        flow.job("a", batch=batch)
    drain(app)
    assert refused == ["late"]
    with pytest.raises(BatchEnded):
        flow.step.using(batch=batch).enqueue_many([{"name": "late"}])
    with pytest.raises(BatchEnded):
        app.external("late", batch=batch)
    assert batch.progress().total == 1


def test_the_chain_of_a_member_counts_once_and_to_its_end(app: Holdfast, callbacks: Callbacks) -> None:
    seen: list[int] = []

    @app.task
    def walk(ctx: Context, left: int) -> Any:
        seen.append(ctx.batch.id)
        return Then(walk.using(queue="slow"), left - 1) if left else "there"

    with app.batch(on_success=callbacks.on_success, on_done=callbacks.on_done) as batch:
        roots = [walk.using(batch=batch).enqueue(n) for n in (0, 3)]
    drain(app, queues=["default"])
    progress = batch.progress()
    assert (progress.total, progress.succeeded, progress.ready, progress.is_done) == (2, 1, 1, False)
    drain(app)
    assert [job.batch_id for job in app.chains.get(roots[1].id).jobs()] == [batch.id] * 4
    assert seen == [batch.id] * 5
    assert sorted(callbacks.called) == [("done", batch.id, 2, 2), ("success", batch.id, 2, 2)]


def test_blocked_scheduled_and_external_members_count(
    app: Holdfast, flow: Flow, callbacks: Callbacks, clock: FakeClock
) -> None:
    with app.batch(on_done=callbacks.on_done, on_success=callbacks.on_success) as batch:
        approve = app.external("approve", batch=batch)
        flow.job("after", approve, batch=batch, on_blocker_failure="fail")
        flow.job("later", batch=batch, delay=60)
        flow.job("now", batch=batch)
    progress = batch.progress()
    assert (progress.blocked, progress.scheduled, progress.ready, progress.total) == (2, 1, 1, 4)
    clock.advance(60)
    drain(app)
    progress = batch.progress()
    assert (progress.pending, progress.finished, progress.is_done) == (2, 2, False)
    app.jobs.fail(approve.id, "REJECTED:BUDGET")
    drain(app)
    progress = batch.progress()
    assert (progress.failed, progress.succeeded, progress.is_done) == (2, 2, True)
    assert callbacks.words == ["done"]


def test_a_job_without_a_batch_has_none(app: Holdfast, flow: Flow) -> None:
    seen: list[Any] = []

    @app.task
    def look(ctx: Context) -> None:
        seen.append(ctx.batch)

    job = look.using(batch=None).enqueue()
    drain(app)
    look()
    assert (seen, job.batch_id) == ([None, None], None)


@pytest.mark.parametrize("batch", [1, "1", object(), True, ()])
def test_what_is_no_batch_is_refused(flow: Flow, batch: Any) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        flow.step.using(batch=batch)


# --- how far it is ---


def counts(progress: BatchProgress) -> tuple[int, int, int]:
    return progress.running, progress.succeeded, progress.failed


def test_progress_is_readable_while_it_runs(live: Holdfast) -> None:
    gates = {name: threading.Event() for name in "abc"}

    @live.task(max_attempts=1)
    def hold(name: str) -> None:
        comes_true(gates[name])
        if name == "c":
            raise ConnectionError

    with live.batch() as batch:
        for name in gates:
            hold.using(batch=batch).enqueue(name)
        last = hold.using(batch=batch, delay=3600).enqueue("a")
    with RunningWorker(live, concurrency=3):
        eventually(lambda: batch.progress().running == 3)
        for name, expected in (("a", (2, 1, 0)), ("b", (1, 2, 0)), ("c", (0, 2, 1))):
            gates[name].set()
            eventually(lambda expected=expected: counts(batch.progress()) == expected)
        with pytest.raises(WaitTimeout, match="1 unfinished member"):
            batch.wait(timeout=0.05)
        live.jobs.cancel(last.id)
        progress = batch.wait(timeout=PATIENCE_SECONDS)
    assert (progress.total, progress.pending, progress.finished, progress.cancelled) == (4, 0, 4, 1)
    assert progress.done_at is not None


def test_a_batch_is_found_by_its_id(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    batch = make(app, flow, callbacks, "a")
    found = app.batches.get(batch.id)
    assert (found.id, found.progress()) == (batch.id, batch.progress())
    for bad in (99, 2**63 - 1):
        with pytest.raises(BatchNotFound, match=str(bad)):
            app.batches.get(bad)
    for wrong in (0, "1", True, None):
        with pytest.raises(InvalidInput):
            app.batches.get(wrong)  # type: ignore[arg-type]


def test_deleting_an_unfinished_member_lets_the_batch_be_done(
    app: Holdfast, flow: Flow, callbacks: Callbacks
) -> None:
    batch = make(app, flow, callbacks, "a", "b")
    first, *_ = app.jobs.list(task="step")
    app.jobs.delete(first.id)
    drain(app)
    assert callbacks.words == ["done"], "not all that were to succeed did"
    assert (batch.progress().total, batch.progress().deleted, batch.progress().is_done) == (1, 1, True)


def test_deleting_what_failed_is_no_success(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    flow.broken.add("b")
    batch = make(app, flow, callbacks, "a", "b")
    drain(app)
    assert app.jobs.delete(status="failed") == 1
    drain(app)
    assert callbacks.words == ["done"]
    assert batch.success_job_id is None


def test_deleting_what_succeeded_changes_nothing(app: Holdfast, flow: Flow, callbacks: Callbacks) -> None:
    batch = make(app, flow, callbacks, "a", "b")
    drain(app)
    assert app.jobs.delete(status="succeeded") == 4
    drain(app)
    assert callbacks.words == ["done", "success"]
    assert batch.progress().is_done
