"""Keys: one live job per key, for as long as it lives, or longer, or with newer arguments."""

import threading
from collections.abc import Callable

import pytest

from holdfast import Holdfast, Task
from holdfast.model.job import Claimed
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, recover, snooze, succeed

Claim = Callable[..., Claimed]


@pytest.fixture
def work(app: Holdfast) -> Task[[int], None]:
    @app.task
    def work(x: int) -> None: ...

    return work


def test_a_second_enqueue_with_the_key_returns_the_first_job(app: Holdfast, work: Task[[int], None]) -> None:
    first, second = work.using(key="k").enqueue(1), work.using(key="k").enqueue(2)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second.id == first.id
    assert [job.args for job in app.jobs.list()] == [{"x": 1}]


def test_without_a_key_nothing_is_deduplicated(app: Holdfast, work: Task[[int], None]) -> None:
    assert work.enqueue(1).deduplicated is False
    assert work.enqueue(1).deduplicated is False
    assert len(app.jobs.list()) == 2


def test_another_key_is_another_job(work: Task[[int], None]) -> None:
    assert work.using(key="a").enqueue(1).id != work.using(key="b").enqueue(1).id


def test_the_same_key_of_another_task_is_another_job(app: Holdfast, work: Task[[int], None]) -> None:
    @app.task
    def other(x: int) -> None: ...

    assert work.using(key="k").enqueue(1).id != other.using(key="k").enqueue(1).id


def test_the_same_key_and_task_on_another_queue_is_the_same_job(work: Task[[int], None]) -> None:
    first = work.using(key="k").enqueue(1)
    assert work.using(key="k", queue="elsewhere").enqueue(1).id == first.id


@pytest.mark.parametrize("state", ["scheduled", "running", "waiting for its retry"])
def test_a_job_holds_its_key_in_every_live_state(
    work: Task[[int], None], claim: Claim, state: str, app: Holdfast
) -> None:
    job = work.using(key="k", delay=60 if state == "scheduled" else 0).enqueue(1)
    if state != "scheduled":
        claimed = claim("work")
        if state != "running":
            snooze(app.store, claimed.lease, 1_000_000)
    again = work.using(key="k").enqueue(2)
    assert (again.id, again.deduplicated) == (job.id, True)


@pytest.mark.parametrize("end", ["succeeded", "cancelled", "failed", "deleted"])
def test_a_key_is_free_again_when_its_job_has_ended(
    app: Holdfast, work: Task[[int], None], claim: Claim, end: str
) -> None:
    first = work.using(key="k", max_attempts=1).enqueue(1)
    if end == "deleted":
        app.jobs.delete(first.id)
    elif end == "cancelled":
        app.jobs.cancel(first.id)
    elif end == "failed":
        claim("work", lease=0)
        recover(app.store)
    else:
        succeed(app.store, claim("work").lease)
    second = work.using(key="k").enqueue(2)
    assert (second.id != first.id, second.deduplicated) == (True, False)


def test_the_existing_job_is_returned_as_it_is_now(app: Holdfast, work: Task[[int], None], claim: Claim) -> None:
    work.using(key="k", priority=7).enqueue(1)
    claim("work")
    again = work.using(key="k").enqueue(2)
    assert (again.status, again.attempt, again.priority, again.args) == ("running", 1, 7, {"x": 1})


def test_many_threads_with_one_key_make_one_job(app: Holdfast, work: Task[[int], None]) -> None:
    barrier, found = threading.Barrier(8), list[tuple[int, bool]]()

    def enqueue(number: int) -> None:
        barrier.wait()
        job = work.using(key="k").enqueue(number)
        found.append((job.id, job.deduplicated))

    threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for id, _ in found}) == 1
    assert sorted(deduplicated for _, deduplicated in found) == [False] + [True] * 7
    assert len(app.jobs.list()) == 1


# --- messages ---


