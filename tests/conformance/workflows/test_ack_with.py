"""Messages: the consumer's writes and the acknowledgement commit together, or neither does."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Message, Queue
from holdfast.errors import LeaseLost, TransactionError
from holdfast.testing import FakeClock
from support.flow import Events, Flow, Sql
from support.plain import filled
from support.running_worker import drain


@pytest.fixture(params=[True, False], ids=["history", "no history"])
def inbox(app: Holdfast, sql: Sql, request: pytest.FixtureRequest) -> Queue[Any]:
    sql("CREATE TABLE ledger (message INTEGER, delivery INTEGER)")
    return app.queue("inbox", visibility=30, max_attempts=3, history=request.param)


def receive(inbox: Queue[Any]) -> Message[Any]:
    message = inbox.receive()
    assert message is not None
    return message


def write(message: Message[Any], tx: Any) -> None:
    tx.execute(filled("INSERT INTO ledger VALUES (?, ?)", message.id, message.attempt))


def ledger(sql: Sql) -> list[Any]:
    return sql("SELECT message, delivery FROM ledger ORDER BY message, delivery")


def test_the_writes_and_the_ack_are_there_together(app: Holdfast, inbox: Queue[Any], flow: Flow, sql: Sql) -> None:
    inbox.send("hello")
    message = receive(inbox)
    with message.ack_with() as tx:
        write(message, tx)
        flow.job("child", conn=tx)
        inbox.send("answer", conn=tx)
        assert ledger(sql) == []
        assert sql("SELECT status FROM holdfast_jobs") == [("running",)]
    assert ledger(sql) == [(message.id, 1)]
    assert (inbox.stats().ready, inbox.stats().running) == (1, 0)
    kept = [("succeeded",)] if inbox._history else []
    assert sql("SELECT status FROM holdfast_jobs WHERE id = ?", (message.id,)) == kept
    drain(app)
    assert flow.ran == ["child"]
    assert receive(inbox).body == "answer"


def test_the_history_is_that_of_an_ack(app: Holdfast, inbox: Queue[Any], events: Events) -> None:
    plain, together = inbox.send_many(["plain", "together"])
    receive(inbox).ack()
    with receive(inbox).ack_with():
        pass
    assert events(together) == events(plain)
    assert [entry.name for entry in app.store.jobs.history(together)] == [
        entry.name for entry in app.store.jobs.history(plain)
    ]


def test_an_exception_undoes_the_writes_and_the_message_is_still_held(inbox: Queue[Any], sql: Sql) -> None:
    inbox.send("hello")
    message = receive(inbox)
    with pytest.raises(ConnectionError), message.ack_with() as tx:
        write(message, tx)
        raise ConnectionError
    assert (ledger(sql), inbox.stats().running) == ([], 1)
    assert inbox.receive() is None, "it is this consumer's still"
    with message.ack_with() as tx:
        write(message, tx)
    assert (ledger(sql), inbox.stats().total) == ([(message.id, 1)], 0)


def test_after_a_failed_block_it_may_be_released_or_fails(inbox: Queue[Any], sql: Sql) -> None:
    inbox.send_many(["first", "second"])
    for settle in (lambda message: message.release(), lambda message: message.fail("A:B")):
        message = receive(inbox)
        with pytest.raises(ConnectionError), message.ack_with() as tx:
            write(message, tx)
            raise ConnectionError
        assert settle(message)
    assert ledger(sql) == []
    assert (inbox.stats().ready, inbox.stats().failed) == (1, 1)


def lose(app: Holdfast, clock: FakeClock, inbox: Queue[Any], message: Message[Any], how: str) -> None:
    if how == "acknowledged":
        assert message.ack()
    elif how == "released":
        assert message.release()
    elif how == "failed":
        assert message.fail("A:B")
    elif how == "cancelled":
        assert app.jobs.cancel(message.id)
    elif how == "purged":
        inbox.purge()
    else:  # delivered again
        clock.advance(31)
        assert receive(inbox).attempt == 2


@pytest.mark.parametrize("how", ["acknowledged", "released", "failed", "cancelled", "purged", "delivered again"])
def test_a_consumer_that_is_too_late_stores_nothing_and_is_told(
    app: Holdfast, inbox: Queue[Any], sql: Sql, clock: FakeClock, how: str
) -> None:
    inbox.send("hello")
    message = receive(inbox)
    lose(app, clock, inbox, message, how)
    before = sql("SELECT id, status, attempt FROM holdfast_jobs ORDER BY id")
    entered: list[bool] = []
    with pytest.raises(LeaseLost, match=f"message {message.id} is not held by delivery 1"), message.ack_with() as tx:
        entered.append(True)
        write(message, tx)
    assert (entered, ledger(sql)) == ([], [])
    assert sql("SELECT id, status, attempt FROM holdfast_jobs ORDER BY id") == before


def test_the_lease_is_scanned_again_when_the_block_ends(inbox: Queue[Any], sql: Sql) -> None:
    inbox.send("hello")
    message = receive(inbox)
    with pytest.raises(LeaseLost), message.ack_with() as tx:
        write(message, tx)
        tx.execute(filled("UPDATE holdfast_jobs SET attempt = attempt + 1 WHERE id = ?", message.id))
    assert ledger(sql) == []
    assert message.ack(), "all of the block was undone"


def test_a_message_that_nobody_else_took_is_held_after_its_time(
    inbox: Queue[Any], sql: Sql, clock: FakeClock
) -> None:
    inbox.send("hello")
    message = receive(inbox)
    clock.advance(1000)
    with message.ack_with() as tx:
        write(message, tx)
    assert (ledger(sql), inbox.stats().total) == ([(message.id, 1)], 0)


def test_a_message_is_acknowledged_once(inbox: Queue[Any], sql: Sql) -> None:
    inbox.send("hello")
    message = receive(inbox)
    with message.ack_with() as tx:
        write(message, tx)
    for again in range(2):
        with pytest.raises(LeaseLost), message.ack_with() as tx:
            write(message, tx)
        assert message.ack() is False, again
    assert ledger(sql) == [(message.id, 1)]


def test_several_messages_in_blocks_within_each_other_are_refused(inbox: Queue[Any], sql: Sql) -> None:
    inbox.send_many(["first", "second"])
    first, second = receive(inbox), receive(inbox)
    with pytest.raises(TransactionError), first.ack_with() as tx:
        write(first, tx)
        with second.ack_with():
            pass
    assert (ledger(sql), inbox.stats().running) == ([], 2)


def test_what_would_wait_for_the_block_is_refused_in_it(app: Holdfast, inbox: Queue[Any], flow: Flow) -> None:
    inbox.send("hello")
    message = receive(inbox)
    would_wait: list[Callable[[], Any]] = [message.ack, lambda: flow.job("child"), lambda: inbox.send("answer")]
    with message.ack_with():
        for call in would_wait:
            with pytest.raises(TransactionError):
                call()
    assert app.jobs.count(task="step") == 0
