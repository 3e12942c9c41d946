"""Tasks with pool="process": what becomes of the processes that run them."""

import os
import signal
from pathlib import Path

from yard import Yard

from holdfast.clock import SECOND
from support.running_worker import eventually


def is_gone(pid: str) -> bool:
    """Or has ended, and waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_task_in_a_process_has_its_arguments_result_and_errors(yard: Yard) -> None:
    yard.start(pool=2)
    plain = yard.enqueue("print_args", '{"text": "é\\u0000", "number": 4}')
    default = yard.enqueue("print_args", '{"text": "x"}')
    bad = yard.enqueue("print_args", '{"text": 7}')
    failing = yard.enqueue("fail_in_pool", max_attempts=1)
    assert yard.ends(plain).result == ["é\0", 4]
    assert yard.ends(default).result == ["x", 3]
    assert yard.ends(bad, "failed").error_code == "INVALID_INPUT:PAYLOAD"
    assert yard.ends(failing, "failed").error_code == "DEPENDENCY:CONNECTION"
    assert failing.error_detail == "ConnectionError: no line"
    pids = {line[4] for job in (plain, default, failing) for line in yard.noted("begin", job)}
    assert str(yard.crew.members[0].process.pid) not in pids, "middleware runs with the handler, in its process"
    assert len(yard.noted("raised", failing)) == 1


def test_a_process_that_dies_takes_its_job_with_it_and_nothing_else(yard: Yard) -> None:
    worker = yard.start(pool=1)
    job = yard.enqueue("die_in_pool", '{"code": 9}', max_attempts=1)
    assert yard.ends(job, "failed").error_code == "INTERNAL:PROCESS_DIED"
    assert "9" in (job.error_detail or "")
    assert yard.ends(yard.enqueue("pid_in_pool")).result != worker.process.pid
    assert worker.process.poll() is None


def test_a_process_that_takes_too_much_memory_is_killed(yard: Yard) -> None:
    worker = yard.start(pool=1, max_memory=300_000_000)
    job = yard.enqueue("eat", max_attempts=1)
    assert yard.ends(job, "failed").error_code == "RESOURCE:MEMORY"
    yard.ends(yard.enqueue("pid_in_pool"))
    assert worker.process.poll() is None


def test_a_process_is_replaced_after_so_many_jobs(yard: Yard) -> None:
    yard.start(pool=1, max_jobs=2)
    jobs = [yard.enqueue("pid_in_pool") for _ in range(6)]
    pids = [yard.ends(job).result for job in jobs]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_a_process_that_runs_out_of_time_is_killed(yard: Yard) -> None:
    yard.start(pool=1)
    for seconds in yard.longer_and_longer():
        job = yard.hold("hold_in_pool", timeout=round(seconds * SECOND), max_attempts=1)
        assert yard.ends(job, "failed").error_code == "TIMEOUT:HANDLER"
        if begun := yard.noted("begin", job):
            break
    eventually(lambda: is_gone(begun[0][4]), "it lives on")
    yard.ends(yard.enqueue("pid_in_pool"))


def test_the_time_a_process_needs_to_start_is_not_the_handlers(yard: Yard) -> None:
    for seconds in yard.longer_and_longer():
        worker = yard.start(pool=1, SLOW_START_SECONDS=seconds + 1)
        job = yard.enqueue("pid_in_pool", timeout=round(seconds * SECOND), max_attempts=1)
        eventually(lambda job=job: job.refresh().status in ("succeeded", "failed"))
        if job.status == "succeeded":
            break
        yard.crew.kill(worker)


def test_an_attempt_whose_lease_ended_while_its_process_started_does_not_start(yard: Yard) -> None:
    """The worker is stopped while it waits for the process. Meanwhile another one takes the job."""
    stopped = yard.start(pool=1, lease=1, SLOW_START_SECONDS=2)
    job = yard.enqueue("pid_in_pool")
    ((_, child),) = eventually(lambda: yard.lines(stopped, "starting"))
    yard.stop(stopped)
    other = yard.start(pool=1)
    assert yard.ends(job).attempt == 2
    yard.crew.kill(other)
    eventually(lambda: is_asleep(child), "the process that the worker has waited for is ready")
    os.kill(stopped.process.pid, signal.SIGCONT)
    yard.ends(yard.enqueue("pid_in_pool"))
    assert [line[3] for line in yard.noted("begin", job)] == ["2"]


def is_asleep(pid: str) -> bool:
    """Whether all threads of the process wait, the one included that receives attempts."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return len(states) > 1 and set(states) == {"S"}


def test_a_cancel_kills_the_process_of_the_job(yard: Yard) -> None:
    yard.start(pool=1)
    job = yard.hold("hold_in_pool")
    (begun,) = yard.begins(job)
    eventually(lambda: job.refresh().progress == 0.5, "progress came through")
    assert job.progress_text == "waiting"
    yard.app.jobs.cancel(job.id)
    eventually(lambda: is_gone(begun[4]), "it lives on")
    yard.ends(yard.enqueue("pid_in_pool"))
    assert job.refresh().status == "cancelled"


def test_processes_are_served_while_all_threads_are_busy(yard: Yard) -> None:
    yard.start(concurrency=1, pool=1)
    job = yard.hold()
    yard.begins(job)
    yard.ends(yard.enqueue("pid_in_pool"))
    assert job.refresh().status == "running"
    yard.ends(yard.enqueue("pid_in_pool"))


def test_processes_end_with_their_worker_however_it_ends(yard: Yard) -> None:
    worker = yard.start(pool=1)
    job = yard.hold("hold_in_pool")
    (begun,) = yard.begins(job)
    yard.crew.kill(worker)
    eventually(lambda: is_gone(begun[4]), "it lives on")
