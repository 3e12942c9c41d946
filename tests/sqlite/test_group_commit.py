"""Group commit: threads that write at the same time share a transaction, and each gets its own result."""

import signal
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.store.sqlite.engine import group_commit
from holdfast.store.sqlite.engine.group_commit import CommitQueue, QueueEntry
from support.running_worker import PATIENCE_SECONDS, comes_true, eventually


def engine(app: Holdfast) -> Any:
    return app.store.database._engine  # type: ignore[attr-defined]


def commits_of(url: str) -> int:
    """Return the number of commits since the WAL was created, modulo 2³², from the header of the -shm file.

    Another process reads it: closing the file in this one would drop SQLite's locks.
    """
    head = subprocess.run(["head", "-c", "12", f"{url}-shm"], capture_output=True, check=True).stdout
    count: int = struct.unpack("=8xI", head)[0]
    return count


class Crowd:
    """Threads that are all in the commit queue before the first of them may write."""

    def __init__(self, app: Holdfast, url: str) -> None:
        self._app, self._url = app, url
        self.results: dict[Any, Any] = {}
        self.commits = 0

    def run(self, calls: dict[Any, Callable[[], Any]]) -> None:
        def one(name: Any, call: Callable[[], Any]) -> None:
            try:
                self.results[name] = call()
            except Exception as error:  # noqa: BLE001  the test checks it
                self.results[name] = error

        threads = [threading.Thread(target=one, args=item) for item in calls.items()]
        queue = engine(self._app).writer._queue
        with self._app.transaction():  # no other thread writes meanwhile
            for number, thread in enumerate(threads, 1):
                thread.start()
                eventually(lambda: len(queue.pending) + len(queue.exclusive) >= number, "it is queued")  # noqa: B023
            before = commits_of(self._url)
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        self.commits = commits_of(self._url) - before
        assert self.results.keys() == calls.keys()


@pytest.fixture
def crowd(app: Holdfast, url: str) -> Crowd:
    return Crowd(app, url)


def sends(app: Holdfast, bodies: Any) -> dict[Any, Callable[[], Any]]:
    return {body: lambda body=body: app.queue("inbox").send(body) for body in bodies}


@pytest.mark.parametrize("count", [2, 16, 17, 40])
def test_threads_that_send_at_once_share_one_transaction(app: Holdfast, crowd: Crowd, count: int) -> None:
    crowd.run(sends(app, range(count)))
    assert crowd.commits == 1
    assert app.queue("inbox").stats().ready == count


@pytest.mark.parametrize("count", [2, 16, 17, 40])
def test_each_thread_gets_the_id_of_its_own_message(app: Holdfast, crowd: Crowd, count: int) -> None:
    crowd.run(sends(app, range(count)))
    assert {app.jobs.get(id).args: id for id in crowd.results.values()} == crowd.results


def test_each_thread_gets_the_job_it_enqueued(app: Holdfast, crowd: Crowd) -> None:
    @app.task
    def work(x: int) -> None: ...

    options = [{"priority": 5}, {"delay": 60}, {"queue": "slow"}, {"tags": "t"}, {"max_attempts": 9}, {"timeout": 3}]
    crowd.run({at: lambda at=at: work.using(**options[at]).enqueue(at) for at in range(len(options))})
    for at, job in crowd.results.items():
        assert job.args == {"x": at}
        assert app.store.jobs.get(job.id) == job._record


def test_all_kinds_of_writes_share_one_transaction(app: Holdfast, crowd: Crowd) -> None:
    @app.task
    def work(x: int) -> None: ...

    inbox = app.queue("inbox")
    inbox.send_many(["acked", "released", "extended"])
    acked, released, extended = inbox.receive_many(3)
    crowd.run(
        {
            "send": lambda: inbox.send("a"),
            "send_many": lambda: inbox.send_many(["b", "c"]),
            "enqueue": lambda: work.enqueue(1).id,
            "key": lambda: work.using(key="k").enqueue(2).id,
            "same key": lambda: work.using(key="k").enqueue(3).id,
            "ack": acked.ack,
            "release": released.release,
            "extend": lambda: extended.extend(60),
            "pause": app.queue("other").pause,
        }
    )
    assert crowd.commits == 1
    assert [crowd.results[name] for name in ("ack", "release", "extend", "pause")] == [True] * 4
    assert crowd.results["key"] == crowd.results["same key"]
    assert app.jobs.get(acked.id).status == "succeeded"
    assert app.jobs.get(released.id).status == "ready"
    assert app.jobs.get(extended.id).status == "running"


