"""The log of a worker: a line per attempt, or a sum; never a payload, a result or the text of an exception."""

import logging
import math

import msgspec
import pytest

from holdfast import Context, Holdfast, Snooze
from holdfast.supervisor.logs import JsonLines, TextLines
from holdfast.worker import job_log
from support.other_process import bystander, worker
from support.running_worker import RunningWorker, drain, eventually
from support.transitions import recover_lost

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
    app: Holdfast, url: str, records: pytest.LogCaptureFixture, held: int, jobs: str
) -> None:
    app.task(name="known")(lambda: None).enqueue_many([{}] * held)
    with bystander(worker(url, claims=held)):
        pass
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
