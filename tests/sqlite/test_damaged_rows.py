"""A row that somebody changed by hand fails alone, with a code, and stops nobody."""

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, codec
from holdfast.clock import SECOND
from holdfast.errors import HoldfastError, InvalidPayload
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, fold_all

MOST = 1024 * 1024

DAMAGE: dict[str, Any] = {
    "half of it": '{"text": "hel',
    "nothing": "",
    "no JSON": "hello",
    "two values": "1 2",
    "NaN": "NaN",
    "a comma too many": "[1,]",
    "not UTF-8": b'"\xff\xfe"',
    "a NUL": '"a\x00b"',
    "bytes": b"\x00\x01\x02",
    "a number": 5.5e300 * 1e9,
    "a number beyond all": "1e999",
    "deeper than the stack": "[" * 100_000 + "]" * 100_000,
    "too large": '"' + "x" * MOST + '"',
    "a lone surrogate": '"\\ud800"',
}


@pytest.fixture(autouse=True)
def smaller_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", MOST)


def by_hand(url: str, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(url)
    with connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_body_fails_alone_with_its_code(app: Holdfast, url: str, name: str) -> None:
    inbox = app.queue("inbox")
    first, damaged, last = inbox.send_many(["first", "second", "third"])
    by_hand(url, "UPDATE holdfast_jobs SET args = ? WHERE id = ?", DAMAGE[name], damaged)
    assert [message.id for message in inbox.receive_many(3)] == [first, last]
    (dead,) = inbox.dead_letters()
    assert (dead.id, dead.error_code) == (damaged, "INVALID_INPUT:UNDECODABLE")
    assert dead.error_detail and len(dead.error_detail) <= 500
    assert app.jobs.history(damaged)[-1].name == "failed"
    assert damaged in [job.id for job in app.jobs.list()]


def test_a_damaged_body_does_not_end_a_long_poll_with_an_error(app: Holdfast, url: str) -> None:
    inbox = app.queue("inbox")
    damaged = inbox.send("x")
    by_hand(url, "UPDATE holdfast_jobs SET args = '{' WHERE id = ?", damaged)
    inbox.send("good")
    message = inbox.receive(wait=5)
    assert message is not None and message.body == "good"
    assert [dead.id for dead in inbox.dead_letters()] == [damaged]


def test_a_body_of_the_wrong_type_fails_alone(app: Holdfast) -> None:
    app.queue("numbers").send_many(["one", 2, None, [3], 4])
    numbers = app.queue("numbers", type=int)
    assert [message.body for message in numbers.receive_many(10)] == [2, 4]
    assert {dead.error_code for dead in numbers.dead_letters()} == {"INVALID_INPUT:SCHEMA"}


def test_looking_at_a_damaged_payload_says_that_it_is_damaged(app: Holdfast, url: str) -> None:
    damaged = app.queue("inbox").send("x")
    by_hand(url, "UPDATE holdfast_jobs SET args = '{', result = '{', tags = '{' WHERE id = ?", damaged)
    job = app.jobs.get(damaged)
    assert "message" in repr(job)
    for look in (lambda: job.args, lambda: job.result, lambda: job.tags):
        with pytest.raises(InvalidPayload, match="cannot be decoded"):
            look()


def test_a_damaged_result_says_that_it_is_damaged_also_where_the_task_is_known(app: Holdfast, url: str) -> None:
    @app.task
    def work() -> int:
        return 5

    job = work.enqueue()
    for result in ("{", '"five"'):
        by_hand(url, "UPDATE holdfast_jobs SET status = 'succeeded', result = ? WHERE id = ?", result, job.id)
        with pytest.raises(InvalidPayload, match="result"):
            job.wait(1)


# Columns that are no payload: nothing sees to their types but SQLite, which takes what it is given.
STRANGE_INSERTS: dict[str, tuple[str, str]] = {
    "a priority in words": ("priority", "'high'"),
    "a priority with a fraction": ("priority", "1.5"),
    "a time as text": ("run_at", "'2030-01-01 00:00:00'"),
    "a time as a fraction": ("run_at", "1.5e9 + 0.5"),
    "a time before time": ("run_at", "-4611686018427387904"),
    "a creation as text": ("created_at", "'yesterday'"),
    "attempts as text": ("max_attempts", "'many'"),
    "a timeout as text": ("timeout", "'long'"),
    "history as text": ("history", "'yes'"),
    "a key of bytes": ("key", "x'FFFE'"),
    "a key that is not UTF-8": ("key", "CAST(x'FFFE' AS TEXT)"),
    "an actor that is not UTF-8": ("actor", "CAST(x'FFFE' AS TEXT)"),
    "tags that are no list": ("tags", "'5'"),
    "tags that are no JSON": ("tags", "'red, green'"),
}


@pytest.mark.parametrize("name", STRANGE_INSERTS)
def test_a_strange_insert_by_plain_sql_is_refused_or_stops_nobody(app: Holdfast, url: str, name: str) -> None:
    """INSERT by any language is an interface, so its mistakes are to be expected."""
    inbox = app.queue("inbox")
    inbox.send("before")
    column, value = STRANGE_INSERTS[name]
    try:
        by_hand(url, f"INSERT INTO holdfast_jobs (queue, args, {column}) VALUES ('inbox', '1', {value})")  # noqa: S608
    except sqlite3.Error:
        return
    inbox.send("after")
    messages = inbox.receive_many(10)
    assert [message.body for message in messages if message.body != 1] == ["before", "after"]
    assert inbox.receive(wait=0.01) is None
    assert all(message.ack() for message in messages)
    assert len(app.jobs.list()) >= 2


def test_a_queue_name_that_is_not_utf8_keeps_no_worker_from_the_others(app: Holdfast, url: str) -> None:
    @app.task
    def work() -> None: ...

    try:
        by_hand(url, "INSERT INTO holdfast_jobs (queue, task) VALUES (CAST(x'FFFE' AS TEXT), 'work')")
    except sqlite3.Error:
        return
    job = work.enqueue()
    claimed = claim_tasks(app.store, None, ["work"], 10, 30 * SECOND, "worker")
    assert job.id in [one.id for one in claimed]


def edits(column: str, value: Any) -> Callable[[str, int], None]:
    return lambda url, id: by_hand(url, f"UPDATE holdfast_jobs SET {column} = ? WHERE id = ?", value, id)  # noqa: S608


@pytest.mark.parametrize(
    "edit",
    [
        edits("lease", "soon"),
        edits("lease", None),
        edits("worker", b"\xff"),
        edits("attempt", 0),
        edits("attempt", 3),
    ],
    ids=["lease as text", "no lease", "worker not UTF-8", "attempt lowered", "attempt raised"],
)
def test_a_running_row_edited_by_hand_stops_nobody(
    app: Holdfast, clock: FakeClock, url: str, edit: Callable[[str, int], None]
) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send_many(["edited", "other"])
    edited = inbox.receive()
    assert edited is not None
    with contextlib.suppress(sqlite3.IntegrityError):  # what a constraint refuses stops nobody either
        edit(url, edited.id)
    clock.advance(60)
    other = inbox.receive(wait=0.01)
    assert other is not None and (other.body == "other" or other.id == edited.id)
    inbox.send("more")
    assert len(inbox.receive_many(10)) >= 1


@pytest.mark.parametrize("value", ["soon", 1.5, b"\xff", None, -5, 2**62], ids=repr)
@pytest.mark.parametrize(
    "column",
    [
        *("job_id", "at", "event", "queue", "task", "old_status", "new_status", "attempt", "waited", "ran"),
        *("error_code", "fingerprint"),
    ],
)
def test_events_edited_by_hand_keep_nobody_from_counting(app: Holdfast, url: str, column: str, value: Any) -> None:
    """What they say is counted for what it is; the others, and what comes later, are counted as always."""
    inbox = app.queue("inbox", max_attempts=1)
    inbox.send_many([1, 2])
    first, second = inbox.receive_many(2)
    assert first.ack() and second.fail("TEST")
    with contextlib.suppress(sqlite3.IntegrityError):
        by_hand(url, f"UPDATE holdfast_events SET {column} = ?", value)  # noqa: S608
    app.queue("other").send(1)

    def others() -> int:
        of = app.store.statistics
        for ask in (lambda: of.minutes(0), of.totals, lambda: of.failures(None, 10)):
            assert ask() is not None
        return sum(one.count or 0 for one in of.counts().items if one.queue == "other")

    assert others() == 1
    fold_all(app)
    assert others() == 1
    app.queue("other").send(2)
    assert others() == 2
    found = app.check()
    assert found.of("COUNTS") or found.of("COUNTS_WRONG")
    assert app.check(repair=True).of("COUNTS")
    assert app.observe.counts().by_queue["other"] == 2


def test_events_edited_by_hand_do_not_make_the_history_unreadable(app: Holdfast, url: str) -> None:
    message = app.queue("inbox").send("x")
    for detail in ("{", "5", "[]", b"\xff"):
        by_hand(url, "UPDATE holdfast_events SET detail = ?", detail)
        with contextlib.suppress(HoldfastError):  # told by name is as good
            assert app.jobs.history(message)
