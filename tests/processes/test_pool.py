"""Tasks with pool="process": what becomes of the processes that run them."""

import os
import signal
from pathlib import Path
from typing import Any

from worker_processes import Processes

from holdfast.clock import SECOND
from support.running_worker import eventually


def is_gone(pid: str) -> bool:
    """Or has ended, and waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_task_in_a_process_has_its_arguments_result_and_errors(processes: Processes) -> None:
    processes.start(pool=2)
    plain = processes.enqueue("print_args", '{"text": "é\\u0000", "number": 4}')
    default = processes.enqueue("print_args", '{"text": "x"}')
    bad = processes.enqueue("print_args", "no JSON")
    unfit = processes.enqueue("print_args", '{"text": 7}')
    failing = processes.enqueue("fail_in_pool", max_attempts=1)
    assert processes.ends(plain).result == ["é\0", 4]
    assert processes.ends(default).result == ["x", 3]
    assert processes.ends(bad, "failed").error_code == "INVALID_INPUT:PAYLOAD"

    def events() -> list[Any]:
        return [one for one in processes.app.jobs.history(unfit.id) if one.kind == "event"]

    returned = eventually(lambda: [one for one in events() if one.name == "returned"])
    assert "str" in returned[0].detail["reason"], "it is left to newer code"
    assert processes.ends(failing, "failed").error_code == "DEPENDENCY:CONNECTION"
    assert failing.error_detail == "ConnectionError: no line"
    pids = {line[4] for job in (plain, default, failing) for line in processes.noted("begin", job)}
    assert str(processes.crew.members[0].process.pid) not in pids, "middleware runs with the handler, in its process"
    assert len(processes.noted("raised", failing)) == 1


def test_a_process_that_dies_takes_its_job_with_it_and_nothing_else(processes: Processes) -> None:
    worker = processes.start(pool=1)
    job = processes.enqueue("die_in_pool", '{"code": 9}', max_attempts=1)
    assert processes.ends(job, "failed").error_code == "INTERNAL:PROCESS_DIED"
    assert "9" in (job.error_detail or "")
    assert processes.ends(processes.enqueue("pid_in_pool")).result != worker.process.pid
    assert worker.process.poll() is None


def test_a_process_that_takes_too_much_memory_is_killed(processes: Processes) -> None:
    worker = processes.start(pool=1, max_memory=300_000_000)
    job = processes.enqueue("eat", max_attempts=1)
    assert processes.ends(job, "failed").error_code == "RESOURCE:MEMORY"
    processes.ends(processes.enqueue("pid_in_pool"))
    assert worker.process.poll() is None


def test_a_process_is_replaced_after_so_many_jobs(processes: Processes) -> None:
    processes.start(pool=1, max_jobs=2)
    jobs = [processes.enqueue("pid_in_pool") for _ in range(6)]
    pids = [processes.ends(job).result for job in jobs]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_a_process_that_runs_out_of_time_is_killed(processes: Processes) -> None:
    processes.start(pool=1)
    for seconds in processes.longer_and_longer():
        job = processes.hold("hold_in_pool", timeout=round(seconds * SECOND), max_attempts=1)
        assert processes.ends(job, "failed").error_code == "TIMEOUT:HANDLER"
        if begun := processes.noted("begin", job):
            break
    eventually(lambda: is_gone(begun[0][4]), "it lives on")
    processes.ends(processes.enqueue("pid_in_pool"))


def test_the_time_a_process_needs_to_start_is_not_the_handlers(processes: Processes) -> None:
    for seconds in processes.longer_and_longer():
        worker = processes.start(pool=1, SLOW_START_SECONDS=seconds + 1)
        job = processes.enqueue("pid_in_pool", timeout=round(seconds * SECOND), max_attempts=1)
        eventually(lambda job=job: job.refresh().status in ("succeeded", "failed"))
        if job.status == "succeeded":
            break
        processes.crew.kill(worker)


def test_an_attempt_whose_lease_ended_while_its_process_started_does_not_start(processes: Processes) -> None:
    """The worker is stopped while it waits for the process. Meanwhile another one takes the job."""
    stopped = processes.start(pool=1, lease=1, SLOW_START_SECONDS=2)
    job = processes.enqueue("pid_in_pool")
    ((_, child),) = eventually(lambda: processes.lines(stopped, "starting"))
    processes.stop(stopped)
    other = processes.start(pool=1)
    assert processes.ends(job).attempt == 2
    processes.crew.kill(other)
    eventually(lambda: is_asleep(child), "the process that the worker has waited for is ready")
    os.kill(stopped.process.pid, signal.SIGCONT)
    processes.ends(processes.enqueue("pid_in_pool"))
    assert [line[3] for line in processes.noted("begin", job)] == ["2"]


def is_asleep(pid: str) -> bool:
    """Whether all threads of the process wait, the one included that receives attempts."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return len(states) > 1 and set(states) == {"S"}


