"""A row that was damaged by hand fails alone, with a code, and stops nobody."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Task, codec
from holdfast.errors import InvalidPayload
from holdfast.model.job import Claimed
from support.backend import Backend
from support.transitions import claim_tasks, succeed

Claim = Callable[..., Claimed]
Sql = Callable[..., list[Any]]

DAMAGES = {
    "no JSON": "{broken",
    "empty": "",
    "cut short": '{"text": "hel',
    "two values": "1 2",
    "NaN": "NaN",
    "too large": '"' + "x" * 1_200_000 + '"',
    "too deep": "[" * 100_000,
    "deep and whole": "[" * 3000 + "]" * 3000,
}
"""What only SQLite holds, such as text that is not UTF-8, is in tests/sqlite/test_damaged_bytes.py."""


@pytest.fixture(autouse=True)
def smaller_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 1024 * 1024)


@pytest.fixture(params=DAMAGES.values(), ids=DAMAGES.keys())
def damage(request: pytest.FixtureRequest, sql: Sql) -> Callable[[int], None]:
    def spoil(id: int) -> None:
        sql("UPDATE holdfast_jobs SET args = ? WHERE id = ?", (request.param, id))

    return spoil


Damage = Callable[[int], None]


def test_a_damaged_message_fails_alone_with_its_code(app: Holdfast, damage: Damage) -> None:
    inbox = app.queue("inbox")
    first, second, third = inbox.send_many([1, 2, 3])
    damage(second)
    assert [message.id for message in inbox.receive_many(3)] == [first, third]
    job = app.jobs.get(second)
    assert (job.status, job.error_code) == ("failed", "INVALID_INPUT:UNDECODABLE")
    assert job.error_detail


def test_a_damaged_message_does_not_hide_the_next(app: Holdfast, sql: Sql) -> None:
    inbox = app.queue("inbox")
    first, second = inbox.send_many([1, 2])
    sql("UPDATE holdfast_jobs SET args = '{broken' WHERE id = ?", (first,))
    message = inbox.receive()
    assert message is not None and message.id == second


def test_a_damaged_message_does_not_end_a_wait_early(app: Holdfast, sql: Sql) -> None:
    inbox = app.queue("inbox")
    first, second = inbox.send_many([1, 2])
    sql("UPDATE holdfast_jobs SET args = '{broken' WHERE id = ?", (first,))
    message = inbox.receive(wait=20)
    assert message is not None and message.id == second


def test_what_is_no_json_is_undecodable_in_a_typed_queue_too(app: Holdfast, sql: Sql) -> None:
    inbox = app.queue("inbox", type=str)
    id = inbox.send("good")
    sql("UPDATE holdfast_jobs SET args = '{broken'")
    inbox.receive()
    assert app.jobs.get(id).error_code == "INVALID_INPUT:UNDECODABLE"


def test_a_damaged_message_can_be_listed_and_scanned(app: Holdfast, damage: Damage) -> None:
    id = app.queue("inbox").send("good")
    damage(id)
    app.queue("inbox").receive()
    (dead,) = app.queue("inbox").dead_letters()
    assert [job.id for job in app.jobs.list(error_code="INVALID_INPUT:UNDECODABLE")] == [dead.id] == [id]
    with pytest.raises(InvalidPayload, match="cannot be decoded"):
        dead.args  # noqa: B018


def test_a_repaired_message_can_be_requeued(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send("good")
    sql("UPDATE holdfast_jobs SET args = '{broken'")
    app.queue("inbox").receive()
    sql("UPDATE holdfast_jobs SET args = '\"mended\"' WHERE id = ?", (id,))
    app.queue("inbox").requeue()
    message = app.queue("inbox").receive()
    assert message is not None and message.body == "mended"


def test_a_damaged_message_is_failed_under_the_fence(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send("good")
    sql("UPDATE holdfast_jobs SET args = '{broken'")
    app.queue("inbox").receive(visibility=0)
    told = [(entry.name, entry.attempt) for entry in app.jobs.history(id) if entry.kind == "event"]
    assert told == [("enqueued", 0), ("claimed", 1), ("failed", 1)]


@pytest.fixture
def work(app: Holdfast) -> Task[[int], list[int]]:
    @app.task
    def work(x: int) -> list[int]: ...

    return work


def test_a_damaged_job_is_claimed_and_can_be_failed_by_its_worker(
    app: Holdfast, work: Task[[int], list[int]], claim: Claim, damage: Damage
) -> None:
    damage(work.enqueue(1).id)
    claimed = claim()
    with pytest.raises(msgspec.DecodeError):
        work.signature.decode(claimed.args)


def test_a_damaged_job_does_not_keep_others_from_being_claimed(
    app: Holdfast, work: Task[[int], list[int]], sql: Sql
) -> None:
    first, second = work.enqueue(1), work.enqueue(2)
    sql("UPDATE holdfast_jobs SET args = '{broken' WHERE id = ?", (first.id,))
    claimed = claim_tasks(app.store, None, ["work"], 10, 1, "worker-1")
    assert [one.id for one in claimed] == [first.id, second.id]
    assert claimed[1].args == b'{"x":2}'


@pytest.mark.parametrize("result", ["{broken", '"text"'])
def test_a_damaged_result_says_so(
    app: Holdfast, work: Task[[int], list[int]], claim: Claim, sql: Sql, result: str
) -> None:
    job = work.enqueue(1)
    succeed(app.store, claim().lease, "[1]")
    sql("UPDATE holdfast_jobs SET result = ?", (result,))
    with pytest.raises(InvalidPayload, match="result"):
        job.refresh().result  # noqa: B018


def test_a_priority_that_is_no_number_does_not_stop_the_queue(app: Holdfast, backend: Backend) -> None:
    """The database refuses it, or the claim bears it."""
    inbox = app.queue("inbox")
    first, second = inbox.send_many([1, 2])
    with contextlib.suppress(backend.DatabaseError):
        backend.sql("UPDATE holdfast_jobs SET priority = 'high' WHERE id = ?", (first,))
    assert {message.id for message in inbox.receive_many(10)} >= {second}
