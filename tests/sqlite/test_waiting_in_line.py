"""Time that passes while a thread waits for its turn to write is not taken from what it asked for."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing import FakeClock
from support.running_worker import PATIENCE_SECONDS, eventually
from support.transitions import claim_tasks, recover


@pytest.fixture
def late(app: Holdfast, clock: FakeClock) -> Callable[[Callable[[], Any]], Any]:
    """Makes a call that has to wait for its turn, in which 100 seconds pass."""

    def make(call: Callable[[], Any]) -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(call()))
        queue = app.store.database._engine.writer._queue  # type: ignore[attr-defined]
        with app.transaction():
            thread.start()
            eventually(lambda: queue.pending or queue.exclusive, "the thread is in the queue")
            clock.advance(100)
        thread.join(PATIENCE_SECONDS)
        return results[0]

    return make


Late = Callable[[Callable[[], Any]], Any]


def test_a_message_is_hidden_for_its_whole_visibility_after_its_delivery(
    app: Holdfast, clock: FakeClock, late: Late
) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send("x")
    message = late(inbox.receive)
    assert message is not None
    clock.advance(29)
    assert inbox.receive() is None


def test_a_job_is_leased_for_the_whole_time_after_its_claim(app: Holdfast, clock: FakeClock, late: Late) -> None:
    app.task(name="work")(lambda: None).enqueue()
    assert len(late(lambda: claim_tasks(app.store, None, ["work"], 1, 30_000_000, "worker-1"))) == 1
    clock.advance(29)
    assert recover(app.store) == 0


def test_an_extension_counts_from_when_it_is_made(app: Holdfast, clock: FakeClock, late: Late) -> None:
    inbox = app.queue("inbox", visibility=10_000)
    inbox.send("x")
    message = inbox.receive()
    assert message is not None
    assert late(lambda: message.extend(30)) is True
    clock.advance(29)
    assert inbox.receive() is None


def test_a_delay_counts_from_when_the_message_is_stored(app: Holdfast, clock: FakeClock, late: Late) -> None:
    inbox = app.queue("inbox")
    late(lambda: inbox.send("x", delay=30))
    clock.advance(29)
    assert inbox.receive() is None
    clock.advance(1)
    assert inbox.receive() is not None
