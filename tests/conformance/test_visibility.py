"""Settling a message: ack, extend and release, each fenced by the attempt, and what happens without them."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Message, Queue
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock
from support.transitions import claim_tasks

Settle = Callable[[Queue[Any], int, int], bool]

SETTLES: dict[str, Settle] = {
    "ack": lambda queue, id, attempt: queue.ack(id, attempt),
    "extend": lambda queue, id, attempt: queue.extend(id, attempt, 60),
    "extend by nothing": lambda queue, id, attempt: queue.extend(id, attempt, 0),
    "release": lambda queue, id, attempt: queue.release(id, attempt),
    "release with delay": lambda queue, id, attempt: queue.release(id, attempt, delay=60),
    "fail": lambda queue, id, attempt: queue.fail(id, attempt, "INVALID_INPUT:POISON"),
}


@pytest.fixture(params=SETTLES.values(), ids=SETTLES.keys())
def settle(request: pytest.FixtureRequest) -> Settle:
    found: Settle = request.param
    return found


@pytest.fixture
def inbox(app: Holdfast) -> Queue[Any]:
    return app.queue("inbox", visibility=30, max_attempts=3)


def take(queue: Queue[Any], **how: Any) -> Message[Any]:
    message = queue.receive(**how)
    assert message is not None
    return message


# --- the fence ---


def test_the_holder_may_settle(inbox: Queue[Any], settle: Settle) -> None:
    inbox.send("work")
    message = take(inbox)
    assert settle(inbox, message.id, message.attempt) is True


def test_after_a_redelivery_the_first_consumer_is_told_no(
    app: Holdfast, inbox: Queue[Any], clock: FakeClock, settle: Settle
) -> None:
    inbox.send("work")
    slow = take(inbox)
    clock.advance(31)
    take(inbox)
    before, history = app.store.jobs.get(slow.id), app.store.jobs.history(slow.id)
    assert settle(inbox, slow.id, slow.attempt) is False
    assert app.store.jobs.get(slow.id) == before
    assert app.store.jobs.history(slow.id) == history


def test_after_an_ack_nothing_more_can_be_settled(app: Holdfast, inbox: Queue[Any], settle: Settle) -> None:
    inbox.send("work")
    message = take(inbox)
    message.ack()
    before = app.store.jobs.get(message.id)
    assert settle(inbox, message.id, message.attempt) is False
    assert app.store.jobs.get(message.id) == before


def test_after_a_release_nothing_more_can_be_settled(inbox: Queue[Any], settle: Settle) -> None:
    inbox.send("work")
    message = take(inbox)
    message.release()
    assert settle(inbox, message.id, message.attempt) is False


def test_after_a_purge_nothing_more_can_be_settled(inbox: Queue[Any], settle: Settle) -> None:
    inbox.send("work")
    message = take(inbox)
    inbox.purge()
    assert settle(inbox, message.id, message.attempt) is False


def test_an_attempt_that_never_was_cannot_be_settled(inbox: Queue[Any], settle: Settle) -> None:
    inbox.send("work")
    message = take(inbox)
    assert settle(inbox, message.id, message.attempt + 1) is False


def test_a_message_that_was_not_received_cannot_be_settled(inbox: Queue[Any], settle: Settle) -> None:
    sent = inbox.send("work")
    assert settle(inbox, sent, 1) is False
    assert take(inbox).attempt == 1


def test_a_message_that_never_was_cannot_be_settled(inbox: Queue[Any], settle: Settle) -> None:
    assert settle(inbox, 12345, 1) is False


def test_a_message_cannot_be_settled_by_way_of_another_queue(
    app: Holdfast, inbox: Queue[Any], settle: Settle
) -> None:
    inbox.send("work")
    message = take(inbox)
    assert settle(app.queue("outbox"), message.id, message.attempt) is False
    assert settle(inbox, message.id, message.attempt) is True


def test_a_task_cannot_be_settled_by_way_of_its_queue(app: Holdfast, inbox: Queue[Any], settle: Settle) -> None:
    job = app.task(name="work", queue="inbox")(lambda: None).enqueue()
    claim_tasks(app.store, ["inbox"], ["work"], 1, 30_000_000, "worker-1")
    assert settle(inbox, job.id, 1) is False
    assert job.refresh().status == "running"


def test_another_process_may_settle_by_id_and_attempt(
    inbox: Queue[Any], open_app: Callable[..., Holdfast], clock: FakeClock, settle: Settle
) -> None:
    inbox.send("work")
    message = take(inbox)
    elsewhere = open_app(clock=clock).queue("inbox")
    assert settle(elsewhere, message.id, message.attempt) is True


def test_without_history_the_fence_is_the_same(app: Holdfast, clock: FakeClock, settle: Settle) -> None:
    fast = app.queue("fast", history=False)
    fast.send("work")
    slow = take(fast)
    clock.advance(31)
    quick = take(fast)
    assert settle(fast, slow.id, slow.attempt) is False
    assert settle(fast, quick.id, quick.attempt) is True


# --- visibility ---


def test_a_message_stays_hidden_for_its_visibility(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("work")
    take(inbox)
    clock.advance(29.999)
    assert inbox.receive() is None
    clock.advance(0.001)
    assert take(inbox).attempt == 2


def test_visibility_can_be_set_for_one_receive(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("work")
    take(inbox, visibility=5)
    clock.advance(5)
    assert take(inbox).attempt == 2


def test_a_visibility_of_zero_gives_the_message_back_at_once(inbox: Queue[Any]) -> None:
    inbox.send("work")
    assert take(inbox, visibility=0).attempt == 1
    assert take(inbox).attempt == 2


def test_a_queue_with_a_visibility_of_zero_only_looks(app: Holdfast) -> None:
    peek = app.queue("inbox", visibility=0, max_attempts=10)
    peek.send("work")
    assert [take(peek).body for _ in range(3)] == ["work", "work", "work"]


def test_extend_counts_from_now(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("work")
    message = take(inbox)
    clock.advance(20)
    assert message.extend(30)
    clock.advance(29)
    assert inbox.receive() is None
    clock.advance(1)
    assert take(inbox).attempt == 2


def test_extend_can_shorten_too(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("work")
    take(inbox).extend(1)
    clock.advance(1)
    assert take(inbox).attempt == 2


def test_extend_by_zero_gives_the_message_back_now(inbox: Queue[Any]) -> None:
    inbox.send("work")
    assert take(inbox).extend(0) is True
    assert take(inbox).attempt == 2


def test_release_gives_the_message_back_now(inbox: Queue[Any]) -> None:
    inbox.send("work")
    assert take(inbox).release() is True
    assert take(inbox).attempt == 2


def test_release_with_a_delay_gives_it_back_later(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("work")
    take(inbox).release(delay=10)
    clock.advance(9)
    assert inbox.receive() is None
    clock.advance(1)
    assert take(inbox).attempt == 2


def test_fail_makes_it_a_dead_letter_with_a_code_of_ones_own(
    app: Holdfast, inbox: Queue[Any], clock: FakeClock
) -> None:
    inbox.send("poison")
    assert take(inbox).fail("INVALID_INPUT:POISON", "x" * 1000) is True
    clock.advance(10_000)
    assert inbox.receive() is None
    (dead,) = inbox.dead_letters()
    assert (dead.attempt, dead.error_code, len(dead.error_detail or "")) == (1, "INVALID_INPUT:POISON", 500)


def test_fail_with_a_bad_code_is_refused_and_the_lease_kept(inbox: Queue[Any]) -> None:
    inbox.send("poison")
    message = take(inbox)
    with pytest.raises(InvalidInput, match="CATEGORY:SUBCATEGORY"):
        message.fail("no code")
    assert message.ack() is True


# --- until the attempts are spent ---


def test_a_message_is_delivered_max_attempts_times_and_then_is_dead(inbox: Queue[Any], clock: FakeClock) -> None:
    inbox.send("poison")
    for attempt in (1, 2, 3):
        assert take(inbox).attempt == attempt
        clock.advance(30)
    assert inbox.receive() is None
    (dead,) = inbox.dead_letters()
    assert (dead.status, dead.attempt, dead.error_code) == ("failed", 3, "TIMEOUT:VISIBILITY")


@pytest.mark.parametrize("give_back", ["release", "extend"])
def test_giving_back_the_last_attempt_makes_it_dead(app: Holdfast, give_back: str) -> None:
    once = app.queue("once", max_attempts=1)
    once.send("work")
    message = take(once)
    assert (message.release() if give_back == "release" else message.extend(0)) is True
    assert once.receive() is None
    assert [dead.id for dead in once.dead_letters()] == [message.id]


def test_looking_with_no_visibility_spends_attempts_as_well(app: Holdfast) -> None:
    once = app.queue("once", max_attempts=1)
    once.send("work")
    take(once, visibility=0)
    assert once.receive() is None
    assert len(once.dead_letters()) == 1


def test_the_last_attempt_can_still_be_acknowledged(app: Holdfast) -> None:
    once = app.queue("once", max_attempts=1)
    once.send("work")
    message = take(once)
    assert message.ack() is True
    assert app.jobs.get(message.id).status == "succeeded"
