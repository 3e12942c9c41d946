"""The worker: stopping, and what happens to the jobs that it has claimed."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput, StoreClosed, WorkerNotFound
from holdfast.model.job import SettledAndClaimed
from holdfast.worker import event_loop
from support.running_worker import PATIENCE_SECONDS, RunningWorker, comes_true, drain, eventually, left, outcomes


class Holding:
    """A task whose handlers block until `release` is set, and ignore cancellation."""

    def __init__(self, app: Holdfast, kind: str = "sync") -> None:
        self.started, self.release, self.returned = threading.Event(), threading.Event(), threading.Event()

        def hold(ctx: Context) -> str:
            self.started.set()
            comes_true(self.release)
            self.returned.set()
            return "done"

        async def hold_later(ctx: Context) -> str:
            self.started.set()
            while not self.release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            self.returned.set()
            return "done"

        self.task: Any = app.task(name="hold", max_attempts=3)(hold if kind == "sync" else hold_later)


@pytest.fixture(params=["sync", "async"])
def holding(live: Holdfast, request: pytest.FixtureRequest) -> Holding:
    return Holding(live, request.param)


def test_stop_wakes_an_idle_worker(no_polling: None, live: Holdfast, holding: Holding) -> None:
    with RunningWorker(live) as running:
        job = live.tasks["hold"].enqueue()
        holding.release.set()
        eventually(lambda: job.refresh().status == "succeeded")
        running.stop()


def test_a_stopping_worker_finishes_running_jobs_and_claims_no_more(live: Holdfast, holding: Holding) -> None:
    first = holding.task.enqueue()
    with RunningWorker(live, concurrency=1) as running:
        comes_true(holding.started)
        second = holding.task.enqueue()
        running.worker.stop()
        holding.release.set()
        report = running.report()
    assert (first.refresh().status, first.result) == ("succeeded", "done")
    assert (second.refresh().status, second.attempt) == ("ready", 0)
    assert (report.succeeded, report.interrupted, report.stuck) == (1, 0, 0)


@pytest.mark.parametrize("how", ["the end of grace", "a second stop"])
def test_jobs_that_still_run_are_interrupted_and_the_attempt_does_not_count(
    live: Holdfast, holding: Holding, how: str
) -> None:
    job = holding.task.enqueue()
    with RunningWorker(live, grace=0.1 if how == "the end of grace" else 60) as running:
        comes_true(holding.started)
        report = running.stop() if how == "the end of grace" else running.stop_now()
    job.refresh()
    assert (job.status, job.worker, left(live, job.id)) == ("ready", None, 3)
    assert outcomes(live, job.id) == ["interrupted"]
    assert (report.interrupted, report.succeeded, report.failed) == (1, 0, 0)
    holding.release.set()
    if report.stuck:  # a coroutine may have ended with its loop
        holding.returned.wait(0.2)
    assert job.refresh().status == "ready", "the outcome after the end is ignored"
    drain(live)
    assert (job.refresh().result, outcomes(live, job.id)) == ("done", ["interrupted", "succeeded"])


def test_an_interrupted_coroutine_can_clean_up(live: Holdfast) -> None:
    started, cleaned_up = threading.Event(), threading.Event()

    @live.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(2 * PATIENCE_SECONDS)
        finally:
            await asyncio.sleep(0.02)
            cleaned_up.set()

    work.enqueue()
    with RunningWorker(live) as running:
        comes_true(started)
        running.stop_now()
    comes_true(cleaned_up, "the loop ended before the cleanup")


def test_a_coroutine_whose_cleanup_does_not_end_is_told_once_and_its_job_is_given_back(
    live: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is destroyed with its event loop. asyncio has a message of its own for that, which names no cause."""
    monkeypatch.setattr(event_loop, "MAX_CLEANUP_SECONDS", 0.0)
    started = threading.Event()

    @live.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(2 * PATIENCE_SECONDS)
        finally:
            await asyncio.sleep(2 * PATIENCE_SECONDS)

    job = work.enqueue()
    with RunningWorker(live) as running:
        comes_true(started)
        running.stop_now()
    del running
    gc.collect()
    assert (job.refresh().status, left(live, job.id)) == ("ready", 5)
    assert "1 cancelled coroutine did not end" in caplog.text and "destroyed" not in caplog.text


