"""Dead letters: kept, never delivered again, until somebody requeues or purges them."""

from collections.abc import Callable

import pytest

from holdfast import Holdfast, Queue
from holdfast.errors import InvalidPayload
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, recover


@pytest.fixture
def inbox(app: Holdfast) -> Queue[str]:
    return app.queue("inbox", type=str, max_attempts=2)


@pytest.fixture
def bury(inbox: Queue[str]) -> Callable[..., list[int]]:
    """Sends messages and lets all their attempts be spent."""

    def send_and_spend(*bodies: str) -> list[int]:
        ids = inbox.send_many(bodies)
        for _ in range(2):
            for message in inbox.receive_many(len(bodies)):
                message.release()
        return ids

    return send_and_spend


Bury = Callable[..., list[int]]


def test_dead_letters_are_listed_newest_first(inbox: Queue[str], bury: Bury) -> None:
    ids = bury("a", "b", "c")
    dead = inbox.dead_letters()
    assert [one.id for one in dead] == ids[::-1]
    assert [one.args for one in dead] == ["c", "b", "a"]


def test_dead_letters_can_be_read_page_by_page(inbox: Queue[str], bury: Bury) -> None:
    ids = bury("a", "b", "c")
    first = inbox.dead_letters(limit=2)
    second = inbox.dead_letters(limit=2, before=first[-1].id)
    assert [one.id for one in [*first, *second]] == ids[::-1]


def test_dead_letters_of_another_queue_are_not_listed(app: Holdfast, bury: Bury) -> None:
    bury("a")
    assert app.queue("other").dead_letters() == []


def test_failed_tasks_of_the_queue_are_no_dead_letters(app: Holdfast, inbox: Queue[str]) -> None:
    @app.task(queue="inbox", max_attempts=1)
    def work() -> None: ...

    work.enqueue()
    claim_tasks(app.store, ["inbox"], ["work"], 1, 0, "worker-1")
    recover(app.store)
    assert app.jobs.list(status="failed", queue="inbox")
    assert inbox.dead_letters() == []


def test_a_dead_letter_is_never_delivered_again(inbox: Queue[str], bury: Bury, clock: FakeClock) -> None:
    bury("a")
    clock.advance(365 * 24 * 3600)
    assert inbox.receive() is None


def test_a_dead_letter_says_why(inbox: Queue[str], bury: Bury) -> None:
    bury("a")
    (dead,) = inbox.dead_letters()
    assert dead.error_code == "INTERNAL:ATTEMPTS_SPENT"
    assert dead.error_detail


def test_a_loop_over_dead_letters_goes_on_if_one_cannot_be_decoded(
    app: Holdfast, inbox: Queue[str], bury: Bury, sql: Callable[..., object]
) -> None:
    bury("whole")
    sql("INSERT INTO holdfast_jobs (queue, args) VALUES ('inbox', 'no JSON'), ('inbox', '7')")
    assert inbox.receive() is None
    letters = inbox.dead_letters()
    assert [letter.raw_args for letter in letters] == [b"7", b"no JSON", b'"whole"']
    with pytest.raises(InvalidPayload):
        letters[1].args  # noqa: B018  a property


def test_requeue_delivers_all_again(inbox: Queue[str], bury: Bury) -> None:
    bury("a", "b")
    assert inbox.requeue() == 2
    assert [message.body for message in inbox.receive_many(10)] == ["a", "b"]
    assert inbox.dead_letters() == []


def test_requeue_delivers_some_again(inbox: Queue[str], bury: Bury) -> None:
    first, second, third = bury("a", "b", "c")
    assert inbox.requeue([first, third]) == 2
    assert [message.id for message in inbox.receive_many(10)] == [first, third]
    assert [dead.id for dead in inbox.dead_letters()] == [second]


def test_requeue_of_none_requeues_none(inbox: Queue[str], bury: Bury) -> None:
    bury("a")
    assert inbox.requeue([]) == 0


def test_requeue_with_a_delay_delivers_later(inbox: Queue[str], bury: Bury, clock: FakeClock) -> None:
    bury("a")
    inbox.requeue(delay=60)
    assert inbox.receive() is None
    clock.advance(60)
    assert inbox.receive() is not None


def test_after_requeue_the_attempt_counter_goes_on(inbox: Queue[str], bury: Bury) -> None:
    bury("a")
    inbox.requeue()
    message = inbox.receive()
    assert message is not None and message.attempt == 3


def test_after_requeue_there_are_as_many_attempts_as_for_a_new_message(inbox: Queue[str], bury: Bury) -> None:
    (id,) = bury("a")
    inbox.requeue()
    for attempt in (3, 4):
        message = inbox.receive()
        assert message is not None and message.attempt == attempt
        message.release()
    assert inbox.receive() is None
    assert [dead.id for dead in inbox.dead_letters()] == [id]


def test_requeue_leaves_what_is_not_dead(app: Holdfast, inbox: Queue[str]) -> None:
    ready = inbox.send("ready")
    assert inbox.requeue([ready]) == 0
    assert app.jobs.get(ready).attempt == 0


def test_requeue_leaves_the_dead_of_other_queues(app: Holdfast, bury: Bury) -> None:
    ids = bury("a")
    assert app.queue("other").requeue(ids) == 0


def test_thousands_of_dead_letters_are_requeued(app: Holdfast) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    inbox.send_many(range(2500))
    while messages := inbox.receive_many(1000, visibility=0):
        assert len(messages) <= 1000
    recover(app.store)
    assert inbox.requeue() == 2500
    assert inbox.stats().ready == 2500


def test_requeue_names_who_did_it(app: Holdfast, inbox: Queue[str], bury: Bury) -> None:
    (id,) = bury("a")
    inbox.requeue(actor="ada")
    (entry,) = [entry for entry in app.jobs.history(id) if entry.name == "requeued"]
    assert entry.actor == "ada"


# --- purge ---


def test_purge_deletes_every_message_in_whatever_state(inbox: Queue[str], bury: Bury) -> None:
    bury("dead")
    inbox.send_many(["running", "ready"])
    inbox.send("scheduled", delay=60)
    inbox.receive()
    assert inbox.purge() == 4
    assert inbox.stats().total == 0
    assert inbox.receive() is None


def test_purge_of_the_dead_leaves_the_living(inbox: Queue[str], bury: Bury) -> None:
    bury("dead 1", "dead 2")
    living = inbox.send("ready")
    assert inbox.purge(dead_only=True) == 2
    assert inbox.dead_letters() == []
    message = inbox.receive()
    assert message is not None and message.id == living


def test_purge_leaves_the_history_of_what_was_acknowledged(app: Holdfast, inbox: Queue[str]) -> None:
    done, waiting = inbox.send_many(["done", "waiting"])
    message = inbox.receive()
    assert message is not None and message.ack()
    assert inbox.purge() == 1
    assert [job.id for job in app.jobs.list()] == [done] != [waiting]


def test_purge_leaves_other_queues_and_tasks(app: Holdfast, inbox: Queue[str]) -> None:
    @app.task(queue="inbox")
    def work() -> None: ...

    job = work.enqueue()
    other = app.queue("other").send("stays")
    inbox.send("goes")
    assert inbox.purge() == 1
    assert [job.id, other] == sorted(one.id for one in app.jobs.list())


def test_a_purge_is_in_the_log_with_its_actor(
    inbox: Queue[str], sql: Callable[..., list[tuple[object, ...]]]
) -> None:
    inbox.send_many(["a", "b"])
    inbox.purge(actor="ada")
    assert sql("SELECT event, actor FROM holdfast_events WHERE event = 'purged'") == [("purged", "ada")]
