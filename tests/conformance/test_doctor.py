"""`app.check()`: the findings about jobs, workers and times, and their repairs."""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND, as_datetime
from holdfast.errors import InvalidInput
from holdfast.model.job import Claimed
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock
from holdfast.upkeep.doctor.check import Finding
from support.child_processes import bystander, worker
from support.doctor import finding_of, problems
from support.transitions import succeed

Sql = Callable[..., list[Any]]
Claim = Callable[..., Claimed]

DAY = 86_400


@pytest.fixture
def found(app: Holdfast) -> Callable[..., Finding]:
    """The finding with this code and severity."""
    return functools.partial(finding_of, app)


@pytest.fixture
def enlist(app: Holdfast, clock: FakeClock) -> Callable[..., WorkerRecord]:
    """Register a worker of this process that does nothing."""
    made: list[WorkerRecord] = []

    def one(tasks: tuple[str, ...] = ("known",), queues: tuple[str, ...] | None = None) -> WorkerRecord:
        name = f"{len(made):016d}"
        record = WorkerRecord(name, os.getpid(), "host", queues, tasks, 10, 60 * SECOND, clock.now(), clock.now())
        app.store.workers.register(record)
        made.append(record)
        return record

    yield one  # type: ignore[misc]
    for record in made:
        app.store.workers.unregister(record.id)


# --- the checkup -----------------------------------------------------------------------------------


def test_a_new_database_has_no_problems(app: Holdfast) -> None:
    checkup = app.check()
    assert checkup.ok and checkup.severity in ("ok", "note") and checkup.repaired == []
    assert "checks passed." in checkup.summary
    passed = {finding.code for finding in checkup.findings if finding.severity == "ok"}
    assert {"SCHEMA", "STUCK_JOBS", "COUNTS", "WORKERS", "CLOCK"} <= passed


def test_the_most_severe_finding_comes_first_and_decides(app: Holdfast, sql: Sql) -> None:
    app.queue("slow").pause()
    app.task(name="known")(lambda: None).enqueue()
    checkup = app.check()
    order = [one.severity for one in checkup.findings]
    assert order == sorted(order, key=["error", "warning", "note", "ok"].index)
    assert checkup.severity == "warning" and not checkup.ok
    assert checkup.summary.startswith("1 warning, ")


def test_every_finding_has_a_code_and_whole_sentences(app: Holdfast) -> None:
    for one in app.check(deep=True).findings:
        assert one.code.isupper() and not one.meaning[0].islower() and one.meaning.endswith(".")
        assert str(one).startswith(f"{one.severity}: {one.code}: ")


@pytest.mark.parametrize("option", ["deep", "repair"])
def test_options_are_checked(app: Holdfast, option: str) -> None:
    with pytest.raises(InvalidInput, match=option):
        app.check(**{option: "yes"})  # type: ignore[arg-type]


def test_a_repair_of_a_sound_database_changes_nothing(app: Holdfast, sql: Sql) -> None:
    app.task(name="known")(lambda: None).enqueue()
    before = sql("SELECT * FROM holdfast_jobs"), sql("SELECT * FROM holdfast_events")
    app.check(repair=True)
    assert (sql("SELECT * FROM holdfast_jobs"), sql("SELECT * FROM holdfast_events")) == before


# --- jobs without progress ---------------------------------------------------------------------


def test_a_job_past_its_lease_without_a_live_worker(
    app: Holdfast, clock: FakeClock, found: Any, claim: Claim
) -> None:
    job = app.task(name="known")(lambda: None).enqueue()
    claim(lease=30)
    assert found("STUCK_JOBS", "ok")
    clock.advance(35)
    assert found("STUCK_JOBS", "ok"), "a sweep may be late by some seconds"
    clock.advance(10)
    one = found("STUCK_JOBS", "warning")
    assert one.detail == {"jobs": 1, "ids": (job.id,)} and "not held by a live worker: 1 job (1)." in one.meaning
    assert "Recovered 1 job that no live worker held." in app.check(repair=True).repaired
    assert found("STUCK_JOBS", "ok") and job.refresh().status == "ready"


def test_a_job_past_its_lease_beside_a_live_worker_is_an_error(
    app: Holdfast, clock: FakeClock, found: Any, claim: Claim, enlist: Any
) -> None:
    app.task(name="known")(lambda: None).enqueue()
    claim(lease=30)
    enlist()
    clock.advance(60)
    assert "should have recovered them" in found("STUCK_JOBS", "error").meaning


