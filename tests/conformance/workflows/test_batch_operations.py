"""Batches as things: list, show, cancel, retry; and batches whose block did not end."""

import logging
from typing import Any

import pytest

from holdfast import Batch, Context, Holdfast
from holdfast.errors import BatchNotFound, InvalidInput
from holdfast.testing import FakeClock
from support.backend import Backend
from support.flow import Flow, Sql, statuses
from support.running_worker import drain


class Report:
    """A callback that notes what it saw of its batch."""

    def __init__(self, app: Holdfast) -> None:
        self.seen: list[Any] = []

        @app.task(queue="callbacks", priority=-100)
        def note(ctx: Context, word: str) -> None:
            assert ctx.batch is not None
            progress = ctx.batch.progress()
            self.seen.append((word, progress.succeeded, progress.total, progress.abandoned))

        self.note = note

    @property
    def words(self) -> list[str]:
        return [word for word, *_ in self.seen]


@pytest.fixture
def report(app: Holdfast) -> Report:
    return Report(app)


def make(app: Holdfast, flow: Flow, report: Report, *names: str, **options: Any) -> Batch:
    with app.batch(on_success=report.note.s("success"), on_done=report.note.s("done")) as batch:
        for name in names:
            flow.job(name, batch=batch, **options)
    return batch


def leave_open(app: Holdfast, flow: Flow, report: Report, *names: str) -> Batch:
    """Return a batch whose block was entered and never left."""
    batch = app.batch(on_success=report.note.s("success"), on_done=report.note.s("done")).__enter__()
    for name in names:
        flow.job(name, batch=batch)
    return batch


# --- the process of the block is gone ---


def test_a_batch_whose_process_died_in_its_block_ends_and_on_done_is_told(
    app: Holdfast, flow: Flow, report: Report, backend: Backend
) -> None:
    batch = leave_open(app, flow, report, "a", "b")
    drain(app)
    assert (report.seen, batch.progress().state) == ([], "open"), "the process of the block is alive"
    backend.bury_creators()
    drain(app)
    assert report.seen == [("done", 2, 2, True)]
    progress = batch.wait(timeout=0)
    assert (progress.state, progress.abandoned, progress.sealed, progress.is_done) == ("done", True, True, True)


def test_members_of_an_abandoned_batch_still_run(app: Holdfast, flow: Flow, report: Report, backend: Backend) -> None:
    batch = leave_open(app, flow, report, "a")
    late = flow.job("late", batch=batch, delay=60)
    backend.bury_creators()
    drain(app)
    assert (batch.progress().state, report.seen) == ("running", [])
    assert app.jobs.run_now(late.id)
    drain(app)
    assert report.seen == [("done", 2, 2, True)]


