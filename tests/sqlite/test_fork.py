"""os.fork(): the child uses the same app on its own connections, and no acknowledged message is lost."""

import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreClosed, UsedAfterFork
from support.forking import (  # noqa: F401  two of them are fixtures
    WATCHDOG_SECONDS,
    Child,
    Gate,
    ids_in,
    impatient_forks,
    numbers,
    patient_forks,
    send,
)
from support.refusals import told
from support.running_worker import eventually

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """An app on the real clock, with a busy_timeout below the watchdog's: a lock that is never released raises."""
    return open_app(busy_timeout=WATCHDOG_SECONDS / 2)


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.close()


def test_a_child_can_use_the_app_of_its_parent(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    send(app, 3)

    @app.task
    def work(n: int) -> None: ...

    def everything() -> str:
        assert [message.body for message in inbox.receive_many(3)] == [0, 1, 2]
        sent = inbox.send("child")
        message = inbox.receive(wait=WATCHDOG_SECONDS)
        assert message is not None and message.id == sent
        assert message.extend(60) and message.ack()
        assert inbox.receive(wait=0.05) is None
        with app.transaction() as tx:
            inbox.send("in a transaction", conn=tx)
        job = work.using(tags=["t"]).enqueue(5)
        assert app.jobs.list(tag="t")[0].id == job.id
        assert app.jobs.cancel(job.id) and len(app.jobs.history(job.id)) == 2
        app.close()
        return "done"

    assert Child(everything).result() == "done"
    assert inbox.stats().running == 3 and inbox.stats().ready == 1


def test_messages_of_parent_and_child_are_all_stored(app: Holdfast, url: str) -> None:
    before = send(app, 100)
    child = Child(lambda: send(app, 100))
    after = send(app, 100)
    between = numbers(child.result())
    afterwards = send(app, 10)
    app.close()
    assert len({*before, *between, *after, *afterwards}) == 310
    assert ids_in(url) == {*before, *between, *after, *afterwards}


@pytest.mark.parametrize("child_uses", ["the same app", "an app of its own"])
def test_a_child_that_outlives_its_parents_app_loses_nothing(
    app: Holdfast, url: str, gate: Gate, child_uses: str
) -> None:
    """Closing the last connection deletes the WAL, unless SQLite sees that the child has the file open."""
    closed = gate
    opened = Gate()
    send(app, 10)

    def go_on() -> list[int]:
        mine = app if child_uses == "the same app" else Holdfast(url)
        sent = send(mine, 10)
        opened.open()
        closed.wait()
        sent += send(mine, 10)
        mine.close()
        return sent

    child = Child(go_on)
    opened.wait()
    app.close()
    closed.open()
    sent = numbers(child.result())
    assert set(sent) <= ids_in(url)
    opened.close()


@pytest.mark.parametrize("end", ["_exit", "SIGKILL"])
def test_a_child_that_outlives_its_parent_loses_nothing_to_other_processes(url: str, gate: Gate, end: str) -> None:
    """Processes that open and close the database must see that the orphan still has it open."""
    report, go_on = Gate(), gate

    def parent() -> None:
        app = Holdfast(url, busy_timeout=WATCHDOG_SECONDS / 2)
        send(app, 10)
        if os.fork() == 0:
            orphan(app)
        if end == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    def orphan(app: Holdfast) -> None:
        try:
            send(app, 10, "orphan")
            report.open()
            go_on.wait()
            send(app, 10, "orphan")
            app.close()
        finally:
            report.open()
            os._exit(0)

    if (pid := os.fork()) == 0:
        parent()
    os.waitpid(pid, 0)
    report.wait()
    with Holdfast(url) as other:
        send(other, 10)
    go_on.open()
    report.wait()
    with Holdfast(url) as other:
        assert other.queue("orphan").stats().total == 20
        assert other.queue("inbox").stats().total == 20
    report.close()


def test_a_child_that_closes_the_app_does_not_close_it_for_its_parent(app: Holdfast, url: str) -> None:
    before = send(app, 10)

    def close() -> None:
        send(app, 10, "child")
        app.close()
        with told(StoreClosed, "closed"):
            send(app, 1)

    Child(close).result()
    after = send(app, 100)
    app.close()
    assert {*before, *after} <= ids_in(url)


def test_a_child_that_never_uses_the_app_does_no_harm(app: Holdfast, url: str) -> None:
    def collect_garbage() -> None:
        nonlocal app
        del app
        gc.collect()

    before = send(app, 100)
    Child(collect_garbage).result()
    Child(lambda: os.kill(os.getpid(), signal.SIGTERM)).result()
    after = send(app, 100)
    app.close()
    assert ids_in(url) == {*before, *after}


def test_a_transaction_of_the_parent_is_refused_in_the_child_and_commits_in_the_parent(
    app: Holdfast, url: str
) -> None:
    inbox = app.queue("inbox")
    with app.transaction() as tx:
        inbox.send("before the fork", conn=tx)

        def misuse() -> None:
            with told(UsedAfterFork, str(os.getppid()), "app.transaction()"):
                tx.execute("SELECT 1")
            with told(UsedAfterFork, "fork"):
                inbox.send("x", conn=tx)
            with told(UsedAfterFork, "fork"):
                inbox.send_many(["x"], conn=tx)

        Child(misuse).result()
        inbox.send("after the fork", conn=tx)
    assert inbox.stats().total == 2
    app.close()
    assert len(ids_in(url)) == 2


@pytest.mark.parametrize("leave_by", ["the end of the block", "an exception"])
def test_a_child_that_leaves_the_parents_block_neither_commits_nor_rolls_back(
    app: Holdfast, gate: Gate, leave_by: str
) -> None:
    inbox = app.queue("inbox")
    in_child = False
    try:
        with app.transaction() as tx:
            inbox.send("in the block", conn=tx)
            pid = os.fork()
            in_child = pid == 0
            if in_child and leave_by == "an exception":
                raise LookupError
            if not in_child:
                assert os.waitpid(pid, 0) == (pid, 0), "the child did not exit normally"
                assert inbox.stats().total == 0, "the child has committed"
        if in_child:
            os._exit(0)
    except BaseException as error:
        if in_child:
            os._exit(0 if isinstance(error, LookupError) else 1)
        raise
    assert inbox.stats().total == 1


def write_or_raise(app: Holdfast, gate: Gate) -> str:
    """Send in the child. The child inherits SQLite's lock tables: with an open transaction in them it cannot write.

    Raising is fine then. Waiting for a lock that is never released is not, nor is writing without a lock.
    """
    gate.wait()
    try:
        return f"sent {len(send(app, 5))}"
    except UsedAfterFork as error:
        return f"raised: {error}"


def test_a_child_that_was_forked_inside_a_transaction_writes_or_raises(app: Holdfast, url: str, gate: Gate) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send("parent", conn=tx)
        child = Child(lambda: write_or_raise(app, gate))
    gate.open()
    outcome = child.result()
    app.close()
    assert len(ids_in(url)) == (6 if outcome == "sent 5" else 1), outcome


@pytest.mark.usefixtures("impatient_forks")
def test_a_child_that_was_forked_during_a_transaction_of_another_thread_writes_or_raises(
    app: Holdfast, url: str, gate: Gate
) -> None:
    children: list[Child] = []
    with app.transaction() as tx:
        forking = threading.Thread(target=lambda: children.append(Child(lambda: write_or_raise(app, gate))))
        forking.start()
        forking.join(WATCHDOG_SECONDS)
        app.queue("inbox").send("parent", conn=tx)
    gate.open()
    outcome = children[0].result()
    app.close()
    assert len(ids_in(url)) == (6 if outcome == "sent 5" else 1), outcome


def test_a_message_received_by_the_parent_can_be_settled_by_the_child(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(["acked", "released"])
    first, second = inbox.receive_many(2)
    assert Child(lambda: [first.ack(), second.extend(60), second.release(), second.ack()]).result() == (
        "[True, True, True, False]"
    )
    assert first.ack() is False
    assert inbox.stats().ready == 1


def test_a_child_is_another_actor_in_the_history(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    sent = inbox.send("x")
    Child(inbox.receive).result()
    enqueued, claimed, _ = app.jobs.history(sent)
    assert (enqueued.name, claimed.name) == ("enqueued", "claimed")
    assert claimed.actor and enqueued.actor and claimed.actor != enqueued.actor


def test_grandchildren_can_use_the_app(app: Holdfast, url: str) -> None:
    def generation(left: int) -> list[int]:
        sent = send(app, 10)
        if left:
            sent += numbers(Child(lambda: generation(left - 1)).result())
        return sent + send(app, 10)

    sent = generation(3)
    app.close()
    assert len(set(sent)) == 80
    assert ids_in(url) == set(sent)


def test_a_send_wakes_a_waiting_parent_and_a_waiting_child(app: Holdfast) -> None:
    inbox, outbox = app.queue("inbox"), app.queue("outbox")

    def answer() -> Any:
        question = inbox.receive(wait=WATCHDOG_SECONDS)
        assert question is not None and question.ack()
        outbox.send(f"answer to {question.body}")
        return "answered"

    assert inbox.receive(wait=0.05) is None  # so that the parent has an open watcher when it forks
    child = Child(answer)
    inbox.send("question")
    reply = outbox.receive(wait=WATCHDOG_SECONDS)
    assert reply is not None and reply.body == "answer to question"
    assert child.result() == "answered"


def test_a_child_waits_for_itself_while_threads_of_its_parent_wait(app: Holdfast) -> None:
    """The thread that looks for all waiters of the parent does not exist in the child."""
    inbox, outbox = app.queue("inbox"), app.queue("outbox")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(inbox.receive, wait=WATCHDOG_SECONDS) for _ in range(2)]
        eventually(lambda: len(app.store.waiters) == 2)

        def answer() -> Any:
            assert len(app.store.waiters) == 0
            question = outbox.receive(wait=WATCHDOG_SECONDS)
            return question is not None and question.body

        child = Child(answer)
        outbox.send("question")
        assert child.result() == "question"
        inbox.send_many(["a", "b"])
        assert sorted(one.result(WATCHDOG_SECONDS).body for one in waiting) == ["a", "b"]  # type: ignore[union-attr]


def test_a_closed_app_stays_closed_in_the_child(app: Holdfast) -> None:
    app.close()

    def use() -> None:
        with told(StoreClosed, "closed"):
            send(app, 1)

    Child(use).result()


def test_connections_to_other_databases_survive_the_fork(app: Holdfast, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    Child(lambda: send(app, 1)).result()
    other.execute("CREATE TABLE t (x)")
    other.close()
