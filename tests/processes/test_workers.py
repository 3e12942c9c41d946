"""Workers as processes: killed, stopped, hogged, locked out, and told to end."""

import os
import signal
import sqlite3
import time

import pytest
from yard import Yard

from holdfast.clock import SECOND
from support.running_worker import PATIENCE_SECONDS, attempts, eventually, left, outcomes

LONG = 10 * PATIENCE_SECONDS
SHORT = 2
"""Leases, in seconds. Two thirds of it is how long a worker may take to begin what it has claimed."""
LOCKLESS = 5
"""Where the lease alone says who is alive, it must be renewed within this time."""

# --- killed ---------------------------------------------------------------------------------------


def test_the_job_of_a_worker_that_is_killed_runs_elsewhere_before_its_lease_ends(yard: Yard) -> None:
    """The lease is longer than the test waits for anything: so it is seen by the lock."""
    first = yard.start(lease=LONG)
    job = yard.hold()
    yard.begins(job)
    yard.start()
    yard.crew.kill(first)
    yard.begins(job, times=2)
    yard.gate.touch()
    assert yard.ends(job).result == "attempt 2"
    lost, won = attempts(yard.app, job.id)
    assert (lost.name, lost.detail["error_code"], won.name) == ("lost", "INTERNAL:WORKER_LOST", "succeeded")
    assert {one.record.ending for one in yard.app.store.workers.list()} == {"lost", None}


def test_the_job_of_a_worker_that_is_killed_runs_elsewhere_while_all_others_are_busy(yard: Yard) -> None:
    first = yard.start(concurrency=1)
    job = yard.hold()
    yard.begins(job)
    yard.start(concurrency=1)
    other = yard.hold()
    yard.begins(other)
    yard.crew.kill(first)
    eventually(lambda: job.refresh().status == "ready")
    assert job.error_code == "INTERNAL:WORKER_LOST"


def test_a_job_whose_last_attempt_was_killed_fails(yard: Yard) -> None:
    first = yard.start()
    job = yard.hold(max_attempts=1)
    yard.begins(job)
    yard.start()
    yard.crew.kill(first)
    assert yard.ends(job, "failed").error_code == "INTERNAL:WORKER_LOST"
    assert outcomes(yard.app, job.id) == ["lost"]
    assert len(yard.noted("begin", job)) == 1


def test_a_single_worker_that_was_killed_takes_its_jobs_up_when_it_starts_again(yard: Yard) -> None:
    first = yard.start(lease=LONG)
    job = yard.hold()
    yard.begins(job)
    yard.crew.kill(first)
    yard.start()
    yard.begins(job, times=2)
    yard.gate.touch()
    assert yard.ends(job).result == "attempt 2"
    assert outcomes(yard.app, job.id) == ["lost", "succeeded"]


def test_what_was_taken_by_a_killed_worker_and_not_begun_is_not_lost(yard: Yard) -> None:
    with yard.app.transaction() as tx:
        for _ in range(300):
            tx.execute("INSERT INTO holdfast_jobs (task) VALUES ('quick')")
    first = yard.start(concurrency=1)
    eventually(lambda: yard.app.jobs.count(status="succeeded") == 300)
    jobs = [yard.hold("hold_first") for _ in range(5)]
    yard.begins(jobs[0])
    yard.crew.kill(first)
    yard.start(concurrency=5)
    for job in jobs[:1]:
        yard.begins(job, times=2)
    yard.gate.touch()
    for job in jobs:
        yard.ends(job)


def test_g7_a_job_that_ends_its_process_fails_when_its_attempts_are_spent(yard: Yard) -> None:
    job = yard.enqueue("die", '{"code": 7}', max_attempts=3)
    for _ in range(3):
        worker = yard.crew.start("laborer")
        assert yard.wait_for_end(worker) == 7
        worker.ended = True
    yard.start()
    assert yard.ends(job, "failed").attempt == 3
    assert job.error_code == "INTERNAL:WORKER_LOST"
    assert outcomes(yard.app, job.id) == ["lost"] * 3