def test_a_second_message_with_the_key_returns_the_first_id(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    assert inbox.send("a", key="k") == inbox.send("b", key="k")
    assert [message.body for message in inbox.receive_many(10)] == ["a"]


def test_a_messages_key_belongs_to_its_queue(app: Holdfast) -> None:
    assert app.queue("a").send(1, key="k") != app.queue("b").send(1, key="k")


def test_a_messages_key_and_a_tasks_key_do_not_meet(app: Holdfast, work: Task[[int], None]) -> None:
    message = app.queue("default").send(1, key="k")
    assert work.using(key="k").enqueue(1).id != message


@pytest.mark.parametrize("history", [True, False])
def test_a_messages_key_is_free_after_its_ack(app: Holdfast, history: bool) -> None:
    inbox = app.queue("inbox", history=history)
    first = inbox.send("a", key="k")
    message = inbox.receive()
    assert message is not None and message.ack()
    assert inbox.send("b", key="k") != first


# --- key_window ---


def test_within_the_window_a_finished_job_counts_too(
    app: Holdfast, work: Task[[int], None], claim: Claim, clock: FakeClock
) -> None:
    first = work.using(key="k").enqueue(1)
    succeed(app.store, claim("work").lease)
    clock.advance(59)
    again = work.using(key="k", key_window=60).enqueue(2)
    assert (again.id, again.deduplicated, again.status) == (first.id, True, "succeeded")


def test_after_the_window_a_finished_job_no_longer_counts(
    app: Holdfast, work: Task[[int], None], claim: Claim, clock: FakeClock
) -> None:
    first = work.using(key="k").enqueue(1)
    succeed(app.store, claim("work").lease)
    clock.advance(61)
    again = work.using(key="k", key_window=60).enqueue(2)
    assert (again.id != first.id, again.deduplicated) == (True, False)


def test_the_window_counts_from_the_end_of_the_job(
    app: Holdfast, work: Task[[int], None], claim: Claim, clock: FakeClock
) -> None:
    first = work.using(key="k").enqueue(1)
    clock.advance(1000)
    succeed(app.store, claim("work").lease)
    assert work.using(key="k", key_window=60).enqueue(2).id == first.id


def test_the_window_of_one_enqueue_does_not_bind_the_next(
    app: Holdfast, work: Task[[int], None], claim: Claim
) -> None:
    work.using(key="k", key_window=60).enqueue(1)
    succeed(app.store, claim("work").lease)
    assert work.using(key="k").enqueue(2).deduplicated is False


def test_within_the_window_a_live_job_comes_before_a_finished_one(
    app: Holdfast, work: Task[[int], None], claim: Claim
) -> None:
    work.using(key="k").enqueue(1)
    succeed(app.store, claim("work").lease)
    live = work.using(key="k", delay=60).enqueue(2)
    again = work.using(key="k", key_window=60, on_conflict="replace").enqueue(3)
    assert again.id == live.id
    assert live.refresh().args == {"x": 3}


# --- replace ---


def test_replace_gives_a_waiting_job_new_arguments_and_time(
    app: Holdfast, work: Task[[int], None], claim: Claim, clock: FakeClock
) -> None:
    debounced = work.using(key="k", delay=10, on_conflict="replace")
    first = debounced.enqueue(1)
    clock.advance(9)
    second = debounced.enqueue(2)
    assert (second.id, second.deduplicated, second.args) == (first.id, True, {"x": 2})
    clock.advance(9)
    assert claim_tasks(app.store, None, ["work"], 1, 1, "worker-1") == []
    clock.advance(1)
    assert claim("work").args == b'{"x":2}'


def test_replace_can_make_a_scheduled_job_ready_and_a_ready_one_wait(work: Task[[int], None]) -> None:
    replacing = work.using(key="k", on_conflict="replace")
    assert replacing.using(delay=60).enqueue(1).refresh().status == "scheduled"
    assert replacing.enqueue(2).refresh().status == "ready"
    assert replacing.using(delay=60).enqueue(3).refresh().status == "scheduled"


def test_replace_leaves_a_running_job_alone(work: Task[[int], None], claim: Claim) -> None:
    job = work.using(key="k").enqueue(1)
    claim("work")
    again = work.using(key="k", on_conflict="replace").enqueue(2)
    assert (again.id, again.status, again.args) == (job.id, "running", {"x": 1})


def test_replace_is_in_the_log(work: Task[[int], None], events: Callable[[int], list[str]]) -> None:
    job = work.using(key="k", on_conflict="replace").enqueue(1)
    work.using(key="k", on_conflict="replace").enqueue(2)
    assert events(job.id) == ["enqueued", "replaced"]


def test_returning_the_existing_job_is_no_transition(
    work: Task[[int], None], events: Callable[[int], list[str]]
) -> None:
    job = work.using(key="k").enqueue(1)
    work.using(key="k").enqueue(2)
    assert events(job.id) == ["enqueued"]
