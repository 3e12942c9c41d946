"""An operation by filter acts on what fits when it acts, not on what fitted when it looked."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store.listing import Listing


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Lets something happen right after an operation has looked for the jobs that fit."""

    def arrange(happening: Callable[[], Any]) -> None:
        look, waiting = Listing.steps, [happening]

        def look_and_let_happen(*args: Any) -> Any:
            for step in look(*args):
                if waiting:
                    waiting.pop()()
                yield step

        monkeypatch.setattr(Listing, "steps", look_and_let_happen)

    return arrange


Meanwhile = Callable[[Callable[[], Any]], None]


def test_a_purge_of_the_dead_spares_a_message_that_was_just_revived(app: Holdfast, meanwhile: Meanwhile) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    id = inbox.send("x")
    message = inbox.receive()
    assert message is not None and message.release()
    meanwhile(lambda: app.jobs.retry(id))
    inbox.purge(dead_only=True)
    assert app.store.jobs.get(id) is not None


def test_a_cancellation_of_the_waiting_spares_a_job_that_has_just_started(
    app: Holdfast, meanwhile: Meanwhile
) -> None:
    id = app.queue("inbox").send("x")
    meanwhile(lambda: app.queue("inbox").receive())
    app.jobs.cancel(status="ready")
    assert app.jobs.get(id).status == "running"


def test_a_deletion_of_the_failed_spares_a_job_that_was_just_retried(app: Holdfast, meanwhile: Meanwhile) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    id = inbox.send("x")
    message = inbox.receive()
    assert message is not None and message.release()
    meanwhile(lambda: app.jobs.retry(id))
    app.jobs.delete(status="failed")
    assert app.store.jobs.get(id) is not None
