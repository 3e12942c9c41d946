"""Many threads that wait in one process: one of them looks for all, and a commit wakes only those it concerns."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Holdfast, Message
from holdfast.errors import StoreBusy
from support.running_worker import PATIENCE_SECONDS, eventually
from support.transitions import succeed

LONG = 2 * PATIENCE_SECONDS
Started = Callable[..., "Future[Any]"]


class Calls:
    """Counts what the waiters of an app ask its database, and tells when one of them sleeps again."""

    def __init__(self, app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        for owner, name in (
            (app.store.waiters, "find"),
            (app.store, "wait_for_commit"),
            (app.store.jobs, "claim_messages"),
            (app.store.jobs, "get"),
        ):
            monkeypatch.setattr(owner, name, self._counting(name, getattr(owner, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_call(*args: Any, **options: Any) -> Any:
            with self._changed:
                self.counts[name] += 1
                self._changed.notify_all()
            return call(*args, **options)

        return count_and_call

    def during(self, commit: Callable[[], object]) -> Counter[str]:
        """What was asked because of the commit, until the leader sleeps again."""
        with self._changed:
            before = self.counts.copy()
        commit()
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.counts["wait_for_commit"] > before["wait_for_commit"], PATIENCE_SECONDS
            )
            return self.counts - before


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """Here on the real clock: it is the waiting that is tested."""
    return open_app()


@pytest.fixture
def other(app: Holdfast, open_app: Callable[..., Holdfast]) -> Holdfast:
    """Another program; its commits are visible as soon as they are reported."""
    return open_app(durability="normal")


@pytest.fixture
def start(app: Holdfast) -> Iterator[Started]:
    """Starts calls that wait, each in a thread, and returns when it waits."""
    with ThreadPoolExecutor(64) as pool:

        def start(call: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
            before = len(app.store.waiters)
            future = pool.submit(call, *args, **options)
            eventually(lambda: len(app.store.waiters) > before, "it does not wait")
            return future

        yield start
        app.close()


@pytest.mark.parametrize("number", [2, 40])
def test_a_commit_costs_one_look_however_many_wait(
    no_polling: None,
    app: Holdfast,
    other: Holdfast,
    start: Started,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    @app.task
    def work() -> None: ...

    for n in range(number // 2):
        start(app.queue(f"inbox {n % 7}").receive, wait=LONG)
        start(work.enqueue().wait)
    calls = Calls(app, monkeypatch)
    calls.during(lambda: other.queue("elsewhere").send("x"))  # so that the leader sleeps
    asked = calls.during(lambda: other.queue("elsewhere").send("x"))
    assert asked["claim_messages"] == asked["get"] == 0, "none of them was concerned"
    assert asked["find"] <= 2, "the commit, and one that was reported late"


def test_as_many_receivers_are_woken_as_there_are_messages(
    no_polling: None, app: Holdfast, other: Holdfast, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [start(app.queue("inbox").receive, wait=LONG) for _ in range(40)]
    calls = Calls(app, monkeypatch)
    other.queue("inbox").send_many(["a", "b", "c"])
    eventually(lambda: sum(one.done() for one in waiting) == 3, "not all were received")
    assert sorted(one.result().body for one in waiting if one.done()) == ["a", "b", "c"]
    # Each claim is a commit too, after which one may be woken for a message that is about to be claimed.
    assert calls.counts["claim_messages"] <= 3 * 4


def test_one_receiver_is_woken_for_as_many_messages_as_it_takes(
    no_polling: None, app: Holdfast, other: Holdfast, start: Started
) -> None:
    first, second = (start(app.queue("inbox").receive_many, 10, wait=LONG) for _ in range(2))
    other.queue("inbox").send_many(range(10))
    assert len(first.result(PATIENCE_SECONDS)) == 10
    assert not second.done()


def test_another_thread_leads_when_the_leader_has_waited_enough(
    no_polling: None, app: Holdfast, other: Holdfast, start: Started
) -> None:
    leader = start(app.queue("inbox").receive, wait=0.2)
    follower = start(app.queue("inbox").receive, wait=LONG)
    assert leader.result(PATIENCE_SECONDS) is None
    other.queue("inbox").send("x")
    assert isinstance(follower.result(PATIENCE_SECONDS), Message)


def test_jobs_chains_batches_and_queues_are_waited_for_together(
    no_polling: None, app: Holdfast, start: Started, claim: Callable[..., Any]
) -> None:
    @app.task
    def work() -> int: ...

    job, lone = work.enqueue(), work.enqueue()
    with app.batch() as batch:
        work.using(batch=batch).enqueue()
    waits = [start(job.wait), start(lone.wait_chain), start(batch.wait), start(app.queue("inbox").receive, wait=LONG)]
    for _ in range(3):
        succeed(app.store, claim().lease, "7")
    assert [one.result(PATIENCE_SECONDS) for one in waits[:2]] == [7, 7]
    assert waits[2].result(PATIENCE_SECONDS).succeeded == 1
    assert not waits[3].done()
    app.queue("inbox").send("x")
    assert isinstance(waits[3].result(PATIENCE_SECONDS), Message)


def test_a_job_that_is_deleted_ends_its_wait(no_polling: None, app: Holdfast, start: Started) -> None:
    @app.task
    def work() -> int: ...

    start(app.queue("inbox").receive, wait=LONG)
    job = work.enqueue()
    wait = start(job.wait)
    app.jobs.delete(job.id)
    assert "deleted" in str(wait.exception(PATIENCE_SECONDS))


def test_a_message_that_falls_due_reaches_its_receiver_among_others(
    no_polling: None, app: Holdfast, start: Started
) -> None:
    """Another receiver is woken to promote it."""
    start(app.queue("first").receive, wait=LONG)
    mine = start(app.queue("second").receive, wait=LONG)
    app.queue("second").send("later", delay=0.2)
    assert mine.result(PATIENCE_SECONDS).body == "later"


def test_a_receiver_that_fails_leaves_the_message_to_another(
    no_polling: None, app: Holdfast, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [start(app.queue("inbox").receive, wait=LONG) for _ in range(3)]
    claim, failed = app.store.jobs.claim_messages, threading.Event()

    def fail_once(*args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise StoreBusy("another process writes")
        return claim(*args)

    monkeypatch.setattr(app.store.jobs, "claim_messages", fail_once)
    app.queue("inbox").send("x")
    eventually(lambda: sum(one.done() for one in waiting) == 2, "no other received it")
    assert isinstance(waiting[0].exception(), StoreBusy)


def test_closing_ends_all_waits(app: Holdfast, start: Started) -> None:
    waiting = [start(app.queue("inbox").receive, wait=LONG) for _ in range(20)]
    app.close()
    assert {type(one.exception(PATIENCE_SECONDS)).__name__ for one in waiting} == {"StoreClosed"}