def test_abandoned_batches_are_told_by_event_log_and_doctor(
    app: Holdfast, flow: Flow, report: Report, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    batch = leave_open(app, flow, report, "a")
    assert "OPEN_BATCHES" not in codes(app)
    backend.bury_creators()
    assert "OPEN_BATCHES" in codes(app)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        drain(app)
    assert any(f"batch {batch.id} was abandoned" in record.getMessage() for record in caplog.records)
    (event,) = [one for one in app.observe.events() if one.event == "batch_abandoned"]
    assert event.detail["batch"] == batch.id
    assert "died" in event.detail["reason"]
    assert "OPEN_BATCHES" not in codes(app)
    assert "ABANDONED_BATCHES" in codes(app)


def test_the_doctor_seals_an_abandoned_batch(app: Holdfast, flow: Flow, report: Report, backend: Backend) -> None:
    batch = leave_open(app, flow, report)
    backend.bury_creators()
    app.check(repair=True)
    assert batch.progress().abandoned
    assert batch.done_job_id is not None


def test_the_doctor_forgets_an_abandoned_batch_after_a_day(
    app: Holdfast, clock: FakeClock, flow: Flow, report: Report, backend: Backend
) -> None:
    leave_open(app, flow, report)
    backend.bury_creators()
    drain(app)
    clock.advance(86_401)
    assert "ABANDONED_BATCHES" not in codes(app)


def test_a_batch_whose_block_raised_is_told_in_the_same_way(app: Holdfast, flow: Flow, report: Report) -> None:
    with pytest.raises(KeyError), app.batch(on_done=report.note.s("done")) as batch:
        flow.job("a", batch=batch)
        raise KeyError("in the block")
    progress = batch.progress()
    assert (progress.abandoned, progress.cancelled, progress.is_done) == (True, 1, True)
    (event,) = [one for one in app.observe.events() if one.event == "batch_abandoned"]
    assert "KeyError" in event.detail["reason"]
    assert "ABANDONED_BATCHES" in codes(app)


def test_a_batch_that_ended_well_is_not_abandoned(
    app: Holdfast, flow: Flow, report: Report, backend: Backend
) -> None:
    batch = make(app, flow, report, "a")
    backend.bury_creators()
    drain(app)
    assert (sorted(report.words), batch.progress().abandoned) == (["done", "success"], False)
    assert not {"OPEN_BATCHES", "ABANDONED_BATCHES"} & set(codes(app))


def codes(app: Holdfast) -> list[str]:
    return [one.code for one in app.check().findings]


# --- re-runs ---


def test_a_retry_of_the_failed_members_runs_on_success_and_not_on_done_again(
    app: Holdfast, flow: Flow, report: Report
) -> None:
    flow.broken |= {"b", "c"}
    batch = make(app, flow, report, "a", "b", "c")
    drain(app)
    assert (report.words, batch.progress().failed) == (["done"], 2)
    flow.broken.clear()
    assert app.batches.retry(batch.id) == 2
    assert (batch.progress().state, batch.progress().is_done) == ("running", False), "wait() waits for the re-run"
    drain(app)
    assert report.words == ["done", "success"]
    assert batch.wait(timeout=0).succeeded == 3
    assert app.batches.retry(batch.id) == 0


def test_a_retry_that_fails_again_calls_nothing(app: Holdfast, flow: Flow, report: Report) -> None:
    flow.broken.add("b")
    batch = make(app, flow, report, "a", "b")
    drain(app)
    assert app.batches.retry(batch.id) == 1
    drain(app)
    assert (report.words, batch.wait(timeout=0).failed) == (["done"], 1)


def test_the_retry_of_one_member_by_its_id_follows_the_same_rule(app: Holdfast, flow: Flow, report: Report) -> None:
    flow.broken.add("b")
    batch = make(app, flow, report, "a", "b")
    drain(app)
    flow.broken.clear()
    (failed,) = app.jobs.list(batch=batch.id, status="failed")
    assert app.jobs.retry(failed.id)
    assert not batch.progress().is_done
    drain(app)
    assert report.words == ["done", "success"]


def test_only_members_of_the_batch_are_retried(app: Holdfast, flow: Flow, report: Report) -> None:
    flow.broken |= {"a", "x"}
    other = flow.job("x")
    batch = make(app, flow, report, "a")
    drain(app)
    assert app.batches.retry(batch.id, actor="ada", reason="fixed") == 1
    assert other.refresh().status == "failed"


# --- cancel ---


def test_a_cancelled_batch_is_over_and_on_done_is_told(app: Holdfast, flow: Flow, report: Report) -> None:
    batch = make(app, flow, report, "a", "b", delay=60)
    other = flow.job("x", delay=60)
    assert app.batches.cancel(batch.id, reason="not needed", actor="ada") == 2
    drain(app)
    assert report.words == ["done"]
    progress = batch.wait(timeout=0)
    assert (progress.cancelled, progress.abandoned) == (2, False)
    assert other.refresh().status == "scheduled"
    assert app.batches.cancel(batch.id) == 0


def test_a_cancelled_open_batch_takes_no_more_members_and_never_succeeds(
    app: Holdfast, flow: Flow, report: Report
) -> None:
    batch = leave_open(app, flow, report, "a")
    drain(app)
    assert app.batches.cancel(batch.id) == 0
    drain(app)
    assert (report.words, batch.progress().abandoned) == (["done"], True)


# --- list ---


def test_batches_are_listed_by_state_newest_first(
    app: Holdfast, flow: Flow, report: Report, backend: Backend
) -> None:
    done = make(app, flow, report, "a")
    flow.broken.add("b")
    failed = make(app, flow, report, "b")
    drain(app)
    lost = leave_open(app, flow, report)
    backend.bury_creators()
    drain(app)
    running = make(app, flow, report, "c", delay=60)
    is_open = leave_open(app, flow, report, "d")
    everything = [is_open.id, running.id, lost.id, failed.id, done.id]
    assert [one.id for one in app.batches.list()] == everything
    by_state = {
        state: [one.id for one in app.batches.list(state=state)] for state in ("open", "running", "done", "abandoned")
    }
    assert by_state == {
        "open": [is_open.id],
        "running": [running.id],
        "done": [lost.id, failed.id, done.id],
        "abandoned": [lost.id],
    }
    found = {one.id: one for one in app.batches.list()}
    assert (found[failed.id].failed, found[done.id].succeeded, found[running.id].scheduled) == (1, 1, 1)
    assert found[running.id].created_at == app.batches.get(running.id).progress().created_at


def test_batches_are_listed_in_pages(app: Holdfast, flow: Flow, report: Report) -> None:
    ids = [make(app, flow, report).id for _ in range(5)]
    first = app.batches.list(limit=2)
    second = app.batches.list(limit=2, cursor=first.next)
    third = app.batches.list(limit=2, cursor=second.next)
    assert [one.id for page in (first, second, third) for one in page] == ids[::-1]
    assert (third.next, first.previous) == (None, None)
    assert [one.id for one in app.batches.list(limit=2, cursor=third.previous)] == [one.id for one in second]


def test_a_list_counts_up_to_a_bound(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    with app.batch() as batch:
        work.using(batch=batch).enqueue_many([{}] * 1001)
    (listed,) = app.batches.list()
    assert (listed.ready, listed.more) == (1000, True)
    assert (batch.progress().ready, batch.progress().more) == (1001, False)


def test_jobs_are_filtered_by_batch(app: Holdfast, flow: Flow, report: Report, sql: Sql) -> None:
    flow.broken.add("b")
    first, second = make(app, flow, report, "a", "b"), make(app, flow, report, "c")
    flow.job("x")
    drain(app)
    mine = app.jobs.list(batch=first.id)
    assert [job.args["name"] for job in mine] == ["b", "a"]
    assert [job.args["name"] for job in app.jobs.list(batch=first.id, status="failed")] == ["b"]
    assert [job.args["name"] for job in app.jobs.list(batch=[first.id, second.id])] == ["c", "b", "a"]
    assert app.jobs.count(batch=first.id, status=["failed", "succeeded"]) == 2
    assert statuses(*mine) == ["failed", "succeeded"]


@pytest.mark.parametrize("what", ["list", "get", "cancel", "retry"])
def test_bad_arguments_are_refused(app: Holdfast, what: str) -> None:
    if what == "list":
        with pytest.raises(InvalidInput, match="state must be"):
            app.batches.list(state="finished")  # type: ignore[arg-type]
        return
    with pytest.raises(BatchNotFound):
        getattr(app.batches, what)(99)
    with pytest.raises(InvalidInput):
        getattr(app.batches, what)("one")