def test_a_child_that_outlives_a_killed_worker_does_not_pass_for_it(yard: Yard) -> None:
    first = yard.start()
    job = yard.hold("leave_an_orphan")
    eventually(lambda: yard.noted("orphan", job))
    yard.crew.kill(first)
    yard.start()
    yard.ends(job)
    assert outcomes(yard.app, job.id) == ["lost", "succeeded"]
    yard.gate.touch()  # the orphan may go


def test_a_worker_lives_through_handlers_that_fork(yard: Yard) -> None:
    worker = yard.start(lease=SHORT)
    other = yard.hold()
    yard.begins(other)
    jobs = [yard.enqueue("fork", '{"times": 3}') for _ in range(3)]
    for job in jobs:
        assert yard.ends(job).result == [0, 0, 0]
    yard.start(lease=SHORT)
    yard.ends(yard.enqueue("quick"))
    yard.gate.touch()
    yard.ends(other)
    assert len(yard.noted("begin", other)) == 1
    assert worker.process.poll() is None


# --- stopped, and hogged --------------------------------------------------------------------------


def test_a_worker_that_is_stopped_past_its_lease_and_goes_on_is_fenced(yard: Yard) -> None:
    first = yard.start(lease=SHORT)
    job = yard.hold("hold_first")
    yard.holds(job)
    yard.stop(first)
    try:
        yard.start(lease=SHORT)
        second = yard.ends(job).result
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    yard.gate.touch()
    eventually(lambda: len(yard.noted("end", job)) == 2, "the first attempt did not come to its end")
    after = yard.enqueue("quick", '{"n": 5}')
    yard.ends(after)
    os.kill(first.process.pid, signal.SIGTERM)
    assert yard.wait_for_end(first) == 0
    job.refresh()
    assert (job.status, job.result, len(yard.noted("begin", job))) == ("succeeded", second, 2)
    assert outcomes(yard.app, job.id) == ["recovered", "succeeded"]
    (report,) = yard.lines(first, "report")
    assert "lost=1" in report, report


def test_a_worker_that_is_stopped_and_goes_on_works_on(yard: Yard) -> None:
    worker = yard.start(lease=1)
    yard.ends(yard.enqueue("quick"))
    yard.stop(worker)
    job = yard.enqueue("quick", '{"n": 3}')
    other = yard.hold()
    os.kill(worker.process.pid, signal.SIGCONT)
    assert yard.ends(job).result == 3
    yard.begins(other)
    yard.gate.touch()
    yard.ends(other)


def test_a_handler_that_hogs_the_interpreter_past_its_lease_is_not_run_twice(yard: Yard) -> None:
    first = yard.start(lease=SHORT)
    job = yard.enqueue("hog", f'{{"seconds": {SHORT + 0.3}}}')
    yard.begins(job)
    second = yard.start(lease=SHORT)
    assert yard.ends(job).result > SHORT, "it did not last past the lease"
    assert len(yard.noted("begin", job)) == 1
    assert first.process.poll() is second.process.poll() is None


def test_a_database_that_is_locked_past_the_lease_runs_nothing_twice(yard: Yard) -> None:
    """No worker can renew its lease meanwhile. The first one after that must not take the others for dead."""
    for _ in range(3):
        yard.start(lease=SHORT, concurrency=3)
    jobs = [yard.hold() for _ in range(6)]
    for job in jobs:
        yard.begins(job)
    connection = sqlite3.connect(yard.database, isolation_level=None, timeout=PATIENCE_SECONDS)
    for seconds in (1.5 * SHORT, 2.2 * SHORT):
        connection.execute("BEGIN IMMEDIATE")
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > until)  # noqa: B023
        connection.execute("COMMIT")
        renewed = yard.app.clock.boot_now()
        eventually(lambda: min(yard.leases()) > renewed, "the leases were not renewed")  # noqa: B023
    connection.close()
    yard.gate.touch()
    for job in jobs:
        yard.ends(job)
    assert [len(yard.noted("begin", job)) for job in jobs] == [1] * 6