def test_jobs_that_were_claimed_but_not_started_are_given_back_uncounted(live: Holdfast) -> None:
    started, release = threading.Event(), threading.Event()

    @live.task
    def work(block: bool) -> None:
        if block:
            started.set()
            comes_true(release)

    work.enqueue_many([{"block": False}] * 400)
    with RunningWorker(live, concurrency=1) as running:
        eventually(lambda: live.jobs.count(status="succeeded") == 400)
        ids = work.enqueue_many([{"block": True}] * 50)
        comes_true(started)
        running.worker.stop()
        eventually(lambda: live.jobs.count(status="running") == 1)
        release.set()
        running.report()
    states = [live.jobs.get(job_id).status for job_id in ids]
    assert sorted(states) == ["ready"] * 49 + ["succeeded"]
    assert {left(live, job_id) for job_id, state in zip(ids, states, strict=True) if state == "ready"} == {5}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("slow", ["before", "after"])
def test_a_claim_in_progress_when_the_worker_stops_is_given_back(
    live: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str, slow: str
) -> None:
    """The database is slow, and the worker stops before its claim returns."""
    claiming, go_on, ran = threading.Event(), threading.Event(), []
    settle_and_claim = live.store.jobs.settle_and_claim

    def slow_claim(settlements: Any, wants: Any) -> SettledAndClaimed:
        if not wants or settlements or claiming.is_set():
            return settle_and_claim(settlements, wants)
        exchanged = settle_and_claim(settlements, wants) if slow == "after" else None
        claiming.set()
        comes_true(go_on)
        return exchanged or settle_and_claim(settlements, wants)

    @live.task
    def work() -> None:
        ran.append(running.has_ended())

    @live.task
    async def work_later() -> None:
        ran.append(running.has_ended())

    ids = (work if kind == "sync" else work_later).enqueue_many([{}] * 5)
    monkeypatch.setattr(live.store.jobs, "settle_and_claim", slow_claim)
    with RunningWorker(live) as running:
        comes_true(claiming)
        running.worker.stop()
        threading.Timer(0.1, go_on.set).start()
        running.report()
    monkeypatch.undo()
    eventually(lambda: live.jobs.count(status="running") == 0, "jobs are still claimed by a worker that has ended")
    assert not any(ran), "a handler ran after the worker had ended"
    assert all(left(live, job_id) == 5 for job_id in ids if live.jobs.get(job_id).status == "ready")


def test_workers_that_stop_at_once_under_load_leave_no_running_jobs(live: Holdfast) -> None:
    runs: list[int] = []

    @live.task
    def work(ctx: Context) -> None:
        runs.append(ctx.attempt)
        time.sleep(0.002)

    @live.task
    async def work_later(ctx: Context) -> None:
        runs.append(ctx.attempt)
        await asyncio.sleep(0.002)

    for _ in range(12):
        for task in (work, work_later):
            task.enqueue_many([{}] * 100)
        before = len(runs)
        with RunningWorker(live, concurrency=20) as running:
            eventually(lambda: len(runs) > before + 50)  # noqa: B023
            running.stop_now()
        assert live.jobs.count(status="running") == 0, "jobs are still claimed by a worker that has ended"
        live.jobs.cancel(status="ready")
    assert live.jobs.count(status=["scheduled", "failed"]) == 0, "an interrupted attempt was recorded as failed"


def test_a_worker_that_was_stopped_before_its_start_does_nothing(live: Holdfast, holding: Holding) -> None:
    job = holding.task.enqueue()
    worker = live.worker()
    worker.stop()
    worker.run()
    assert (job.refresh().status, job.attempt) == ("ready", 0)


