"""Messages: sending, receiving, settling, and what becomes of those that nobody settles."""

from holdfast import Holdfast
from holdfast.testing import FakeClock


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
