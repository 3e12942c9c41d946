"""The log of a worker: a line per attempt, or a sum; never a payload, a result or the text of an exception."""

import asyncio
import logging
import math
import threading
from contextlib import suppress

import msgspec
import pytest

from holdfast import Context, Holdfast, Snooze
from holdfast.clock import SECOND
from holdfast.model.job import Settlement
from holdfast.worker import job_log
from holdfast.worker.attempt import Attempt
from holdfast.worker.job_log import JsonLines, TextLines
from support.backend import Backend
from support.child_processes import bystander, worker
from support.running_worker import RunningWorker, drain, eventually
from support.transitions import claim_tasks, recover_lost

SECRET = "the-secret"


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "holdfast")
    return caplog


def run_all_kinds(app: Holdfast) -> None:
    @app.task
    def well(word: str) -> str:
        return word

    @app.task(max_attempts=2, retry=0)
    def badly(word: str) -> None:
        raise ValueError(word)

    @app.task
    def later(word: str) -> Snooze:
        return Snooze(60)

    for task in (well, badly, later):
        task.enqueue(SECRET)
    drain(app)


def ours(records: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of Holdfast: asyncio may log about coroutines of earlier tests."""
    return [record for record in records.records if record.name.startswith("holdfast")]


def test_each_attempt_is_one_readable_line(app: Holdfast, records: pytest.LogCaptureFixture) -> None:
    run_all_kinds(app)
    lines = sorted(record.getMessage().split(" (")[0] for record in ours(records))
    assert lines == [
        "badly 2 failed with INVALID_INPUT:VALUE",
        "badly 2 failed with INVALID_INPUT:VALUE, retry in 0 s",
        "later 3 snoozed for 1m",
        "well 1 succeeded",
    ]


def test_json_lines_name_outcomes_as_the_history_does(app: Holdfast, records: pytest.LogCaptureFixture) -> None:
    run_all_kinds(app)
    lines = [msgspec.json.decode(JsonLines().format(record)) for record in ours(records)]
    outcomes = sorted((one["task"], one["attempt"], one["outcome"], one["again_in_s"]) for one in lines)
    assert outcomes == [
        ("badly", 1, "retry_scheduled", 0.0),
        ("badly", 2, "failed", None),
        ("later", 1, "snoozed", 60.0),
        ("well", 1, "succeeded", None),
    ]
    assert all(one["ran_ms"] >= 0 and one["waited_ms"] >= 0 for one in lines)


def test_no_line_contains_a_payload_a_result_or_an_exception_message(
    app: Holdfast, records: pytest.LogCaptureFixture
) -> None:
    run_all_kinds(app)
    assert len(ours(records)) == 4
    for record in ours(records):
        assert SECRET not in TextLines().format(record) + JsonLines().format(record)


def test_lines_of_the_context_logger_name_the_job(app: Holdfast, records: pytest.LogCaptureFixture) -> None:
    @app.task
    def talk(ctx: Context) -> None:
        ctx.logger.warning("half\nway")

    talk.enqueue()
    drain(app)
    (record,) = [one for one in records.records if one.name == "holdfast.job"]
    assert (record.job_id, record.attempt) == (1, 1)  # type: ignore[attr-defined]
    fields = msgspec.json.decode(JsonLines().format(record))
    assert (fields["job"], fields["task"], fields["message"]) == (1, "talk", "half\nway")
    assert TextLines().format(record).endswith("talk 1: half\\nway")


@pytest.mark.parametrize(("held", "jobs"), [(1, "1 job"), (2, "2 jobs")])
def test_the_log_says_how_many_jobs_of_a_dead_worker_were_recovered(
    app: Holdfast, backend: Backend, records: pytest.LogCaptureFixture, held: int, jobs: str
) -> None:
    app.task(name="known")(lambda: None).enqueue_many([{}] * held)
    with bystander(worker(backend.url, claims=held)):
        pass
    backend.bury_workers()
    assert recover_lost(app.store) == held
    assert f"worker {'w' * 16} died; recovered {jobs}" in [record.getMessage() for record in ours(records)]


def logged_successes(records: pytest.LogCaptureFixture) -> int:
    """Return how many successes were logged."""
    return sum(one.holdfast.get("count", 1) for one in ours(records) if hasattr(one, "holdfast"))


def test_a_stopped_worker_has_logged_every_success(app: Holdfast, records: pytest.LogCaptureFixture) -> None:
    app.task(name="work")(lambda: None).enqueue_many([{}] * 100)
    assert drain(app).succeeded == logged_successes(records) == 100


def test_an_idle_worker_logs_the_sum(
    app: Holdfast, records: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "SUM_SECONDS", math.inf)
    app.task(name="work")(lambda: None).enqueue_many([{}] * 100)
    with RunningWorker(app):
        eventually(lambda: app.jobs.count(status="succeeded") == 100)
        eventually(lambda: logged_successes(records) == job_log.LINES_PER_SECOND)
        monkeypatch.setattr(job_log, "SUM_SECONDS", 0.0)
        eventually(lambda: logged_successes(records) == 100)


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize("ends", ["by itself", "when it is stopped"])
def test_a_cancel_of_running_jobs_is_told_once_with_who_and_why(
    app: Holdfast, records: pytest.LogCaptureFixture, kind: str, ends: str
) -> None:
    """It is not a lost lease, and nothing is told again when the handlers end."""
    begun, release = list[int](), threading.Event()

    def is_over(ctx: Context) -> bool:
        return release.is_set() if ends == "by itself" else ctx.cancelled

    @app.task
    def hold(ctx: Context) -> None:
        begun.append(ctx.job_id or 0)
        eventually(lambda: is_over(ctx))

    @app.task
    async def hold_later(ctx: Context) -> None:
        begun.append(ctx.job_id or 0)
        while not is_over(ctx):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    jobs = [(hold if kind == "thread" else hold_later).enqueue() for _ in range(5)]
    with RunningWorker(app, concurrency=5) as running:
        eventually(lambda: len(begun) == 5)
        for job in jobs:
            app.jobs.cancel(job.id, actor="joe", reason="sent by hand")
        eventually(lambda: running.worker._worker_run._job_log.counts["lost"] == 5 or release.set())
        report = running.stop()
    assert report.lost == 5
    told = [one for one in ours(records) if "cancelled by joe while running (sent by hand)" in one.getMessage()]
    assert sorted(id for one in told for id in one.holdfast["jobs"]) == sorted(begun)  # type: ignore[attr-defined]
    assert not any("lost" in record.getMessage() for record in ours(records))


def test_many_jobs_that_one_action_cancels_are_one_line(app: Holdfast, records: pytest.LogCaptureFixture) -> None:
    """118 lines about lost leases hid what had happened."""

    @app.task
    def work(ctx: Context) -> None: ...

    for _ in range(118):
        work.enqueue()
    claimed = claim_tasks(app.store, None, ["work"], 118, 30 * SECOND, "worker-1")
    for one in claimed:
        app.jobs.cancel(one.id, actor="joe")
    log = job_log.JobLog(last_events=lambda job_id: app.store.statistics.events(1, job_id=job_id))
    handler = app.tasks["work"]
    batch = [(Attempt(one, handler, 0), Settlement(one.lease, "succeed", 1, 2)) for one in claimed]
    log.settled(batch, {id(settlement) for _, settlement in batch})
    (line,) = [record.getMessage() for record in ours(records)]
    assert line == "118 jobs of work were cancelled by joe while running: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …"
    assert log.counts == {"lost": 118, "succeeded": 0}