def test_stop_after_the_end_does_not_write_to_reused_descriptors(
    live: Holdfast, holding: Holding, tmp_path: Path
) -> None:
    """Its descriptors may belong to other files by then."""
    worker = live.worker(until_idle=True)
    worker.run()
    file = tmp_path / "somebody-elses"
    descriptors = [os.open(file, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(30)]
    try:
        worker.stop()
        worker.stop()
        assert file.read_bytes() == b""
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_closing_the_app_ends_its_worker(open_app: Callable[..., Holdfast]) -> None:
    app = open_app()

    @app.task
    def work() -> None:
        pass

    with RunningWorker(app) as running:
        job = work.enqueue()
        eventually(lambda: job.refresh().status == "succeeded")
        app.close()
        running.join()
        assert isinstance(running.error, StoreClosed)
        running.error = None
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("holdfast-run")])


def test_the_record_of_a_stopped_worker_is_marked_as_stopped(live: Holdfast, holding: Holding) -> None:
    with RunningWorker(live, queues="default,mail", concurrency=4) as running:
        eventually(live.store.workers.list)
        record = live.store.workers.list()[0].record
        assert (record.id, record.pid, record.concurrency) == (running.worker.id, os.getpid(), 4)
        assert (record.queues, record.tasks, record.ended_at) == (("default", "mail"), ("hold",), None)
        running.stop()
    (worker,) = live.store.workers.list()
    record = worker.record
    assert worker.state == "stopped"
    assert record.ending == "stopped" and record.ended_at is not None


def test_workers_leave_no_threads_and_no_open_files(live: Holdfast) -> None:
    @live.task
    def work() -> None:
        pass

    @live.task
    async def work_later() -> None:
        await asyncio.sleep(0)

    def round() -> None:
        work.enqueue_many([{}] * 5)
        work_later.enqueue_many([{}] * 5)
        drain(live, concurrency=3)

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        round()
    threads, files = threading.active_count(), open_files()
    for _ in range(15):
        round()
        live.worker()  # one that is never run
    gc.collect()
    eventually(lambda: threading.active_count() <= threads, f"threads: {threading.enumerate()}")
    # Some read connections stay open for reuse.
    eventually(lambda: open_files() <= files + 10, "open files")
    assert live.jobs.count(status="succeeded") == live.jobs.count()


def test_a_worker_can_run_only_once(live: Holdfast, holding: Holding) -> None:
    worker = live.worker(until_idle=True)
    worker.run()
    with pytest.raises(InvalidInput, match=r"app\.worker\(\)"):
        worker.run()


def test_a_worker_in_the_main_thread_restores_the_signal_handlers(live: Holdfast, holding: Holding) -> None:
    holding.release.set()
    job = holding.task.enqueue()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    live.worker(until_idle=True).run()
    assert job.refresh().result == "done"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_worker_that_is_asked_to_stop_finishes_its_job_and_ends(live: Holdfast, holding: Holding) -> None:
    first = holding.task.enqueue()
    with RunningWorker(live, concurrency=1) as running:
        comes_true(holding.started)
        second = holding.task.enqueue()
        assert live.stop_worker(running.worker.id, actor="ada", reason="new kernel")
        assert not live.stop_worker(running.worker.id), "once is enough"
        (worker,) = [one for one in live.observe.workers() if one.alive]
        assert worker.stop_at is not None
        eventually(lambda: running.worker._worker_run._stopping)
        holding.release.set()
        running.report()
    assert (first.refresh().status, second.refresh().status) == ("succeeded", "ready")
    (event,) = [one for one in live.observe.last_events() if one.event == "stop_requested"]
    assert (event.actor, event.detail) == ("ada", {"worker": worker.id, "reason": "new kernel"})
    assert not live.stop_worker(worker.id), "it has ended"


def test_only_known_workers_can_be_asked_to_stop(live: Holdfast) -> None:
    with pytest.raises(WorkerNotFound, match="there is no worker 'nobody'"):
        live.stop_worker("nobody")
    with pytest.raises(InvalidInput):
        live.stop_worker("")