def test_a_cancel_kills_the_process_of_the_job(processes: Processes) -> None:
    processes.start(pool=1)
    job = processes.hold("hold_in_pool")
    (begun,) = processes.begins(job)
    eventually(lambda: job.refresh().progress == 0.5, "progress came through")
    assert job.progress_text == "waiting"
    processes.app.jobs.cancel(job.id)
    eventually(lambda: is_gone(begun[4]), "it lives on")
    processes.ends(processes.enqueue("pid_in_pool"))
    assert job.refresh().status == "cancelled"


def test_processes_are_served_while_all_threads_are_busy(processes: Processes) -> None:
    processes.start(concurrency=1, pool=1)
    job = processes.hold()
    processes.begins(job)
    processes.ends(processes.enqueue("pid_in_pool"))
    assert job.refresh().status == "running"
    processes.ends(processes.enqueue("pid_in_pool"))


def test_processes_end_with_their_worker_however_it_ends(processes: Processes) -> None:
    worker = processes.start(pool=1)
    job = processes.hold("hold_in_pool")
    (begun,) = processes.begins(job)
    processes.crew.kill(worker)
    eventually(lambda: is_gone(begun[4]), "it lives on")


def test_hooks_run_in_the_worker_and_in_each_process_of_its_pool(processes: Processes) -> None:
    worker = processes.start(pool=1, max_jobs=2, HOOKS=1)
    pids = [str(processes.ends(processes.enqueue("pid_in_pool")).result) for _ in range(3)]
    assert pids[0] == pids[1] != pids[2]
    worker.process.terminate()
    processes.wait_for_end(worker)
    own = str(worker.process.pid)
    assert [line[1:] for line in processes.lines(worker, "after")] == [["holdfast-pool", pid] for pid in pids]
    for verb in ("start", "stop"):
        called = sorted(line[1:] for line in processes.lines(worker, verb))
        assert called == sorted([["MainProcess", own], ["holdfast-pool", pids[0]], ["holdfast-pool", pids[2]]])
    assert processes.lines(worker, "stop")[-1][1] == "MainProcess"


def test_a_process_whose_start_hook_raises_fails_its_job(processes: Processes) -> None:
    worker = processes.start(pool=1, HOOKS="raise")
    job = processes.ends(processes.enqueue("pid_in_pool", max_attempts=1), "failed")
    assert job.error_code == "INTERNAL:PROCESS_START"
    assert "on_worker_start raised RuntimeError('no model')" in (job.error_detail or "")
    assert worker.process.poll() is None


def test_a_process_whose_stop_hook_hangs_is_killed(processes: Processes) -> None:
    worker = processes.start(pool=1, HOOKS="hang")
    pid = str(processes.ends(processes.enqueue("pid_in_pool")).result)
    worker.process.terminate()
    processes.wait_for_end(worker)
    eventually(lambda: is_gone(pid), "it lives on")
    assert [line[1] for line in processes.lines(worker, "stop")] == ["holdfast-pool", "MainProcess"]
