"""Workers as processes: killed, stopped, hogged, locked out, and told to end."""

import os
import signal
import sqlite3
import time

import pytest
from worker_processes import Processes

from holdfast.clock import SECOND
from support.running_worker import PATIENCE_SECONDS, attempts, eventually, left, outcomes

LONG = 10 * PATIENCE_SECONDS
SHORT = 2
"""Leases, in seconds. Two thirds of it is how long a worker may take to begin what it has claimed."""
LOCKLESS = 5
"""Where the lease alone says who is alive, it must be renewed within this time."""

# --- killed ---------------------------------------------------------------------------------------


def test_the_job_of_a_worker_that_is_killed_runs_elsewhere_before_its_lease_ends(processes: Processes) -> None:
    """The lease is longer than the test waits for anything: so it is seen by the lock."""
    first = processes.start(lease=LONG)
    job = processes.hold()
    processes.begins(job)
    processes.start()
    processes.crew.kill(first)
    processes.begins(job, times=2)
    processes.gate.touch()
    assert processes.ends(job).result == "attempt 2"
    lost, won = attempts(processes.app, job.id)
    assert (lost.name, lost.detail["error_code"], won.name) == ("lost", "INTERNAL:WORKER_LOST", "succeeded")
    assert {one.record.ending for one in processes.app.store.workers.list()} == {"lost", None}


def test_the_job_of_a_worker_that_is_killed_runs_elsewhere_while_all_others_are_busy(
    processes: Processes,
) -> None:
    first = processes.start(concurrency=1)
    job = processes.hold()
    processes.begins(job)
    processes.start(concurrency=1)
    other = processes.hold()
    processes.begins(other)
    processes.crew.kill(first)
    eventually(lambda: job.refresh().status == "ready")
    assert job.error_code == "INTERNAL:WORKER_LOST"


def test_a_job_whose_last_attempt_was_killed_fails(processes: Processes) -> None:
    first = processes.start()
    job = processes.hold(max_attempts=1)
    processes.begins(job)
    processes.start()
    processes.crew.kill(first)
    assert processes.ends(job, "failed").error_code == "INTERNAL:WORKER_LOST"
    assert outcomes(processes.app, job.id) == ["lost"]
    assert len(processes.noted("begin", job)) == 1


def test_a_single_worker_that_was_killed_takes_its_jobs_up_when_it_starts_again(processes: Processes) -> None:
    first = processes.start(lease=LONG)
    job = processes.hold()
    processes.begins(job)
    processes.crew.kill(first)
    processes.start()
    processes.begins(job, times=2)
    processes.gate.touch()
    assert processes.ends(job).result == "attempt 2"
    assert outcomes(processes.app, job.id) == ["lost", "succeeded"]


def test_what_was_taken_by_a_killed_worker_and_not_begun_is_not_lost(processes: Processes) -> None:
    with processes.app.transaction() as tx:
        for _ in range(300):
            tx.execute("INSERT INTO holdfast_jobs (task) VALUES ('quick')")
    first = processes.start(concurrency=1)
    eventually(lambda: processes.app.jobs.count(status="succeeded") == 300)
    jobs = [processes.hold("hold_first") for _ in range(5)]
    processes.begins(jobs[0])
    processes.crew.kill(first)
    processes.start(concurrency=5)
    for job in jobs[:1]:
        processes.begins(job, times=2)
    processes.gate.touch()
    for job in jobs:
        processes.ends(job)


def test_g7_a_job_that_ends_its_process_fails_when_its_attempts_are_spent(processes: Processes) -> None:
    job = processes.enqueue("die", '{"code": 7}', max_attempts=3)
    for _ in range(3):
        worker = processes.crew.start("many_tasks_worker")
        assert processes.wait_for_end(worker) == 7
        worker.ended = True
    processes.start()
    assert processes.ends(job, "failed").attempt == 3
    assert job.error_code == "INTERNAL:WORKER_LOST"
    assert outcomes(processes.app, job.id) == ["lost"] * 3


