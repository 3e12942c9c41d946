"""Messages: sending, receiving, and in which order."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidPayload, StoreError
from holdfast.testing import FakeClock
from support.running_worker import PATIENCE_SECONDS
from support.transitions import claim_tasks


def test_a_message_is_received_as_it_was_sent(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    sent = inbox.send({"text": "hello"})
    message = inbox.receive()
    assert message is not None
    assert (message.id, message.body, message.attempt) == (sent, {"text": "hello"}, 1)


def test_a_late_ack_does_not_settle_a_newer_attempt(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send("work")
    slow = inbox.receive()
    clock.advance(31)
    quick = inbox.receive()
    assert slow is not None and quick is not None
    assert (slow.attempt, quick.attempt) == (1, 2)
    assert slow.ack() is False
    assert quick.ack() is True


BODIES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    1.5,
    "",
    "null",
    "grüße, 世界 🪸",
    "with \0 NUL and \u2028 separator",
    'quotes " and \\ backslashes',
    [],
    {},
    [None, [1, "two", {"three": None}]],
    {"": 1, "ключ": [True, False]},
]


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_any_json_value_is_a_body(app: Holdfast, body: Any) -> None:
    app.queue("inbox").send(body)
    message = app.queue("inbox").receive()
    assert message is not None
    assert (type(message.body), message.body) == (type(body), body)


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_any_json_value_is_a_body_among_many(app: Holdfast, body: Any) -> None:
    app.queue("inbox").send_many([body, body])
    assert [message.body for message in app.queue("inbox").receive_many(2)] == [body, body]


def test_an_empty_queue_gives_none(app: Holdfast) -> None:
    assert app.queue("never-mentioned").receive() is None


def test_an_empty_queue_gives_an_empty_list(app: Holdfast) -> None:
    assert app.queue("never-mentioned").receive_many(10) == []


def test_a_message_is_visible_to_one_consumer_only(app: Holdfast, open_app: Callable[..., Holdfast]) -> None:
    app.queue("inbox").send("once")
    other = open_app(clock=FakeClock())
    assert app.queue("inbox").receive() is not None
    assert other.queue("inbox").receive() is None


def test_a_message_stays_in_its_own_queue(app: Holdfast) -> None:
    app.queue("inbox").send("for the inbox")
    assert app.queue("outbox").receive() is None


def test_an_acknowledged_message_never_comes_back(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("once")
    message = inbox.receive()
    assert message is not None and message.ack()
    clock.advance(10_000)
    assert inbox.receive() is None


# --- when ---


def test_a_delayed_message_is_hidden_until_it_is_due(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("later", delay=60)
    clock.advance(59.999)
    assert inbox.receive() is None
    clock.advance(0.001)
    message = inbox.receive()
    assert message is not None and message.body == "later"


def test_messages_sent_together_share_their_delay(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(["a", "b"], delay=60)
    assert inbox.receive_many(2) == []
    clock.advance(60)
    assert [message.body for message in inbox.receive_many(2)] == ["a", "b"]


def test_a_due_message_is_received_though_thousands_fell_due_before_it(app: Holdfast, clock: FakeClock) -> None:
    app.queue("bulk").send_many(range(2000), delay=1)
    app.queue("inbox").send("mine", delay=2)
    clock.advance(3)
    message = app.queue("inbox").receive()
    assert message is not None and message.body == "mine"


def test_a_message_is_redelivered_though_thousands_of_leases_ended_before_it(app: Holdfast, clock: FakeClock) -> None:
    app.queue("bulk").send_many(range(2000))
    app.queue("bulk").receive_many(1000, visibility=1)
    app.queue("bulk").receive_many(1000, visibility=1)
    app.queue("inbox").send("mine")
    assert app.queue("inbox").receive(visibility=2) is not None
    clock.advance(3)
    assert app.queue("inbox").receive() is not None


# --- in which order ---


def test_messages_come_in_the_order_they_were_sent(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    sent = [inbox.send(number) for number in range(5)]
    assert [message.id for message in inbox.receive_many(5)] == sent


def test_the_order_holds_when_the_wall_clock_steps_back(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    for number in range(5):
        inbox.send(number)
        clock.step(-3600)
    received = [inbox.receive() for _ in range(5)]
    assert [message.body for message in received if message] == [0, 1, 2, 3, 4]


def test_a_released_message_keeps_its_place(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(["first", "second"])
    message = inbox.receive()
    assert message is not None and message.release()
    assert [message.body for message in inbox.receive_many(2)] == ["first", "second"]


def test_a_delayed_message_that_is_due_stands_where_it_was_sent(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("sent first", delay=10)
    inbox.send("sent second")
    clock.advance(10)
    assert [message.body for message in inbox.receive_many(2)] == ["sent first", "sent second"]


def test_the_order_holds_however_many_fall_due_at_once(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("first", delay=10)
    inbox.send_many(range(1200), delay=5)
    clock.advance(10)
    message = inbox.receive()
    assert message is not None and message.body == "first"


def test_the_priority_holds_however_many_fall_due_at_once(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(range(1200), delay=5)
    inbox.send("urgent", delay=10, priority=1)
    clock.advance(10)
    message = inbox.receive()
    assert message is not None and message.body == "urgent"


def test_a_higher_priority_comes_first_and_negative_last(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    for priority in (0, -5, 10, -10, 5):
        inbox.send(priority, priority=priority)
    assert [message.body for message in inbox.receive_many(5)] == [10, 5, 0, -5, -10]


def test_within_a_priority_the_order_is_that_of_sending(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    for body, priority in (("a0", 0), ("a1", 1), ("b0", 0), ("b1", 1)):
        inbox.send(body, priority=priority)
    assert [message.body for message in inbox.receive_many(4)] == ["a1", "b1", "a0", "b0"]


def test_messages_sent_together_come_in_their_order_and_with_their_priority(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(["low 1", "low 2"], priority=-1)
    inbox.send_many(["high 1", "high 2"], priority=1)
    assert [message.body for message in inbox.receive_many(4)] == ["high 1", "high 2", "low 1", "low 2"]


def test_each_thread_sees_its_own_messages_in_order(app: Holdfast) -> None:
    inbox = app.queue("inbox")

    def send(name: str) -> None:
        for number in range(20):
            inbox.send([name, number])

    threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bodies = [message.body for message in inbox.receive_many(60)]
    for name in "abc":
        assert [number for sender, number in bodies if sender == name] == list(range(20))


# --- many at once ---


def test_send_many_returns_the_ids_in_order(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    ids = inbox.send_many(f"body {number}" for number in range(2500))
    assert [app.jobs.get(ids[at]).args for at in (0, 1, 999, 1000, 2499)] == [
        f"body {number}" for number in (0, 1, 999, 1000, 2499)
    ]
    assert sorted(set(ids)) == ids and len(ids) == 2500


def test_sending_none_at_all_is_allowed(app: Holdfast) -> None:
    assert app.queue("inbox").send_many([]) == []


@pytest.mark.parametrize("place", [0, 5, 1500])
def test_one_bad_body_among_many_and_none_is_sent(app: Holdfast, place: int) -> None:
    inbox = app.queue("inbox")
    bodies: list[Any] = [*range(place), float("nan"), "good"]
    with pytest.raises(InvalidPayload):
        inbox.send_many(bodies)
    assert inbox.stats().total == 0


def test_a_generator_that_raises_sends_none(app: Holdfast) -> None:
    inbox = app.queue("inbox")

    def bodies() -> Iterator[int]:
        yield from range(1500)
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        inbox.send_many(bodies())
    assert inbox.stats().total == 0
    inbox.send("still works")


def test_a_generator_that_itself_sends_does_not_wait_for_itself(app: Holdfast) -> None:
    """It either works or is refused with an error: what it must not do is hang."""
    outcome: list[object] = []

    def send_all() -> None:
        bodies = (app.queue("log").send(number) for number in range(1500))
        try:
            outcome.append(app.queue("inbox").send_many(bodies))
        except StoreError as error:
            outcome.append(error)

    thread = threading.Thread(target=send_all, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert outcome, "send_many hangs"


def test_receive_many_takes_no_more_than_asked(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(range(5))
    assert [message.body for message in inbox.receive_many(2)] == [0, 1]
    assert [message.body for message in inbox.receive_many(10)] == [2, 3, 4]


def test_message_ids_only_ever_grow(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    ids = [inbox.send(1), *inbox.send_many([2, 3]), inbox.send(4)]
    inbox.purge()
    ids.append(inbox.send(5))
    assert all(first < second for first, second in itertools.pairwise(ids))


# --- which kind ---


def test_receive_takes_messages_only(app: Holdfast) -> None:
    @app.task(queue="shared")
    def work() -> None: ...

    work.enqueue()
    app.queue("shared").send("a message")
    assert [message.body for message in app.queue("shared").receive_many(10)] == ["a message"]


def test_a_worker_takes_tasks_only(app: Holdfast) -> None:
    @app.task(queue="shared")
    def work() -> None: ...

    app.queue("shared").send("a message")
    job = work.enqueue()
    claimed = claim_tasks(app.store, ["shared"], ["work"], 10, 1_000_000, "worker-1")
    assert [(one.id, one.task) for one in claimed] == [(job.id, "work")]