# --- told to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_worker_finish(yard: Yard, number: signal.Signals) -> None:
    worker = yard.start(concurrency=1)
    job = yard.hold()
    yard.begins(job)
    os.kill(worker.process.pid, number)
    eventually(lambda: yard.lines(worker, "stopping"), "it did not hear the signal")
    later = yard.enqueue("quick")
    yard.gate.touch()
    assert yard.wait_for_end(worker) == 0
    assert job.refresh().result == "attempt 1"
    assert later.refresh().attempt == 0
    assert {one.record.ending for one in yard.app.store.workers.list()} == {"stopped"}


@pytest.mark.parametrize("task", ["hold", "hold_later", "hold_in_pool"])
def test_a_second_signal_interrupts_what_runs(yard: Yard, task: str) -> None:
    worker = yard.start(pool=1)
    job = yard.hold(task)
    yard.begins(job)
    os.kill(worker.process.pid, signal.SIGTERM)
    os.kill(worker.process.pid, signal.SIGINT)  # another one: the kernel makes one of two that are the same
    assert yard.wait_for_end(worker) == 0
    assert (job.refresh().status, left(yard.app, job.id)) == ("ready", 5)
    assert outcomes(yard.app, job.id) == ["interrupted"]
    assert yard.noted("end", job) == []


def test_the_end_of_the_grace_interrupts_what_runs(yard: Yard) -> None:
    worker = yard.start(grace=0.2)
    jobs = [yard.hold(task) for task in ("hold", "hold_later", "hold_in_pool")]
    for job in jobs:
        yard.begins(job)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert yard.wait_for_end(worker) == 0
    for job in jobs:
        assert (job.refresh().status, left(yard.app, job.id)) == ("ready", 5)


# --- waking up ------------------------------------------------------------------------------------


def test_an_idle_worker_is_woken_by_what_another_program_inserts(yard: Yard) -> None:
    yard.start(polls=0)
    for _ in range(8):
        yard.ends(yard.enqueue("quick"))


def test_an_idle_worker_begins_a_scheduled_job_when_it_is_due(yard: Yard) -> None:
    yard.start(polls=0)
    yard.ends(yard.enqueue("quick"))
    for _ in range(3):
        due = time.time() + 0.4
        ended = yard.ends(yard.enqueue("quick", run_at=round(due * 1e6)))
        assert ended.started_at is not None
        assert ended.started_at.timestamp() >= due - 0.001


# --- files ----------------------------------------------------------------------------------------


def test_workers_whose_lock_file_was_removed_are_not_taken_for_dead(yard: Yard) -> None:
    for lease in yard.longer_and_longer(LOCKLESS):
        workers = [yard.start(lease=lease)]
        job = yard.hold()
        yard.begins(job)
        os.unlink(f"{yard.database}-workers")
        workers.append(yard.start(lease=lease))
        other = yard.hold("hold_later")
        yard.begins(other)
        workers.append(yard.start(lease=lease))
        later = yard.app.clock.boot_now() + round(2 * lease * SECOND)
        eventually(lambda later=later: min(yard.leases()) > later, "the leases were not renewed")
        assert [worker.process.poll() for worker in workers] == [None] * 3
        if len(yard.noted("begin", job)) == len(yard.noted("begin", other)) == 1:
            break
        for worker in workers:
            yard.crew.kill(worker)
        yard.app.jobs.cancel(status="running")
    yard.gate.touch()
    for one in (job, other):
        yard.ends(one)
        assert len(yard.noted("begin", one)) == 1


def test_a_job_of_a_dead_worker_whose_lock_file_was_removed_is_recovered_by_its_lease(yard: Yard) -> None:
    first = yard.start(lease=SHORT)
    job = yard.hold("hold_first")
    yard.holds(job)
    os.unlink(f"{yard.database}-workers")
    yard.crew.kill(first)
    yard.start(lease=SHORT)
    yard.ends(job)
    assert len(yard.noted("begin", job)) == 2