def test_a_child_that_outlives_a_killed_worker_does_not_pass_for_it(processes: Processes) -> None:
    first = processes.start()
    job = processes.hold("leave_an_orphan")
    eventually(lambda: processes.noted("orphan", job))
    processes.crew.kill(first)
    processes.start()
    processes.ends(job)
    assert outcomes(processes.app, job.id) == ["lost", "succeeded"]
    processes.gate.touch()  # the orphan may go


def test_a_worker_lives_through_handlers_that_fork(processes: Processes) -> None:
    worker = processes.start(lease=SHORT)
    other = processes.hold()
    processes.begins(other)
    jobs = [processes.enqueue("fork", '{"times": 3}') for _ in range(3)]
    for job in jobs:
        assert processes.ends(job).result == [0, 0, 0]
    processes.start(lease=SHORT)
    processes.ends(processes.enqueue("quick"))
    processes.gate.touch()
    processes.ends(other)
    assert len(processes.noted("begin", other)) == 1
    assert worker.process.poll() is None


# --- stopped, and hogged --------------------------------------------------------------------------


def test_a_worker_that_is_stopped_past_its_lease_and_goes_on_is_fenced(processes: Processes) -> None:
    first = processes.start(lease=SHORT)
    job = processes.hold("hold_first")
    processes.holds(job)
    processes.stop(first)
    try:
        processes.start(lease=SHORT)
        second = processes.ends(job).result
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    processes.gate.touch()
    eventually(lambda: len(processes.noted("end", job)) == 2, "the first attempt did not come to its end")
    after = processes.enqueue("quick", '{"n": 5}')
    processes.ends(after)
    os.kill(first.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(first) == 0
    job.refresh()
    assert (job.status, job.result, len(processes.noted("begin", job))) == ("succeeded", second, 2)
    assert outcomes(processes.app, job.id) == ["recovered", "succeeded"]
    (report,) = processes.lines(first, "report")
    assert "lost=1" in report, report


def test_a_worker_that_is_stopped_and_goes_on_works_on(processes: Processes) -> None:
    worker = processes.start(lease=1)
    processes.ends(processes.enqueue("quick"))
    processes.stop(worker)
    job = processes.enqueue("quick", '{"n": 3}')
    other = processes.hold()
    os.kill(worker.process.pid, signal.SIGCONT)
    assert processes.ends(job).result == 3
    processes.begins(other)
    processes.gate.touch()
    processes.ends(other)


def test_a_handler_that_hogs_the_interpreter_past_its_lease_is_not_run_twice(processes: Processes) -> None:
    first = processes.start(lease=SHORT)
    job = processes.enqueue("hog", f'{{"seconds": {SHORT + 0.3}}}')
    processes.begins(job)
    second = processes.start(lease=SHORT)
    assert processes.ends(job).result > SHORT, "it did not last past the lease"
    assert len(processes.noted("begin", job)) == 1
    assert first.process.poll() is second.process.poll() is None


def test_a_database_that_is_locked_past_the_lease_runs_nothing_twice(processes: Processes) -> None:
    """No worker can renew its lease meanwhile. The first one after that must not take the others for dead."""
    for _ in range(3):
        processes.start(lease=SHORT, concurrency=3)
    jobs = [processes.hold() for _ in range(6)]
    for job in jobs:
        processes.begins(job)
    connection = sqlite3.connect(processes.database, isolation_level=None, timeout=PATIENCE_SECONDS)
    for seconds in (1.5 * SHORT, 2.2 * SHORT):
        connection.execute("BEGIN IMMEDIATE")
        until = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > until)  # noqa: B023
        connection.execute("COMMIT")
        renewed = processes.app.clock.boot_now()
        eventually(lambda: min(processes.leases()) > renewed, "the leases were not renewed")  # noqa: B023
    connection.close()
    processes.gate.touch()
    for job in jobs:
        processes.ends(job)
    assert [len(processes.noted("begin", job)) for job in jobs] == [1] * 6


