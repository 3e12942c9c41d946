"""`app.queues()`, and `app.jobs.count()`."""

from collections.abc import Callable

import pytest

from holdfast import Holdfast
from holdfast.clock import as_datetime
from holdfast.errors import InvalidInput
from holdfast.model.job import Claimed
from holdfast.model.stats import QueueOverview
from holdfast.testing import FakeClock


def test_a_new_database_has_no_queues(app: Holdfast) -> None:
    assert app.queues() == []


def test_tasks_and_messages_of_a_queue_are_counted_together(
    app: Holdfast, clock: FakeClock, claim: Callable[..., Claimed]
) -> None:
    work = app.task(name="work", queue="b")(lambda: None)
    work.enqueue()
    claim("work")
    clock.advance(5)
    work.enqueue()
    clock.advance(2)
    app.queue("b").send_many([1, 2])
    app.queue("b").send(3, delay=60)
    app.external("approve", queue="b")
    app.queue("a", max_attempts=1).send(4)
    message = app.queue("a").receive()
    assert message is not None and message.fail("TEST")
    clock.advance(1)
    assert app.queues() == [
        QueueOverview("a", ready=0, scheduled=0, blocked=0, running=0, failed=1, oldest_ready_age=None, paused=False),
        QueueOverview("b", ready=3, scheduled=1, blocked=1, running=1, failed=0, oldest_ready_age=3.0, paused=False),
    ]


def test_what_has_ended_well_does_not_count(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many([1, 2])
    message = inbox.receive()
    assert message is not None and message.ack()
    app.jobs.cancel(2)
    assert app.queues() == []


def test_a_paused_queue_is_there_though_it_is_empty(app: Holdfast) -> None:
    app.queue("inbox").pause()
    (inbox,) = app.queues()
    assert (inbox.name, inbox.paused, inbox.ready) == ("inbox", True, 0)
    app.queue("inbox").resume()
    (inbox,) = app.queues()
    assert not inbox.paused


def test_count_takes_the_filters_of_list(app: Holdfast) -> None:
    app.queue("a").send_many(range(3))
    app.queue("b").send_many(range(2), delay=60)
    assert app.jobs.count() == 5
    assert app.jobs.count(queue="a") == 3
    assert app.jobs.count(status=["ready", "scheduled"], queue="b") == 2
    assert app.jobs.count(task="work") == 0
    with pytest.raises(InvalidInput, match="unknown filter"):
        app.jobs.count(quue="a")  # type: ignore[call-arg]


def test_a_paused_queue_tells_since_when_by_whom_and_why(app: Holdfast, clock: FakeClock) -> None:
    app.queue("mail").pause(actor="ada", reason="smtp is down")
    since = clock.now()
    clock.advance(60)
    (found,) = app.queues()
    assert (found.paused, found.paused_at) == (True, as_datetime(since))
    assert (found.paused_by, found.pause_reason) == ("ada", "smtp is down")
    app.queue("mail").resume()
    (found,) = app.queues()
    assert (found.paused, found.paused_at, found.paused_by, found.pause_reason) == (False, None, None, None)
    app.queue("mail").pause(actor="bob")
    assert (app.queues()[0].paused_by, app.queues()[0].pause_reason) == ("bob", None)