def reject(app: Holdfast, how: str) -> None:
    """Make the database reject one of the inserts."""
    with app.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER reject BEFORE INSERT ON holdfast_jobs WHEN NEW.args = '\"bad\"' "
            f"BEGIN SELECT RAISE({how}, 'not today'); END"
        )


@pytest.mark.parametrize("index", [0, 3, 19])
@pytest.mark.parametrize("how", ["ABORT", "FAIL"])
def test_a_failing_insert_fails_only_in_its_own_thread(app: Holdfast, crowd: Crowd, how: str, index: int) -> None:
    reject(app, how)
    bodies: list[Any] = list(range(20))
    bodies.insert(index, "bad")
    crowd.run(sends(app, bodies))
    error = crowd.results.pop("bad")
    assert isinstance(error, StoreError) and "not today" in str(error)
    assert {app.jobs.get(id).args: id for id in crowd.results.values()} == crowd.results
    assert app.queue("inbox").stats().ready == 20


def test_a_failing_send_many_fails_only_in_its_own_thread(app: Holdfast, crowd: Crowd) -> None:
    reject(app, "ABORT")
    calls = sends(app, range(5))
    calls["bad"] = lambda: app.queue("inbox").send_many(["before"] * 1000 + ["bad", "after"])
    calls["keyed"] = lambda: app.queue("inbox").send("bad", key="k")
    crowd.run(calls)
    assert isinstance(crowd.results["bad"], StoreError)
    assert isinstance(crowd.results["keyed"], StoreError)
    assert [message.body for message in app.queue("inbox").receive_many(10)] == [0, 1, 2, 3, 4]


def test_a_member_that_fails_halfway_is_rolled_back_alone(app: Holdfast, crowd: Crowd) -> None:
    with app.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER reject BEFORE INSERT ON holdfast_events WHEN NEW.event = 'paused' "
            "BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )
    crowd.run(sends(app, range(3)) | {"pause": app.queue("inbox").pause})
    assert isinstance(crowd.results["pause"], StoreError)
    assert app.queue("inbox").stats().paused is False
    assert [message.body for message in app.queue("inbox").receive_many(10)] == [0, 1, 2]


def test_a_send_that_returned_an_id_is_stored(app: Holdfast, crowd: Crowd) -> None:
    """Even if one insert rolls back the whole transaction."""
    reject(app, "ROLLBACK")
    crowd.run(sends(app, [0, 1, "bad", 2, 3]))
    returned = [id for id in crowd.results.values() if isinstance(id, int)]
    stored = [message.id for message in app.queue("inbox").receive_many(10)]
    assert sorted(returned) == stored
    assert isinstance(crowd.results["bad"], StoreError)


def test_after_a_failure_the_next_write_works(app: Holdfast, crowd: Crowd) -> None:
    reject(app, "ROLLBACK")
    crowd.run(sends(app, [0, "bad", 1]))
    with suppress(StoreError):
        app.queue("inbox").send("bad")
    assert app.queue("inbox").send("good")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="threads cannot be signalled")