# --- told to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_worker_finish(processes: Processes, number: signal.Signals) -> None:
    worker = processes.start(concurrency=1)
    job = processes.hold()
    processes.begins(job)
    os.kill(worker.process.pid, number)
    eventually(lambda: processes.lines(worker, "stopping"), "it did not hear the signal")
    later = processes.enqueue("quick")
    processes.gate.touch()
    assert processes.wait_for_end(worker) == 0
    assert job.refresh().result == "attempt 1"
    assert later.refresh().attempt == 0
    assert {one.record.ending for one in processes.app.store.workers.list()} == {"stopped"}


@pytest.mark.parametrize("task", ["hold", "hold_later", "hold_in_pool"])
def test_a_second_signal_interrupts_what_runs(processes: Processes, task: str) -> None:
    worker = processes.start(pool=1)
    job = processes.hold(task)
    processes.begins(job)
    os.kill(worker.process.pid, signal.SIGTERM)
    os.kill(worker.process.pid, signal.SIGINT)  # another one: the kernel makes one of two that are the same
    assert processes.wait_for_end(worker) == 0
    assert (job.refresh().status, left(processes.app, job.id)) == ("ready", 5)
    assert outcomes(processes.app, job.id) == ["interrupted"]
    assert processes.noted("end", job) == []


def test_the_end_of_the_grace_interrupts_what_runs(processes: Processes) -> None:
    worker = processes.start(grace=0.2)
    jobs = [processes.hold(task) for task in ("hold", "hold_later", "hold_in_pool")]
    for job in jobs:
        processes.begins(job)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert processes.wait_for_end(worker) == 0
    for job in jobs:
        assert (job.refresh().status, left(processes.app, job.id)) == ("ready", 5)


# --- waking up ------------------------------------------------------------------------------------


def test_an_idle_worker_is_woken_by_what_another_program_inserts(processes: Processes) -> None:
    processes.start(polls=0)
    for _ in range(8):
        processes.ends(processes.enqueue("quick"))


def test_an_idle_worker_begins_a_scheduled_job_when_it_is_due(processes: Processes) -> None:
    processes.start(polls=0)
    processes.ends(processes.enqueue("quick"))
    for _ in range(3):
        due = time.time() + 0.4
        ended = processes.ends(processes.enqueue("quick", run_at=round(due * 1e6)))
        assert ended.started_at is not None
        assert ended.started_at.timestamp() >= due - 0.001


# --- files ----------------------------------------------------------------------------------------


def test_workers_whose_lock_file_was_removed_are_not_taken_for_dead(processes: Processes) -> None:
    for lease in processes.longer_and_longer(LOCKLESS):
        workers = [processes.start(lease=lease)]
        job = processes.hold()
        processes.begins(job)
        os.unlink(f"{processes.database}-workers")
        workers.append(processes.start(lease=lease))
        other = processes.hold("hold_later")
        processes.begins(other)
        workers.append(processes.start(lease=lease))
        later = processes.app.clock.boot_now() + round(2 * lease * SECOND)
        eventually(lambda later=later: min(processes.leases()) > later, "the leases were not renewed")
        assert [worker.process.poll() for worker in workers] == [None] * 3
        if len(processes.noted("begin", job)) == len(processes.noted("begin", other)) == 1:
            break
        for worker in workers:
            processes.crew.kill(worker)
        processes.app.jobs.cancel(status="running")
    processes.gate.touch()
    for one in (job, other):
        processes.ends(one)
        assert len(processes.noted("begin", one)) == 1


def test_a_job_of_a_dead_worker_whose_lock_file_was_removed_is_recovered_by_its_lease(
    processes: Processes,
) -> None:
    first = processes.start(lease=SHORT)
    job = processes.hold("hold_first")
    processes.holds(job)
    os.unlink(f"{processes.database}-workers")
    processes.crew.kill(first)
    processes.start(lease=SHORT)
    processes.ends(job)
    assert len(processes.noted("begin", job)) == 2
