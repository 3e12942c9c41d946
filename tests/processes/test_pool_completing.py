"""Tasks with pool="process" that complete themselves, go on as chains, and wait for others."""

import signal
import sqlite3
from typing import Any

import pytest
from worker_processes import Processes

from holdfast import Holdfast, Job, Task
from holdfast.clock import SECOND
from support.child_processes import Member
from support.running_worker import PATIENCE_SECONDS, eventually, outcomes


@pytest.fixture(autouse=True)
def _ledger(processes: Processes) -> None:
    query(processes, "CREATE TABLE ledger (job INTEGER, attempt INTEGER)")


def query(processes: Processes, statement: str) -> list[Any]:
    connection = sqlite3.connect(processes.database)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def ledger(processes: Processes) -> list[Any]:
    return query(processes, "SELECT job, attempt FROM ledger ORDER BY rowid")


def start(processes: Processes, **options: int) -> Member:
    member = processes.crew.start("completing_worker", *(f"{name}={value}" for name, value in options.items()))
    eventually(lambda: member.is_at_work() or member.process.poll() is not None, "the worker did not start")
    assert member.process.poll() is None, processes.crew.complaints()
    return member


def stop(processes: Processes, member: Member) -> dict[str, int]:
    """As one signal does; returns its report."""
    member.process.send_signal(signal.SIGTERM)
    processes.wait_for_end(member)
    ((_, *counts),) = processes.lines(member, "report")
    return {name: int(number) for name, number in (count.split("=") for count in counts)}


def task(app: Holdfast, name: str) -> Task[..., Any]:
    """For enqueueing only: the worker has the code."""

    @app.task(name=name, max_attempts=5)
    def nothing(word: str = "") -> Any: ...

    return nothing


def chain_ends(processes: Processes, job: Job[Any]) -> Any:
    return processes.app.chains.get(job.id).wait(timeout=PATIENCE_SECONDS)