def test_an_interrupted_follower_does_not_block_the_others(app: Holdfast, url: str) -> None:
    """Followers wake each other."""
    writer, queue = engine(app).writer, engine(app).writer._queue
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def hold(_: Any) -> None:
        begun.set()
        comes_true(go_on)

    def enter(index: int, work: Callable[[Any], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: (writer.run(work), done.append(index)))
        thread.start()
        eventually(lambda: len(queue.pending) > index)
        return thread

    def interrupt() -> None:
        comes_true(begun)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def fill_queue() -> None:
        """Enqueue the leader, the main thread, and seven followers that the main thread wakes, some indirectly."""
        with app.transaction():
            threads.append(enter(0, hold))
            ready.set()
            eventually(lambda: len(queue.pending) > 1)
            threads.extend(enter(index, lambda _: None) for index in range(2, 9))

    threads, ready = list[threading.Thread](), threading.Event()
    helpers = [threading.Thread(target=fill_queue), threading.Thread(target=interrupt)]
    for thread in helpers:
        thread.start()
    comes_true(ready)
    with pytest.raises(KeyboardInterrupt):
        writer.run(lambda _: None)
    go_on.set()
    for thread in [*helpers, *threads]:
        thread.join(PATIENCE_SECONDS)
    assert sorted(done) == [0, *range(2, 9)]


class InterruptedLock:
    """A lock whose acquire is interrupted by a signal."""

    def acquire(self, **_: Any) -> bool:
        raise KeyboardInterrupt

    def release(self) -> None: ...


def test_a_thread_that_is_interrupted_while_it_waits_still_wakes_the_next() -> None:
    queue: CommitQueue[QueueEntry] = CommitQueue()
    first, second, third = group = [QueueEntry() for _ in range(3)]
    first.wakeup = InterruptedLock()  # type: ignore[assignment]
    queue.finish(group)
    with pytest.raises(KeyboardInterrupt):
        queue._wait(first, 1)
    assert second.wakeup.acquire(blocking=False) and third.wakeup.acquire(blocking=False)


@pytest.mark.parametrize("count", [1, 2, 3, 500])
def test_all_followers_are_woken(count: int) -> None:
    queue: CommitQueue[QueueEntry] = CommitQueue()
    group = [QueueEntry() for _ in range(count)]
    group[count // 2].is_leader = True
    followers = [entry for entry in group if not entry.is_leader]
    threads = [threading.Thread(target=queue._wait, args=(entry, PATIENCE_SECONDS)) for entry in followers]
    for thread in threads:
        thread.start()
    queue.finish(group)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert all(entry.done and not entry.withdrawn for entry in group)


@pytest.fixture
def long_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "ARRIVAL_SECONDS", 10 * PATIENCE_SECONDS)


def enter_in_thread(queue: "CommitQueue[QueueEntry]", entry: QueueEntry) -> threading.Thread:
    thread = threading.Thread(target=queue.enter, args=(entry, PATIENCE_SECONDS))
    thread.start()
    eventually(lambda: entry in queue.pending)
    return thread


@pytest.mark.usefixtures("long_arrival")
def test_a_leader_continues_when_as_many_have_arrived_as_in_the_last_group() -> None:
    queue: CommitQueue[QueueEntry] = CommitQueue()
    group = [QueueEntry() for _ in range(4)]
    queue.enter(group[0], 1)
    leader = threading.Thread(target=queue.wait_for_followers, args=(4,))
    leader.start()
    threads = [enter_in_thread(queue, entry) for entry in group[1:]]
    leader.join(PATIENCE_SECONDS)
    assert not leader.is_alive()
    queue.finish(group)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)


def test_a_leader_does_not_wait_for_followers_that_do_not_arrive() -> None:
    queue: CommitQueue[QueueEntry] = CommitQueue()
    leader, late = QueueEntry(), QueueEntry()
    queue.enter(leader, 1)
    queue.wait_for_followers(8)
    thread = enter_in_thread(queue, late)  # must not end the next wait
    queue.wait_for_followers(8)
    queue.finish([leader, late])
    thread.join(PATIENCE_SECONDS)


def test_threads_that_send_one_after_another_do_not_share(app: Holdfast, url: str) -> None:
    before = commits_of(url)
    for number in range(3):
        app.queue("inbox").send(number)
    assert commits_of(url) - before == 3


def test_a_write_that_shares_a_commit_with_an_enqueue_is_flushed(app: Holdfast, crowd: Crowd) -> None:
    app.queue("inbox").send("acked")
    message = app.queue("inbox").receive()
    assert message is not None
    crowd.run({"ack": message.ack, "send": lambda: app.queue("inbox").send("x")})
    assert crowd.commits == 1
    assert engine(app).writer._connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