def test_a_live_worker_that_is_late_is_not_stuck(app: Holdfast, clock: FakeClock, claim: Claim, enlist: Any) -> None:
    app.task(name="known")(lambda: None).enqueue()
    claim(lease=30, worker=enlist().id)
    clock.advance(60)
    assert "STUCK_JOBS" not in problems(app)


def test_a_blocked_job_that_waits_for_nothing(app: Holdfast, sql: Sql, found: Any) -> None:
    work = app.task(name="known")(lambda: None)
    waits = work.using(after=work.enqueue()).enqueue()
    assert found("BLOCKED_JOBS", "ok")
    sql("DELETE FROM holdfast_blockers")
    one = found("STUCK_BLOCKED", "error")
    assert one.detail["ids"] == (waits.id,) and one.fix is not None and f"holdfast cancel {waits.id}" in one.fix


def test_an_external_job_is_not_stuck(app: Holdfast) -> None:
    app.external("approve")
    assert "STUCK_BLOCKED" not in problems(app)


def test_a_blocked_job_whose_blocker_ended_unnoticed_is_released(
    app: Holdfast, sql: Sql, found: Any, claim: Claim
) -> None:
    work = app.task(name="known")(lambda: None)
    first = work.enqueue()
    waits = work.using(after=first).enqueue()
    sql("UPDATE holdfast_jobs SET status = 'succeeded' WHERE id = ?", (first.id,))
    assert found("ENDINGS_LEFT", "note").detail == {"endings": 1}
    assert "STUCK_BLOCKED" not in problems(app), "the next worker releases it"
    sql("DELETE FROM holdfast_endings")
    assert found("STUCK_BLOCKED", "error").detail["ids"] == [waits.id]
    assert "Released jobs whose blockers have finished." in app.check(repair=True).repaired
    assert waits.refresh().status == "ready"


def test_a_job_that_waits_for_a_failed_one_is_a_note(app: Holdfast, found: Any, claim: Claim) -> None:
    work = app.task(name="known")(lambda: None)
    first = work.enqueue()
    waits = work.using(after=first).enqueue()
    app.jobs.cancel(first.id)
    one = found("BLOCKED_BY_FAILED", "note")
    assert one.detail == {"jobs": 1, "ids": [waits.id], "causes": [first.id]}
    assert one.fix is not None and one.fix.startswith(f"holdfast retry {first.id} ")


def test_a_job_that_waits_for_a_deleted_one(app: Holdfast, sql: Sql, found: Any) -> None:
    work = app.task(name="known")(lambda: None)
    first = work.enqueue()
    waits = work.using(after=first).enqueue()
    sql("DELETE FROM holdfast_jobs WHERE id = ?", (first.id,))
    sql("DELETE FROM holdfast_endings")
    one = found("BLOCKED_BY_DELETED", "warning")
    assert one.fix is not None and one.fix.startswith(f"holdfast cancel {waits.id} ")


def test_a_due_job_that_stays_scheduled(app: Holdfast, clock: FakeClock, found: Any) -> None:
    app.task(name="known")(lambda: None).using(delay=10).enqueue()
    clock.advance(60)
    assert "LATE_JOBS" not in problems(app)
    clock.advance(60)
    assert "still scheduled: 1 job (1)." in found("LATE_JOBS", "warning").meaning


# --- workers --------------------------------------------------------------------------------------


def test_ready_jobs_without_any_worker(app: Holdfast, found: Any) -> None:
    app.task(name="known")(lambda: None).enqueue_many([{}, {}])
    one = found("NO_WORKERS", "warning")
    assert one.meaning == "Ready, and no worker is running: 2 jobs." and one.fix == "holdfast worker module:app"


def test_messages_need_no_worker(app: Holdfast) -> None:
    app.queue("inbox").send(1)
    assert problems(app) == set()


def test_a_task_that_no_live_worker_has(app: Holdfast, found: Any, enlist: Any) -> None:
    enlist()
    app.task(name="known")(lambda: None).enqueue()
    assert found("READY_JOBS", "ok")
    app.task(name="renamed")(lambda: None).enqueue()
    one = found("UNKNOWN_TASKS", "warning")
    assert one.detail == {"waiting": [{"queue": "default", "task": "renamed", "count": 1}]}
    assert "no running worker has the task: 1 job of renamed." in one.meaning


def test_a_queue_that_no_worker_with_the_task_serves(app: Holdfast, found: Any, enlist: Any) -> None:
    enlist(queues=("mail",))
    app.task(name="known", queue="slow")(lambda: None).enqueue()
    one = found("UNSERVED_QUEUES", "warning")
    assert one.fix == "holdfast worker module:app --queues slow"


