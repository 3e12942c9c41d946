"""The worker: clock changes, and the stored times of an attempt."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Snooze
from holdfast.clock import SECOND
from holdfast.model.job import Sweep
from holdfast.testing import FakeClock
from support.running_worker import RunningWorker, attempts, drain, due_in, eventually

YEARS = 10 * 365 * 24 * 3600


@pytest.mark.parametrize("seconds", [3600, -3600, YEARS, -YEARS])
@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_a_clock_change_while_a_job_runs_does_not_change_its_delay(
    app: Holdfast, clock: FakeClock, define: Any, kind: type[Retry] | type[Snooze], seconds: int
) -> None:
    def meanwhile(ctx: Context) -> object:
        if ctx.attempt > 1:
            return "done"
        clock.step(seconds)
        return kind(5)

    job = define(meanwhile).enqueue()
    drain(app)
    assert job.refresh().status == "scheduled"
    assert due_in(app, job.id) == pytest.approx(5, abs=0.5)
    clock.advance(6)
    drain(app)
    assert job.refresh().result == "done"


@pytest.mark.parametrize("seconds", [3600, -3600, YEARS, -YEARS])
def test_g8_a_clock_change_neither_expires_a_lease_nor_runs_a_job_twice(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    other = open_app(clock=clock)
    runs: list[int] = []
    looks = {id(one): count_sweeps(one, monkeypatch) for one in (app, other)}

    def register(one: Holdfast) -> Any:
        @one.task(name="work", timeout=60)
        def work(ctx: Context) -> str:
            runs.append(ctx.attempt)
            clock.step(seconds)
            before = {name: len(some) for name, some in looks.items()}
            eventually(lambda: ctx.cancelled or all(len(looks[name]) > before[name] + 2 for name in looks))
            return "cancelled" if ctx.cancelled else "done"

        return work

    tasks = [register(one) for one in (app, other)]
    with RunningWorker(other, lease=1), RunningWorker(app, lease=1):
        job = tasks[0].enqueue()
        eventually(lambda: job.refresh().status == "succeeded")
    assert (job.result, len(runs)) == ("done", 1)


def count_sweeps(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each sweep for dead workers and expired leases."""
    looks, sweep = list[None](), app.store.jobs.sweep

    def look(what: Sweep = Sweep.ALL, *limit: int) -> int:
        if Sweep.WORKERS in what:
            looks.append(None)
        return sweep(what, *limit)

    monkeypatch.setattr(app.store.jobs, "sweep", look)
    return looks


def test_the_times_of_an_attempt_are_correct(open_app: Callable[..., Holdfast]) -> None:
    app, inside = open_app(), []

    @app.task
    def work() -> None:
        inside.append(time.time())
        time.sleep(0.03)
        inside.append(time.time())

    before = time.time()
    job = work.enqueue()
    drain(app)
    (attempt,) = attempts(app, job.id)
    claimed, started, finished = (
        value / SECOND for value in (attempt.at, attempt.detail["started_at"], attempt.detail["finished_at"])
    )
    assert before - 0.001 <= claimed <= started <= inside[0] + 0.001
    assert inside[1] - 0.005 <= finished <= time.time() + 0.001
    job.refresh()
    assert job.started_at is not None and job.started_at.timestamp() == pytest.approx(started)
    assert job.finished_at is not None and job.finished_at.timestamp() == pytest.approx(finished)


def test_jobs_that_were_claimed_together_have_their_own_times(open_app: Callable[..., Holdfast]) -> None:
    app = open_app()

    @app.task
    def quick() -> None:
        pass

    ids = quick.enqueue_many([{}] * 300)
    drain(app, concurrency=1)
    spans = []
    for job_id in ids:
        (attempt,) = attempts(app, job_id)
        assert attempt.at <= attempt.detail["started_at"] <= attempt.detail["finished_at"]
        spans.append((attempt.detail["started_at"], attempt.detail["finished_at"]))
    spans.sort()
    assert all(one[1] <= next[0] + 1 for one, next in pairwise(spans)), "one thread, one at a time"
