"""Jobs that no worker runs: a person or a webhook settles them. And any other job, settled from outside."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then, codec
from holdfast.clock import as_datetime
from holdfast.errors import InvalidInput, InvalidPayload, JobFailed, JobNotFound
from holdfast.model.job import Claimed
from holdfast.testing import FakeClock
from support.flow import Events, Flow, statuses
from support.running_worker import RunningWorker, attempts, comes_true, drain, eventually

Claim = Callable[..., Claimed]


def soon(clock: FakeClock, seconds: float) -> datetime:
    return as_datetime(clock.now()) + timedelta(seconds=seconds)


# --- jobs that nobody runs ---


def test_an_external_job_is_blocked_until_somebody_settles_it(app: Holdfast, flow: Flow, events: Events) -> None:
    approve = app.external("approve-invoice", {"id": 7}, queue="people", tags=["money"], key="invoice-7")
    assert (approve.task, approve.args, approve.queue, approve.tags) == (
        "approve-invoice",
        {"id": 7},
        "people",
        ("money",),
    )
    assert (approve.status, approve.is_external, approve.timeout_at) == ("blocked", True, None)
    assert not flow.job("x").is_external
    drain(app)
    assert approve.refresh().status == "blocked"
    assert app.jobs.complete(approve.id, {"by": "Ada"}, actor="ada@example.org") is True
    assert (approve.refresh().status, approve.result, approve.attempt) == ("succeeded", {"by": "Ada"}, 0)
    assert approve.wait(timeout=0) == approve.wait_chain(timeout=0) == {"by": "Ada"}
    assert events(approve.id) == ["enqueued", "completed"]
    assert app.jobs.history(approve.id)[-1].actor == "ada@example.org"
    assert attempts(app, approve.id) == []


def test_an_external_job_may_fail(app: Holdfast, events: Events) -> None:
    approve = app.external("approve")
    assert approve.args is None
    assert app.jobs.fail(approve.id, "REJECTED:BUDGET", "too dear", actor="bob") is True
    assert (approve.refresh().status, approve.error_code, approve.error_detail) == (
        "failed",
        "REJECTED:BUDGET",
        "too dear",
    )
    last = app.jobs.history(approve.id)[-1]
    assert (last.name, last.actor, last.detail["error_code"]) == ("failed", "bob", "REJECTED:BUDGET")
    with pytest.raises(JobFailed, match="REJECTED:BUDGET: too dear"):
        approve.wait(timeout=0)


def test_others_wait_for_it(app: Holdfast, flow: Flow) -> None:
    yes, no = app.external("approve", 1), app.external("approve", 2)
    pay, refuse = flow.job("pay", yes), flow.job("refuse", no, on_blocker_failure="fail")
    both = flow.job("both", yes, no, on_blocker_failure="run")
    app.jobs.complete(yes.id, ["ok"])
    app.jobs.fail(no.id, "REJECTED:BUDGET")
    drain(app)
    assert flow.found["pay"] == (["ok"],)
    assert flow.found["both"][0] == ["ok"]
    assert flow.found["both"][1].code == "REJECTED:BUDGET"
    assert statuses(pay, refuse, both) == ["succeeded", "failed", "succeeded"]


def test_a_settled_job_is_not_settled_again(app: Holdfast) -> None:
    approve = app.external("approve")
    assert app.jobs.complete(approve.id, "first")
    assert app.jobs.complete(approve.id, "second") is False
    assert app.jobs.fail(approve.id, "TOO:LATE") is False
    assert app.jobs.cancel(approve.id) is False
    assert (approve.refresh().status, approve.result) == ("succeeded", "first")


def test_a_key_finds_the_same_external_job(app: Holdfast) -> None:
    first = app.external("approve", 1, key="k")
    again = app.external("approve", 2, key="k")
    assert (again.id, again.deduplicated, again.args) == (first.id, True, 1)
    app.jobs.complete(first.id)
    assert app.external("approve", key="k").id != first.id


def test_an_external_job_of_a_transaction(app: Holdfast, flow: Flow) -> None:
    with pytest.raises(KeyError), app.transaction() as tx:
        app.external("approve", conn=tx)
        raise KeyError
    assert app.jobs.count() == 0
    with app.transaction() as tx:
        approve = app.external("approve", conn=tx)
        flow.job("a", approve, conn=tx)
    app.jobs.complete(approve.id)
    drain(app)
    assert flow.ran == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 7},
        {"name": "step"},
        {"payload": object()},
        {"payload": float("nan")},
        {"queue": ""},
        {"timeout_at": 60},
        {"timeout_at": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"key": ""},
        {"tags": 7},
        {"batch": 1},
    ],
)
def test_bad_input_is_refused(app: Holdfast, flow: Flow, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        app.external(**({"name": "approve"} | wrong))
    assert app.jobs.count() == 0


def test_bad_settlings_are_refused(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 1024 * 1024)
    approve = app.external("approve")
    message = app.queue("inbox").send("hello")
    for settle in (app.jobs.complete, lambda id: app.jobs.fail(id, "A:B")):
        with pytest.raises(JobNotFound):
            settle(99)
        with pytest.raises(InvalidInput):
            settle("1")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="message"):
            settle(message)
    for code in ("", "rejected", "A B", None, 7):
        with pytest.raises(InvalidInput, match="code"):
            app.jobs.fail(approve.id, code)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        app.jobs.fail(approve.id, "A:B", 7)  # type: ignore[arg-type]
    following = app.task(name="following")(lambda: None)
    for result in (object(), float("nan"), Then(following), "x" * 2_000_000):
        with pytest.raises(InvalidPayload):
            app.jobs.complete(approve.id, result)
    assert approve.refresh().status == "blocked"


# --- with a deadline ---


def test_it_fails_when_its_time_is_over(app: Holdfast, flow: Flow, clock: FakeClock, events: Events) -> None:
    approve = app.external("approve", timeout_at=soon(clock, 60))
    other = app.external("approve", timeout_at=soon(clock, 3600))
    job = flow.job("a", approve, on_blocker_failure="run")
    assert approve.timeout_at == soon(clock, 60)
    clock.advance(59.9)
    drain(app)
    assert statuses(approve, other, job) == ["blocked"] * 3
    clock.advance(0.1)
    drain(app)
    assert (approve.refresh().status, approve.error_code) == ("failed", "TIMEOUT:EXTERNAL")
    assert statuses(other, job) == ["blocked", "succeeded"]
    assert flow.found["a"][0].code == "TIMEOUT:EXTERNAL"
    assert events(approve.id) == ["enqueued", "failed"]
    assert app.jobs.complete(approve.id) is False


def test_what_is_settled_in_time_does_not_fail_later(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    approve = app.external("approve", timeout_at=soon(clock, 60))
    app.jobs.complete(approve.id, "in time")
    clock.advance(61)
    drain(app)
    assert (approve.refresh().status, approve.result) == ("succeeded", "in time")


def test_a_deadline_that_has_passed_already(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    approve = app.external("approve", timeout_at=soon(clock, -1))
    drain(app)
    assert approve.refresh().error_code == "TIMEOUT:EXTERNAL"


def test_a_worker_that_sleeps_wakes_for_a_deadline(no_polling: None, live: Holdfast) -> None:
    flow = Flow(live)
    with RunningWorker(live):
        approve = live.external("approve", timeout_at=datetime.now(UTC) + timedelta(seconds=0.3))
        job = flow.job("a", approve, on_blocker_failure="run")
        eventually(lambda: job.refresh().status == "succeeded")
    finished = approve.refresh().finished_at
    assert finished is not None
    assert approve.timeout_at is not None
    assert finished >= approve.timeout_at


def test_thousands_whose_time_is_over(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    deadline = soon(clock, 60)
    with app.transaction() as tx:
        for number in range(2500):
            app.external("approve", number, timeout_at=deadline, conn=tx)
    clock.advance(61)
    drain(app)
    assert app.jobs.count(status="failed", error_code="TIMEOUT:EXTERNAL") == 2500


def test_a_retried_external_job_waits_anew_without_a_deadline(app: Holdfast, flow: Flow, clock: FakeClock) -> None:
    approve = app.external("approve", timeout_at=soon(clock, 60))
    job = flow.job("a", approve)
    clock.advance(61)
    drain(app)
    assert statuses(approve, job) == ["failed", "blocked"]
    assert app.jobs.retry(approve.id)
    drain(app)
    assert (approve.refresh().status, approve.timeout_at) == ("blocked", None)
    app.jobs.complete(approve.id, "at last")
    drain(app)
    assert flow.found["a"] == ("at last",)


def test_a_cancelled_external_job(app: Holdfast, flow: Flow) -> None:
    approve = app.external("approve")
    job = flow.job("a", approve, on_blocker_failure="cancel")
    assert app.jobs.cancel(approve.id, reason="withdrawn")
    assert statuses(approve, job) == ["cancelled", "cancelled"]
    assert app.jobs.complete(approve.id) is False
    app.jobs.retry(approve.id)
    assert approve.refresh().status == "blocked"


# --- any other job ---


@pytest.mark.parametrize("state", ["ready", "scheduled", "blocked"])
def test_a_job_that_waits_may_be_settled_from_outside(app: Holdfast, flow: Flow, state: str) -> None:
    def make(name: str) -> Any:
        if state == "blocked":
            return flow.job(name, app.external("approve"))
        return flow.job(name, delay=60 if state == "scheduled" else 0)

    done, failed = make("done"), make("failed")
    assert (done.status, failed.status) == (state, state)
    assert app.jobs.complete(done.id, "by hand")
    assert app.jobs.fail(failed.id, "BY:HAND")
    drain(app)
    assert (done.refresh().status, done.result, failed.refresh().status) == ("succeeded", "by hand", "failed")
    assert flow.ran == []


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("how", ["complete", "fail"])
def test_settling_a_running_job_fences_its_worker(
    live: Holdfast, kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = threading.Event(), threading.Event()

    @live.task
    def work() -> Any:
        begun.set()
        comes_true(release)
        return Then(work)

    @live.task
    async def work_later() -> Any:
        begun.set()
        while not release.is_set():
            await asyncio.sleep(0.005)
        return Then(work_later)

    job = (work if kind == "sync" else work_later).enqueue()
    with caplog.at_level(logging.INFO, "holdfast"), RunningWorker(live) as running:
        comes_true(begun)
        assert live.jobs.complete(job.id, "by hand") if how == "complete" else live.jobs.fail(job.id, "BY:HAND")
        release.set()
        report = running.stop()
    assert (report.lost, report.succeeded, report.failed) == (1, 0, 0)
    ended = ("succeeded", "by hand") if how == "complete" else ("failed", None)
    assert (job.refresh().status, job.result) == ended
    assert live.jobs.count() == 1, "and its chain does not go on"
    assert [entry.name for entry in attempts(live, job.id)] == ["completed" if how == "complete" else "failed"]


def test_a_handler_that_runs_on_is_told_to_stop(live: Holdfast) -> None:
    begun, told = threading.Event(), threading.Event()

    @live.task
    def work(ctx: Context) -> None:
        begun.set()
        eventually(lambda: ctx.cancelled)
        told.set()

    job = work.enqueue()
    with RunningWorker(live):
        comes_true(begun)
        live.jobs.complete(job.id)
        comes_true(told)
    assert job.refresh().status == "succeeded"


def test_the_result_must_be_of_the_tasks_type(app: Holdfast, flow: Flow) -> None:
    @app.task
    def count() -> int | Then:
        return 1

    @app.task
    def anything() -> Any: ...

    job, free = count.enqueue(), anything.enqueue()
    for wrong in ("one", 1.5, [1], {"n": 1}):
        with pytest.raises(InvalidInput, match="result has the wrong type"):
            app.jobs.complete(job.id, wrong)
    assert job.refresh().status == "ready"
    assert app.jobs.complete(job.id, 7)
    assert app.jobs.complete(free.id, {"n": [1]})
    assert (job.refresh().result, free.refresh().result) == (7, {"n": [1]})


def test_a_task_without_code_here_takes_any_result(app: Holdfast, sql: Callable[..., Any]) -> None:
    sql("INSERT INTO holdfast_jobs (task) VALUES ('of another program')")
    assert app.jobs.complete(1, {"any": "thing"})
    assert app.jobs.get(1).result == {"any": "thing"}


def test_a_completed_job_in_a_chain_ends_the_chain(app: Holdfast, flow: Flow) -> None:
    @app.task
    def first() -> Then:
        return Then(second.using(delay=3600))

    @app.task
    def second() -> str:
        return "second"

    root = first.enqueue()
    waiting = flow.job("waiting", root)
    drain(app)
    app.jobs.complete(app.chains.get(root.id).last.id, "by hand")
    drain(app)
    assert root.wait_chain(timeout=0) == "by hand"
    assert flow.found["waiting"] == ("by hand",)
    assert waiting.refresh().status == "succeeded"


def test_the_text_of_a_failure_is_shortened(app: Holdfast) -> None:
    approve = app.external("approve")
    app.jobs.fail(approve.id, "A:B", "x" * 10_000)
    assert len(approve.refresh().error_detail or "") == 500


def test_the_inbox_lists_external_jobs_that_wait_to_be_settled(app: Holdfast, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    ids = [app.external("approve", {"n": number}).id for number in range(5)]
    work.using(after=app.jobs.get(ids[0])).enqueue()  # blocked, but not external
    app.jobs.complete(ids[1], True)
    app.jobs.fail(ids[2], "REJECTED")
    page = app.jobs.inbox(limit=2)
    assert ([job.id for job in page], [job.args for job in page]) == ([ids[4], ids[3]], [{"n": 4}, {"n": 3}])
    rest = app.jobs.inbox(limit=2, cursor=page.next)
    assert ([job.id for job in rest], rest.next) == ([ids[0]], None)
    assert [job.id for job in app.jobs.inbox(limit=2, cursor=rest.previous)] == [ids[4], ids[3]]