def test_all_that_a_block_does_is_there_with_the_success(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("together")
    assert chain_ends(processes, job) == [6, "é\0n"]
    eventually(lambda: processes.app.jobs.count(tag="child", status="succeeded") == 1)
    assert ledger(processes) == [(job.id, 1)]
    assert outcomes(processes.app, job.id) == ["succeeded"]
    assert stop(processes, worker)["succeeded"] == 3


def test_an_exception_rolls_all_of_it_back(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("together", '{"failures": 2}')
    assert chain_ends(processes, job) == [6, "é\0n"]
    assert ledger(processes) == [(job.id, 3)]
    assert outcomes(processes.app, job.id) == ["retry_scheduled", "retry_scheduled", "succeeded"]
    eventually(lambda: processes.app.jobs.count(tag="child", status="succeeded") == 1)
    assert processes.app.jobs.count(tag="child") == 1
    report = stop(processes, worker)
    assert (report["retried"], report["succeeded"]) == (2, 3)


@pytest.mark.parametrize("size", [1, 5_000, 1_000_000])
def test_a_chain_goes_on_from_a_process(processes: Processes, size: int) -> None:
    start(processes, pool=1)
    job = processes.enqueue("go_on", f'{{"size": {size}}}')
    assert chain_ends(processes, job) == [size, "x" * min(size, 3)]


def test_a_process_that_is_too_late_stores_nothing(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("too_late")
    assert processes.ends(job).result == "by hand"
    eventually(
        lambda: (
            processes.noted("lost", job)
            or processes.app.jobs.get(job.id).attempt > 1
            or processes.lines(worker, "report")
        )
    )
    report = stop(processes, worker)
    assert (ledger(processes), job.refresh().result, report["lost"], report["succeeded"]) == ([], "by hand", 1, 0)


def test_a_process_that_dies_in_the_block_has_stored_nothing_and_the_job_comes_again(
    processes: Processes,
) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("die", '{"where": "inside"}')
    assert processes.ends(job).result == "completed"
    assert ledger(processes) == [(job.id, 2)]
    first = next(entry for entry in processes.app.store.jobs.history(job.id) if entry.kind == "attempt")
    assert first.detail["error_code"] == "INTERNAL:PROCESS_DIED"
    assert stop(processes, worker)["retried"] == 1


def test_a_process_that_dies_after_the_block_has_succeeded(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("die", '{"where": "after"}')
    assert processes.ends(job).result == "completed"
    processes.ends(processes.enqueue("last_in_pool", '{"word": "another process"}'))
    report = stop(processes, worker)
    assert (job.refresh().status, job.attempt, ledger(processes)) == ("succeeded", 1, [(job.id, 1)])
    assert (report["succeeded"], report["retried"], report["failed"], report["lost"]) == (2, 0, 0, 0)


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_process_that_runs_out_of_time(processes: Processes, where: str) -> None:
    """After the block the job has succeeded; inside it, the table and the job agree."""
    worker = start(processes, pool=1)
    args = f'{{"where": "{where}", "file": "{processes.gate}"}}'
    for seconds in processes.longer_and_longer():
        job = processes.enqueue("hold", args, timeout=round(seconds * SECOND), max_attempts=2)
        eventually(lambda job=job: job.refresh().is_finished)
        begun = len(processes.noted("inside", job))
        if begun == (1 if where == "after" else 2):  # otherwise its time was over before it came so far
            break
    assert (job.status, job.result, job.attempt) == ("succeeded", "completed", begun)
    processes.ends(processes.enqueue("last_in_pool", '{"word": "another process"}'))
    assert [row for row in ledger(processes) if row[0] == job.id] == [(job.id, job.attempt)]
    assert stop(processes, worker)["succeeded"] >= 2


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_worker_that_is_killed_while_its_process_completes(processes: Processes, where: str) -> None:
    """Its processes go with it, and another worker finds either all of it or nothing."""
    worker = start(processes, pool=1)
    job = processes.enqueue("hold", f'{{"where": "{where}", "file": "{processes.gate}"}}')
    eventually(lambda: processes.noted("inside", job), "it did not begin")
    if where == "after":
        processes.ends(job)
    processes.crew.kill(worker)
    start(processes, pool=1)
    assert processes.ends(job).result == "completed"
    assert ledger(processes) == [(job.id, 2 if where == "inside" else 1)]
    assert job.attempt == (2 if where == "inside" else 1)


def test_a_cancel_after_the_block_is_too_late(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("hold", f'{{"where": "after", "file": "{processes.gate}"}}')
    processes.ends(job)
    assert processes.app.jobs.cancel(job.id) is False
    processes.gate.touch()
    report = stop(processes, worker)
    assert (job.refresh().status, report["succeeded"], report["lost"]) == ("succeeded", 1, 0)


def test_what_is_returned_after_the_block_is_too_late(processes: Processes) -> None:
    worker = start(processes, pool=1)
    job = processes.enqueue("returns_late")
    assert processes.ends(job).result == "in time"
    assert stop(processes, worker)["succeeded"] == 1
    assert processes.app.jobs.count() == 1


def test_a_process_sees_its_blockers_and_its_batch(processes: Processes) -> None:
    start(processes, pool=2)
    last, look_around = task(processes.app, "last"), task(processes.app, "look_around")
    with processes.app.batch(on_done=last.s(word="over")) as batch:
        first = last.using(batch=batch).enqueue("first")
        approve = processes.app.external("approve")
        job = look_around.using(batch=batch, after=[first, approve]).enqueue()
    processes.app.jobs.complete(approve.id, {"by": "Ada"})
    assert processes.ends(job).result == [["first", {"by": "Ada"}], batch.id, 2]
    batch.wait(timeout=PATIENCE_SECONDS)
    assert batch.done_job_id is not None
    assert processes.ends(processes.app.jobs.get(batch.done_job_id)).result == "over"


def test_many_blocks_in_processes_that_are_replaced(processes: Processes) -> None:
    start(processes, pool=2, max_jobs=3)
    jobs = [processes.enqueue("together", f'{{"failures": {number % 2}}}') for number in range(12)]
    for job in jobs:
        chain_ends(processes, job)
    assert sorted(ledger(processes)) == [(job.id, 1 + number % 2) for number, job in enumerate(jobs)]
    eventually(lambda: processes.app.jobs.count(tag="child", status="succeeded") == 12)
