"""Waiting for the end of a chain, whatever that is."""

import threading
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, JobError, Retry, Snooze, Then
from holdfast.errors import JobFailed, WaitTimeout
from support.running_worker import PATIENCE_SECONDS, RunningWorker, comes_true, drain, eventually


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (Fail("REJECTED:BUDGET", "too dear"), "failed", "REJECTED:BUDGET"),
        (Cancel("gone"), "cancelled", None),
        (JobError("DEPENDENCY:STRIPE", "503"), "failed", "DEPENDENCY:STRIPE"),
    ],
)
def test_a_chain_that_ends_badly_says_how(app: Holdfast, outcome: Any, status: str, code: str | None) -> None:
    @app.task
    def first() -> Then:
        return Then(second)

    @app.task(max_attempts=1)
    def second() -> None:
        raise outcome

    root = first.enqueue()
    drain(app)
    assert root.refresh().status == "succeeded"
    with pytest.raises(JobFailed) as caught:
        root.wait_chain(timeout=0)
    last = app.chains.get(root.id).last
    assert (caught.value.job_id, caught.value.status, caught.value.code) == (last.id, status, code)
    assert app.chains.get(root.id).status == status


def test_a_job_in_the_middle_may_be_retried_and_snoozed(app: Holdfast) -> None:
    @app.task
    def first() -> Then:
        return Then(second)

    @app.task(retry=0)
    def second(ctx: Context) -> Any:
        return [Retry(), Snooze(0), Then(third)][ctx.attempt - 1]

    @app.task
    def third() -> str:
        return "at last"

    root = first.enqueue()
    drain(app)
    assert root.wait_chain(timeout=0) == "at last"
    assert [job.attempt for job in app.chains.get(root.id).jobs()] == [1, 3, 1]


def test_waiting_for_a_chain_outlasts_its_first_job(live: Holdfast) -> None:
    release = threading.Event()

    @live.task
    def first() -> Then:
        return Then(second)

    @live.task
    def second() -> str:
        comes_true(release)
        return "second"

    root = first.enqueue()
    with RunningWorker(live):
        eventually(lambda: live.chains.get(root.id).status == "running" and live.chains.get(root.id).length == 2)
        with pytest.raises(WaitTimeout, match=f"chain {root.id} is still running"):
            root.wait_chain(timeout=0.05)
        assert root.wait(timeout=0) is None, "the first job has ended"
        release.set()
        assert root.wait_chain(timeout=PATIENCE_SECONDS) == "second"


def test_retrying_the_last_job_lets_the_chain_go_on(app: Holdfast) -> None:
    broken = [True]

    @app.task
    def first() -> Then:
        return Then(second)

    @app.task(max_attempts=1)
    def second() -> Then:
        if broken:
            raise ValueError
        return Then(third)

    @app.task
    def third() -> str:
        return "third"

    root = first.enqueue()
    drain(app)
    chain = app.chains.get(root.id)
    assert (chain.status, chain.length) == ("failed", 2)
    broken.clear()
    assert app.jobs.retry(chain.last.id)
    drain(app)
    assert (chain.refresh().status, chain.length, chain.result) == ("succeeded", 3, "third")
