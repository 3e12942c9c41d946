"""The worker: handlers that exceed their timeout."""

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.clock import SECOND
from support.running_worker import (
    PATIENCE_SECONDS,
    RunningWorker,
    attempts,
    comes_true,
    drain,
    eventually,
    let_time_run_out,
    outcomes,
)


class Stubborn:
    """Handlers that block until `release` is set. overdue: the timeout of the first attempt expires at once."""

    def __init__(self, app: Holdfast, kind: str, overdue: bool = False, **options: Any) -> None:
        self.started, self.release, self.returned = 0, threading.Event(), 0
        self.cancelled: list[bool] = []

        def stay(ctx: Context) -> str:
            if ctx.attempt > 1:
                return "second"
            self.started += 1
            if overdue:
                let_time_run_out(ctx)
            comes_true(self.release)
            self.cancelled.append(ctx.cancelled)
            self.returned += 1
            return "late"

        async def stay_later(ctx: Context) -> str:
            if ctx.attempt > 1:
                return "second"
            self.started += 1
            if overdue:
                let_time_run_out(ctx)
            while not self.release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    self.cancelled.append(ctx.cancelled)
            self.returned += 1
            return "late"

        self.task = app.task(name="stay", **options)(stay if kind == "sync" else stay_later)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_job_fails_at_its_timeout_although_its_handler_still_runs(live: Holdfast, kind: str) -> None:
    stubborn = Stubborn(live, kind, overdue=True, timeout=3600.5, max_attempts=1)
    with RunningWorker(live) as running:
        job = stubborn.task.enqueue()
        eventually(lambda: job.refresh().status == "failed")
        assert job.error_code == "TIMEOUT:HANDLER" and "3600.5" in (job.error_detail or "")
        assert stubborn.returned == 0
        report = running.stop()
    assert (report.failed, report.stuck, report.succeeded) == (1, 1, 0)
    stubborn.release.set()
    eventually(lambda: stubborn.cancelled)
    assert set(stubborn.cancelled) == {True}


def test_a_result_after_the_timeout_is_discarded(live: Holdfast, kind: str) -> None:
    stubborn = Stubborn(live, kind, overdue=True, timeout=3600, retry=0)
    with RunningWorker(live, concurrency=1) as running:
        job = stubborn.task.enqueue()
        eventually(lambda: job.refresh().status == "succeeded")
        assert job.result == "second"
        stubborn.release.set()
        eventually(lambda: stubborn.returned)
        report = running.stop()
    assert report.stuck == 0
    job.refresh()
    assert (job.result, job.attempt) == ("second", 2)
    assert outcomes(live, job.id) == ["retry_scheduled", "succeeded"]
    assert attempts(live, job.id)[0].detail["error_code"] == "TIMEOUT:HANDLER"


def test_a_stuck_thread_is_replaced(live: Holdfast, kind: str) -> None:
    stubborn = Stubborn(live, kind, overdue=True, timeout=3600, max_attempts=1)
    served: list[int] = []

    @live.task
    def next_one(n: int) -> None:
        served.append(n)

    with RunningWorker(live, concurrency=2) as running:
        for _ in range(4):
            stubborn.task.enqueue()
        eventually(lambda: live.jobs.count(status="failed") == 4)
        next_one.enqueue_many([{"n": n} for n in range(10)])
        eventually(lambda: len(served) == 10)
        stubborn.release.set()
        eventually(lambda: stubborn.returned == 4)
        next_one.enqueue_many([{"n": n} for n in range(10)])
        eventually(lambda: len(served) == 20)
        assert running.stop().stuck == 0, "all handlers have returned"


def test_a_worker_that_was_idle_enforces_timeouts(no_polling: None, live: Holdfast, kind: str) -> None:
    stubborn = Stubborn(live, kind, timeout=0.1, max_attempts=1)
    with RunningWorker(live):
        for _ in range(4):
            job = stubborn.task.enqueue()
            eventually(lambda: job.refresh().status == "failed")  # noqa: B023
            (attempt,) = attempts(live, job.id)
            took = (attempt.detail["finished_at"] - attempt.detail["started_at"]) / SECOND
            assert took >= 0.1
        stubborn.release.set()


def test_a_coroutine_that_ends_at_its_timeout_is_not_stuck(live: Holdfast) -> None:
    ended: list[str] = []

    @live.task(timeout=3600, max_attempts=1)
    async def sleep(ctx: Context) -> None:
        let_time_run_out(ctx)
        try:
            await asyncio.sleep(2 * PATIENCE_SECONDS)
        finally:
            ended.append("cleaned up")

    job = sleep.enqueue()
    report = drain(live)
    assert (job.refresh().error_code, ended, report.stuck) == ("TIMEOUT:HANDLER", ["cleaned up"], 0)


def test_a_job_can_have_its_own_timeout(live: Holdfast) -> None:
    release = threading.Event()

    @live.task(max_attempts=1)
    def wait() -> str:
        return "in time" if release.wait(PATIENCE_SECONDS) else "late"

    hasty, calm = wait.using(timeout=0.05).enqueue(), wait.using(timeout=10 * PATIENCE_SECONDS).enqueue()
    with RunningWorker(live):
        eventually(lambda: hasty.refresh().status == "failed")
        release.set()
        eventually(lambda: calm.refresh().status == "succeeded")
    assert (hasty.error_code, calm.result) == ("TIMEOUT:HANDLER", "in time")


@pytest.mark.parametrize("seconds", [0, 0.000001])
def test_a_very_short_timeout_ends_every_attempt(live: Holdfast, kind: str, seconds: float) -> None:
    stubborn = Stubborn(live, kind, max_attempts=1)
    job = stubborn.task.using(timeout=seconds).enqueue()
    with RunningWorker(live):
        eventually(lambda: job.refresh().status == "failed")
        stubborn.release.set()
    assert job.error_code == "TIMEOUT:HANDLER"


def test_a_job_that_finishes_at_its_timeout_is_settled_once(live: Holdfast) -> None:
    runs: list[int] = []

    @live.task(timeout=0.02, max_attempts=1)
    def race(ctx: Context) -> None:
        runs.append(ctx.attempt)
        time.sleep(0.02)

    ids = race.enqueue_many([{}] * 60)
    report = drain(live, concurrency=4)
    assert len(runs) == 60
    assert report.succeeded + report.failed == 60
    for job_id in ids:
        assert outcomes(live, job_id) in (["succeeded"], ["failed"])