def test_a_dead_worker_and_the_jobs_it_held(open_app: Callable[..., Holdfast], url: str) -> None:
    app = open_app()
    job = app.task(name="known")(lambda: None).enqueue()
    with bystander(worker(url, claims=1)) as process:
        assert app.check().of("DEAD_WORKERS") is None
        process.kill()
        process.wait()
        one = app.check().of("DEAD_WORKERS")
        assert one is not None and one.severity == "warning" and one.detail["jobs"] == 1
        assert f"process {process.pid} on" in one.meaning and "still hold 1 job." in one.meaning
        assert "Recovered 1 job that no live worker held." in app.check(repair=True).repaired
    assert app.check().of("DEAD_WORKERS") is None and job.refresh().status == "ready"


def test_a_worker_that_was_stopped_by_a_signal(open_app: Callable[..., Holdfast], url: str) -> None:
    app = open_app()
    with bystander(worker(url)) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        one = app.check().of("SUSPENDED_WORKERS")
        assert one is not None and one.severity == "warning" and one.fix == f"kill -CONT {process.pid}"


def test_a_worker_without_a_heartbeat(app: Holdfast, clock: FakeClock, found: Any, enlist: Any) -> None:
    enlist()
    clock.advance(170)
    assert "SILENT_WORKERS" not in problems(app)
    clock.advance(20)
    assert "without a heartbeat for up to 3m 10s" in found("SILENT_WORKERS", "warning").meaning


# --- queues ---------------------------------------------------------------------------------------


def test_a_queue_that_has_been_paused_for_long(app: Holdfast, clock: FakeClock, found: Any) -> None:
    app.queue("mail").pause()
    app.queue("mail").send(1)
    assert found("PAUSED_QUEUE", "note").meaning == "Paused queues: mail."
    clock.advance(2 * DAY)
    one = found("PAUSED_QUEUE", "warning")
    assert "mail has been paused for 2d" in one.meaning
    assert one.fix is not None and one.fix.startswith("holdfast queues resume mail ")


def test_a_queue_that_is_paused_and_empty_is_a_note(app: Holdfast, clock: FakeClock, found: Any) -> None:
    app.queue("mail").pause()
    clock.advance(30 * DAY)
    assert found("PAUSED_QUEUE", "note")


# --- times ----------------------------------------------------------------------------------------


def test_a_job_that_was_created_in_the_future(app: Holdfast, clock: FakeClock, found: Any) -> None:
    app.queue("inbox").send(1)
    clock.step(-3600)
    assert "Created in the future: 1 job (1)." in found("CREATED_IN_FUTURE", "warning").meaning


@pytest.mark.parametrize(
    ("moment", "code"), [("finished_at + 3600000000", "ENDED_IN_FUTURE"), ("NULL", "ENDED_WITHOUT_TIME")]
)
def test_a_job_that_finished_in_the_future_or_without_a_time(
    app: Holdfast, sql: Sql, found: Any, claim: Claim, clock: FakeClock, moment: str, code: str
) -> None:
    """It would be pruned too late, or never."""
    job = app.task(name="known")(lambda: None).enqueue()
    succeed(app.store, claim().lease)
    sql(f"UPDATE holdfast_jobs SET finished_at = {moment}")  # noqa: S608
    one = found(code, "warning")
    assert one.detail == {"jobs": 1, "ids": (job.id,)} and one.fix is not None and "--repair" in one.fix
    assert "Set the finish time of 1 job to now." in app.check(repair=True).repaired
    assert app.check().of(code) is None
    assert app.jobs.get(job.id).finished_at == as_datetime(clock.now())


def test_a_heartbeat_in_the_future(app: Holdfast, clock: FakeClock, found: Any, enlist: Any) -> None:
    enlist()
    clock.step(-3600)
    assert "1h in the future" in found("HEARTBEAT_IN_FUTURE", "warning").meaning


def test_events_that_go_back_in_time(app: Holdfast, clock: FakeClock, found: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send_many([1, 2])
    inbox.receive()
    clock.step(-600)
    inbox.receive()
    assert found("CLOCK_STEPPED_BACK", "note").detail == {"steps": 1, "largest_seconds": 600.0}


def test_a_job_that_is_scheduled_decades_ahead(app: Holdfast, found: Any) -> None:
    app.task(name="known")(lambda: None).using(delay=20 * 365 * DAY).enqueue()
    assert "more than ten years from now" in found("FAR_IN_FUTURE", "note").meaning


def test_times_in_seconds_by_plain_sql(app: Holdfast, sql: Sql, found: Any) -> None:
    sql("INSERT INTO holdfast_jobs (task, run_at, created_at) VALUES ('known', 1700000000, 1700000000)")
    assert "microseconds" in found("TIMES_IN_WRONG_UNIT", "warning").meaning
