"""Looking after a queue: counting, pausing, doing without history, and typed bodies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock
from support.transitions import claim_tasks

Sql = Callable[..., list[Any]]


# --- stats ---


def test_stats_of_an_unknown_queue_are_all_zero(app: Holdfast) -> None:
    stats = app.queue("nothing").stats()
    assert (stats.total, stats.ready, stats.scheduled, stats.running, stats.failed) == (0, 0, 0, 0, 0)
    assert stats.oldest_ready_age is None
    assert stats.paused is False


def test_stats_count_each_state(app: Holdfast) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    inbox.send_many(["dead", "running", "done"])
    first, _, third = inbox.receive_many(3)
    first.release()
    third.ack()
    inbox.send_many(["ready 1", "ready 2", "ready 3"])
    inbox.send_many(["later 1", "later 2"], delay=60)
    stats = inbox.stats()
    assert (stats.ready, stats.scheduled, stats.running, stats.failed) == (3, 2, 1, 1)
    assert stats.total == 7


def test_stats_count_messages_of_this_queue_only(app: Holdfast) -> None:
    @app.task(queue="inbox")
    def work() -> None: ...

    work.enqueue()
    app.queue("other").send("elsewhere")
    app.queue("inbox").send("mine")
    assert app.queue("inbox").stats().total == 1


def test_stats_tell_the_age_of_the_oldest_ready_message(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("running")
    clock.advance(5)
    inbox.receive()
    inbox.send("oldest ready")
    clock.advance(90)
    inbox.send("newer")
    clock.advance(10)
    assert inbox.stats().oldest_ready_age == 100.0


def test_the_age_is_never_negative(app: Holdfast, clock: FakeClock) -> None:
    app.queue("inbox").send("sent at ten")
    clock.step(-3600)
    assert app.queue("inbox").stats().oldest_ready_age == 0.0


# --- pause and resume ---


def test_a_paused_queue_gives_nothing(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send("waits")
    assert inbox.pause() is True
    assert inbox.receive() is None
    assert inbox.stats().paused is True


def test_a_resumed_queue_gives_again(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send("waits")
    inbox.pause()
    assert inbox.resume() is True
    assert inbox.receive() is not None
    assert inbox.stats().paused is False


def test_a_pause_is_obeyed_by_another_process(
    app: Holdfast, open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    other = open_app(clock=clock)
    app.queue("inbox").send("waits")
    app.queue("inbox").pause()
    assert other.queue("inbox").receive() is None
    assert other.queue("inbox").stats().paused is True
    app.queue("inbox").resume()
    assert other.queue("inbox").receive() is not None


def test_a_pause_outlives_the_process_that_made_it(open_app: Callable[..., Holdfast], clock: FakeClock) -> None:
    with open_app(clock=clock) as first:
        first.queue("inbox").send("waits")
        first.queue("inbox").pause()
    assert open_app(clock=clock).queue("inbox").receive() is None


def test_a_pause_holds_for_tasks_too(app: Holdfast) -> None:
    @app.task(queue="mail")
    def work() -> None: ...

    work.enqueue()
    app.queue("mail").pause()
    assert claim_tasks(app.store, None, ["work"], 1, 1, "worker-1") == []
    assert claim_tasks(app.store, ["mail"], ["work"], 1, 1, "worker-1") == []
    app.queue("mail").resume()
    assert len(claim_tasks(app.store, ["mail"], ["work"], 1, 1, "worker-1")) == 1


def test_a_pause_holds_for_one_queue_only(app: Holdfast) -> None:
    app.queue("other").send("goes on")
    app.queue("inbox").pause()
    assert app.queue("other").receive() is not None


def test_a_paused_queue_still_takes_messages_and_settles_those_in_flight(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send("in flight")
    message = inbox.receive()
    inbox.pause()
    assert message is not None and message.ack()
    inbox.send("sent while paused")
    assert inbox.stats().ready == 1


def test_pausing_twice_changes_nothing_the_second_time(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    assert [inbox.pause(), inbox.pause()] == [True, False]
    assert [inbox.resume(), inbox.resume()] == [True, False]


def test_pause_and_resume_are_in_the_log(app: Holdfast) -> None:
    app.queue("inbox").pause(actor="ada")
    app.queue("inbox").resume(actor="bob")
    assert [(one.event, one.actor, one.detail) for one in app.observe.events()] == [
        ("paused", "ada", {"queue": "inbox"}),
        ("resumed", "bob", {"queue": "inbox"}),
    ]


# --- without history ---


def count_history(sql: Sql) -> tuple[int, int]:
    ((events,),) = sql("SELECT count(*) FROM holdfast_events")
    ((attempts,),) = sql("SELECT count(*) FROM holdfast_attempts")
    return events, attempts


def test_without_history_an_ack_deletes(app: Holdfast, sql: Sql) -> None:
    fast = app.queue("fast", history=False)
    fast.send("work")
    message = fast.receive()
    assert message is not None and message.ack() is True
    assert sql("SELECT count(*) FROM holdfast_jobs") == [(0,)]
    assert message.ack() is False


def test_without_history_no_event_or_attempt_is_written(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    fast = app.queue("fast", history=False, max_attempts=3)
    fast.send("acked", delay=5)
    fast.send_many(["given back", "left"])
    clock.advance(5)
    acked, given_back, _ = fast.receive_many(3)
    acked.ack()
    given_back.extend(60)
    given_back.release()
    clock.advance(60)
    fast.receive_many(3)
    assert count_history(sql) == (0, 0)


def test_without_history_a_dead_letter_is_kept_all_the_same(app: Holdfast, sql: Sql) -> None:
    fast = app.queue("fast", history=False, max_attempts=1)
    fast.send("poison")
    message = fast.receive()
    assert message is not None and message.release()
    assert [dead.args for dead in fast.dead_letters()] == ["poison"]
    assert count_history(sql) == (0, 0)


def test_the_sender_decides_about_history_whoever_receives(app: Holdfast, sql: Sql) -> None:
    app.queue("inbox", history=False).send("forgettable")
    kept = app.queue("inbox").send("memorable")
    receiving_with, receiving_without = app.queue("inbox"), app.queue("inbox", history=False)
    for queue in (receiving_with, receiving_without):
        message = queue.receive()
        assert message is not None and queue.ack(message.id, message.attempt)
    assert sql("SELECT id, status FROM holdfast_jobs") == [(kept, "succeeded")]


# --- typed bodies ---


class OrderStruct(msgspec.Struct):
    id: int
    items: list[str]


@dataclass
class OrderDataclass:
    id: int
    items: list[str]


class OrderDict(TypedDict):
    id: int
    items: list[str]


class OrderModel(pydantic.BaseModel):
    id: int
    items: list[str]


ORDERS: list[tuple[Any, Any]] = [
    (OrderStruct, OrderStruct(1, ["kelp"])),
    (OrderDataclass, OrderDataclass(1, ["kelp"])),
    (OrderDict, {"id": 1, "items": ["kelp"]}),
    (OrderModel, OrderModel(id=1, items=["kelp"])),
    (list[OrderStruct], [OrderStruct(1, []), OrderStruct(2, ["a", "b"])]),
    (OrderStruct | None, None),
]


@pytest.mark.parametrize(("kind", "order"), ORDERS, ids=[str(kind) for kind, _ in ORDERS])
def test_a_typed_body_comes_back_in_its_type(app: Holdfast, kind: Any, order: Any) -> None:
    inbox = app.queue("inbox", type=kind)
    inbox.send(order)
    inbox.send_many([order])
    bodies = [message.body for message in inbox.receive_many(2)]
    assert bodies == [order, order]
    assert {type(body) for body in bodies} == {type(order)}


@pytest.mark.parametrize("kind", [OrderStruct, OrderDataclass, OrderDict, OrderModel])
def test_a_body_of_the_wrong_type_is_refused_at_send(app: Holdfast, kind: Any) -> None:
    inbox = app.queue("inbox", type=kind)
    with pytest.raises(InvalidInput, match="wrong type"):
        inbox.send({"id": "one", "items": []})
    with pytest.raises(InvalidInput, match="wrong type"):
        inbox.send_many([{"id": 1, "items": []}, {"items": []}])
    assert inbox.stats().total == 0


@pytest.mark.parametrize("kind", [OrderStruct, OrderDataclass, OrderDict, OrderModel])
def test_a_stored_body_of_another_type_fails_alone(app: Holdfast, kind: Any) -> None:
    wrong = app.queue("inbox").send({"id": "one"})
    right = app.queue("inbox").send({"id": 1, "items": []})
    assert [message.id for message in app.queue("inbox", type=kind).receive_many(2)] == [right]
    dead = app.jobs.get(wrong)
    assert (dead.status, dead.error_code) == ("failed", "INVALID_INPUT:SCHEMA")
