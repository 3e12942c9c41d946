"""Tasks with pool="process" that complete themselves, go on as chains, and wait for others."""

import signal
import sqlite3
from typing import Any

import pytest
from yard import Yard

from holdfast import Holdfast, Job, Task
from holdfast.clock import SECOND
from support.child_processes import Member
from support.running_worker import PATIENCE_SECONDS, eventually, outcomes


@pytest.fixture(autouse=True)
def _ledger(yard: Yard) -> None:
    query(yard, "CREATE TABLE ledger (job INTEGER, attempt INTEGER)")


def query(yard: Yard, statement: str) -> list[Any]:
    connection = sqlite3.connect(yard.database)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def ledger(yard: Yard) -> list[Any]:
    return query(yard, "SELECT job, attempt FROM ledger ORDER BY rowid")


def start(yard: Yard, **options: int) -> Member:
    member = yard.crew.start("completer", *(f"{name}={value}" for name, value in options.items()))
    eventually(lambda: member.is_at_work() or member.process.poll() is not None, "the worker did not start")
    assert member.process.poll() is None, yard.crew.complaints()
    return member


def stop(yard: Yard, member: Member) -> dict[str, int]:
    """As one signal does; returns its report."""
    member.process.send_signal(signal.SIGTERM)
    yard.wait_for_end(member)
    ((_, *counts),) = yard.lines(member, "report")
    return {name: int(number) for name, number in (count.split("=") for count in counts)}


def task(app: Holdfast, name: str) -> Task[..., Any]:
    """For enqueueing only: the worker has the code."""

    @app.task(name=name, max_attempts=5)
    def nothing(word: str = "") -> Any: ...

    return nothing


def chain_ends(yard: Yard, job: Job[Any]) -> Any:
    return yard.app.chains.get(job.id).wait(timeout=PATIENCE_SECONDS)


