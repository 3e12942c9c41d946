"""Rows with text that is not UTF-8, or with no text at all: SQLite holds them, other databases do not."""

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Task
from holdfast.errors import InvalidPayload
from holdfast.model.job import Claimed
from support.transitions import claim_tasks, succeed

Claim = Callable[..., Claimed]
Sql = Callable[..., list[Any]]
Damage = Callable[[int], None]

DAMAGES = {
    "not UTF-8": "CAST(x'ff' AS TEXT)",
    "not UTF-8 within JSON": "CAST(x'22c328' || '\"' AS TEXT)",
    "a NUL byte": "CAST(x'7b007d' AS TEXT)",
    "a NUL byte after JSON": "CAST(x'317c00' AS TEXT)",
    "a blob": "x'fffe00'",
}


@pytest.fixture(params=DAMAGES.values(), ids=DAMAGES.keys())
def damage(request: pytest.FixtureRequest, sql: Sql) -> Damage:
    def spoil(id: int) -> None:
        sql(f"UPDATE holdfast_jobs SET args = {request.param} WHERE id = {id}")  # noqa: S608

    return spoil


@pytest.fixture
def work(app: Holdfast) -> Task[[int], list[int]]:
    @app.task
    def work(x: int) -> list[int]: ...

    return work


def test_a_damaged_message_fails_alone_with_its_code(app: Holdfast, damage: Damage) -> None:
    inbox = app.queue("inbox")
    first, second, third = inbox.send_many([1, 2, 3])
    damage(second)
    assert [message.id for message in inbox.receive_many(3)] == [first, third]
    job = app.jobs.get(second)
    assert (job.status, job.error_code) == ("failed", "INVALID_INPUT:UNDECODABLE")
    assert job.error_detail


def test_a_damaged_message_can_be_listed_and_scanned(app: Holdfast, damage: Damage) -> None:
    id = app.queue("inbox").send("good")
    damage(id)
    app.queue("inbox").receive()
    (dead,) = app.queue("inbox").dead_letters()
    assert [job.id for job in app.jobs.list(error_code="INVALID_INPUT:UNDECODABLE")] == [dead.id] == [id]
    with pytest.raises(InvalidPayload, match="cannot be decoded"):
        dead.args  # noqa: B018


def test_a_damaged_job_is_claimed_and_can_be_failed_by_its_worker(
    app: Holdfast, work: Task[[int], list[int]], claim: Claim, damage: Damage
) -> None:
    damage(work.enqueue(1).id)
    claimed = claim()
    with pytest.raises(msgspec.DecodeError):
        work.signature.decode(claimed.args)


def test_a_damaged_job_does_not_keep_others_from_being_claimed(
    app: Holdfast, work: Task[[int], list[int]], damage: Damage
) -> None:
    first, second = work.enqueue(1), work.enqueue(2)
    damage(first.id)
    claimed = claim_tasks(app.store, None, ["work"], 10, 1, "worker-1")
    assert [one.id for one in claimed] == [first.id, second.id]
    assert claimed[1].args == b'{"x":2}'


@pytest.mark.parametrize("result", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_result_says_so(
    app: Holdfast, work: Task[[int], list[int]], claim: Claim, sql: Sql, result: str
) -> None:
    job = work.enqueue(1)
    succeed(app.store, claim().lease, "[1]")
    sql(f"UPDATE holdfast_jobs SET result = {result}")  # noqa: S608
    with pytest.raises(InvalidPayload, match="result"):
        job.refresh().result  # noqa: B018


def test_g10_a_payload_that_is_not_utf_8_fails_that_job_alone(app: Holdfast, sql: Sql) -> None:
    first, second = app.queue("inbox").send_many([1, 2])
    sql("UPDATE holdfast_jobs SET args = CAST(x'ff' AS TEXT) WHERE id = ?", (first,))
    assert [message.id for message in app.queue("inbox").receive_many(10)] == [second]
    assert app.jobs.get(first).error_code == "INVALID_INPUT:UNDECODABLE"


@pytest.mark.parametrize("column", ["queue", "task"])
def test_a_name_that_is_no_text_is_refused_by_the_database(app: Holdfast, sql: Sql, column: str) -> None:
    name = {"queue": "queue_is_text", "task": "task_is_a_name"}[column]
    with pytest.raises(sqlite3.IntegrityError, match=name):
        sql(f"INSERT INTO holdfast_jobs ({column}) VALUES (x'ff41fe')")  # noqa: S608
    app.task(name="work")(lambda: None).enqueue()
    with pytest.raises(sqlite3.IntegrityError, match=name):
        sql(f"UPDATE holdfast_jobs SET {column} = x'ff41fe'")  # noqa: S608