def test_all_that_a_block_does_is_there_with_the_success(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("together")
    assert chain_ends(yard, job) == [6, "é\0n"]
    eventually(lambda: yard.app.jobs.count(tag="child", status="succeeded") == 1)
    assert ledger(yard) == [(job.id, 1)]
    assert outcomes(yard.app, job.id) == ["succeeded"]
    assert stop(yard, worker)["succeeded"] == 3


def test_an_exception_rolls_all_of_it_back(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("together", '{"failures": 2}')
    assert chain_ends(yard, job) == [6, "é\0n"]
    assert ledger(yard) == [(job.id, 3)]
    assert outcomes(yard.app, job.id) == ["retry_scheduled", "retry_scheduled", "succeeded"]
    eventually(lambda: yard.app.jobs.count(tag="child", status="succeeded") == 1)
    assert yard.app.jobs.count(tag="child") == 1
    report = stop(yard, worker)
    assert (report["retried"], report["succeeded"]) == (2, 3)


@pytest.mark.parametrize("size", [1, 5_000, 1_000_000])
def test_a_chain_goes_on_from_a_process(yard: Yard, size: int) -> None:
    start(yard, pool=1)
    job = yard.enqueue("go_on", f'{{"size": {size}}}')
    assert chain_ends(yard, job) == [size, "x" * min(size, 3)]


def test_a_process_that_is_too_late_stores_nothing(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("too_late")
    assert yard.ends(job).result == "by hand"
    eventually(
        lambda: yard.noted("lost", job) or yard.app.jobs.get(job.id).attempt > 1 or yard.lines(worker, "report")
    )
    report = stop(yard, worker)
    assert (ledger(yard), job.refresh().result, report["lost"], report["succeeded"]) == ([], "by hand", 1, 0)


def test_a_process_that_dies_in_the_block_has_stored_nothing_and_the_job_comes_again(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("die", '{"where": "inside"}')
    assert yard.ends(job).result == "completed"
    assert ledger(yard) == [(job.id, 2)]
    first = next(entry for entry in yard.app.store.jobs.history(job.id) if entry.kind == "attempt")
    assert first.detail["error_code"] == "INTERNAL:PROCESS_DIED"
    assert stop(yard, worker)["retried"] == 1


def test_a_process_that_dies_after_the_block_has_succeeded(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("die", '{"where": "after"}')
    assert yard.ends(job).result == "completed"
    yard.ends(yard.enqueue("last_in_pool", '{"word": "another process"}'))
    report = stop(yard, worker)
    assert (job.refresh().status, job.attempt, ledger(yard)) == ("succeeded", 1, [(job.id, 1)])
    assert (report["succeeded"], report["retried"], report["failed"], report["lost"]) == (2, 0, 0, 0)


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_process_that_runs_out_of_time(yard: Yard, where: str) -> None:
    """After the block the job has succeeded; inside it, the table and the job agree."""
    worker = start(yard, pool=1)
    args = f'{{"where": "{where}", "file": "{yard.gate}"}}'
    for seconds in yard.longer_and_longer():
        job = yard.enqueue("hold", args, timeout=round(seconds * SECOND), max_attempts=2)
        eventually(lambda job=job: job.refresh().is_finished)
        begun = len(yard.noted("inside", job))
        if begun == (1 if where == "after" else 2):  # otherwise its time was over before it came so far
            break
    assert (job.status, job.result, job.attempt) == ("succeeded", "completed", begun)
    yard.ends(yard.enqueue("last_in_pool", '{"word": "another process"}'))
    assert [row for row in ledger(yard) if row[0] == job.id] == [(job.id, job.attempt)]
    assert stop(yard, worker)["succeeded"] >= 2


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_worker_that_is_killed_while_its_process_completes(yard: Yard, where: str) -> None:
    """Its processes go with it, and another worker finds either all of it or nothing."""
    worker = start(yard, pool=1)
    job = yard.enqueue("hold", f'{{"where": "{where}", "file": "{yard.gate}"}}')
    eventually(lambda: yard.noted("inside", job), "it did not begin")
    if where == "after":
        yard.ends(job)
    yard.crew.kill(worker)
    start(yard, pool=1)
    assert yard.ends(job).result == "completed"
    assert ledger(yard) == [(job.id, 2 if where == "inside" else 1)]
    assert job.attempt == (2 if where == "inside" else 1)


def test_a_cancel_after_the_block_is_too_late(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("hold", f'{{"where": "after", "file": "{yard.gate}"}}')
    yard.ends(job)
    assert yard.app.jobs.cancel(job.id) is False
    yard.gate.touch()
    report = stop(yard, worker)
    assert (job.refresh().status, report["succeeded"], report["lost"]) == ("succeeded", 1, 0)


def test_what_is_returned_after_the_block_is_too_late(yard: Yard) -> None:
    worker = start(yard, pool=1)
    job = yard.enqueue("returns_late")
    assert yard.ends(job).result == "in time"
    assert stop(yard, worker)["succeeded"] == 1
    assert yard.app.jobs.count() == 1


def test_a_process_sees_its_blockers_and_its_batch(yard: Yard) -> None:
    start(yard, pool=2)
    last, look_around = task(yard.app, "last"), task(yard.app, "look_around")
    with yard.app.batch(on_done=last.s(word="over")) as batch:
        first = last.using(batch=batch).enqueue("first")
        approve = yard.app.external("approve")
        job = look_around.using(batch=batch, after=[first, approve]).enqueue()
    yard.app.jobs.complete(approve.id, {"by": "Ada"})
    assert yard.ends(job).result == [["first", {"by": "Ada"}], batch.id, 2]
    batch.wait(timeout=PATIENCE_SECONDS)
    assert batch.done_job_id is not None
    assert yard.ends(yard.app.jobs.get(batch.done_job_id)).result == "over"


def test_many_blocks_in_processes_that_are_replaced(yard: Yard) -> None:
    start(yard, pool=2, max_jobs=3)
    jobs = [yard.enqueue("together", f'{{"failures": {number % 2}}}') for number in range(12)]
    for job in jobs:
        chain_ends(yard, job)
    assert sorted(ledger(yard)) == [(job.id, 1 + number % 2) for number, job in enumerate(jobs)]
    eventually(lambda: yard.app.jobs.count(tag="child", status="succeeded") == 12)
