"""Group commit: threads that write at once share a transaction, and each gets what is its own."""

import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.store.sqlite.engine import group_commit as turn_module
from holdfast.store.sqlite.engine.group_commit import QueuedWrite, Turn
from support.running_worker import PATIENCE_SECONDS, eventually


def engine(app: Holdfast) -> Any:
    return app.store.database._engine  # type: ignore[attr-defined]


def commits_of(url: str) -> int:
    """The commits since the log was made, as its shared header counts them; modulo 2³².

    Read by another process: to close that file in this one would drop SQLite's locks.
    """
    head = subprocess.run(["head", "-c", "12", f"{url}-shm"], capture_output=True, check=True).stdout
    count: int = struct.unpack("=8xI", head)[0]
    return count


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not is_so() and time.monotonic() < until:
        time.sleep(0.001)


class Crowd:
    """Threads that all stand in line before the first of them may write."""

    def __init__(self, app: Holdfast, url: str) -> None:
        self._app, self._url = app, url
        self.results: dict[Any, Any] = {}
        self.commits = 0

    def run(self, calls: dict[Any, Callable[[], Any]]) -> None:
        def one(name: Any, call: Callable[[], Any]) -> None:
            try:
                self.results[name] = call()
            except Exception as error:  # noqa: BLE001  looked at by the test
                self.results[name] = error

        threads = [threading.Thread(target=one, args=item) for item in calls.items()]
        turn = engine(self._app).writer._turn
        with self._app.transaction():  # nobody else writes meanwhile
            for number, thread in enumerate(threads, 1):
                thread.start()
                eventually(lambda: len(turn.line) + len(turn._alone) >= number, "it stands in line")  # noqa: B023
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


def refuse(app: Holdfast, how: str) -> None:
    """Let the database refuse one of the inserts."""
    with app.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON holdfast_jobs WHEN NEW.args = '\"bad\"' "
            f"BEGIN SELECT RAISE({how}, 'not today'); END"
        )


@pytest.mark.parametrize("place", [0, 3, 19])
@pytest.mark.parametrize("how", ["ABORT", "FAIL"])
def test_one_threads_failing_insert_fails_only_its_own(app: Holdfast, crowd: Crowd, how: str, place: int) -> None:
    refuse(app, how)
    bodies: list[Any] = list(range(20))
    bodies.insert(place, "bad")
    crowd.run(sends(app, bodies))
    error = crowd.results.pop("bad")
    assert isinstance(error, StoreError) and "not today" in str(error)
    assert {app.jobs.get(id).args: id for id in crowd.results.values()} == crowd.results
    assert app.queue("inbox").stats().ready == 20


def test_one_threads_failing_batch_fails_only_its_own(app: Holdfast, crowd: Crowd) -> None:
    refuse(app, "ABORT")
    calls = sends(app, range(5))
    calls["bad"] = lambda: app.queue("inbox").send_many(["before"] * 1000 + ["bad", "after"])
    calls["keyed"] = lambda: app.queue("inbox").send("bad", key="k")
    crowd.run(calls)
    assert isinstance(crowd.results["bad"], StoreError)
    assert isinstance(crowd.results["keyed"], StoreError)
    assert [message.body for message in app.queue("inbox").receive_many(10)] == [0, 1, 2, 3, 4]


def test_a_member_that_fails_halfway_is_undone_alone(app: Holdfast, crowd: Crowd) -> None:
    with app.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON holdfast_events WHEN NEW.event = 'paused' "
            "BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )
    crowd.run(sends(app, range(3)) | {"pause": app.queue("inbox").pause})
    assert isinstance(crowd.results["pause"], StoreError)
    assert app.queue("inbox").stats().paused is False
    assert [message.body for message in app.queue("inbox").receive_many(10)] == [0, 1, 2]


def test_whoever_was_told_of_success_finds_the_message(app: Holdfast, crowd: Crowd) -> None:
    """Also where one insert rolls back the whole transaction."""
    refuse(app, "ROLLBACK")
    crowd.run(sends(app, [0, 1, "bad", 2, 3]))
    told = [id for id in crowd.results.values() if isinstance(id, int)]
    stored = [message.id for message in app.queue("inbox").receive_many(10)]
    assert sorted(told) == stored
    assert isinstance(crowd.results["bad"], StoreError)


def test_after_a_failure_the_next_write_works(app: Holdfast, crowd: Crowd) -> None:
    refuse(app, "ROLLBACK")
    crowd.run(sends(app, [0, "bad", 1]))
    with suppress(StoreError):
        app.queue("inbox").send("bad")
    assert app.queue("inbox").send("good")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no thread can be signalled")
def test_a_thread_that_is_interrupted_while_its_work_is_done_holds_up_nobody(app: Holdfast, url: str) -> None:
    """Threads are woken by one another."""
    writer, turn = engine(app).writer, engine(app).writer._turn
    begun, go_on, done = threading.Event(), threading.Event(), list[int]()

    def hold(_: Any) -> None:
        begun.set()
        go_on.wait(10)

    def stand_in_line(place: int, work: Callable[[Any], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: (writer.run(work), done.append(place)))
        thread.start()
        wait_until(lambda: len(turn.line) > place)
        return thread

    def interrupt() -> None:
        begun.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def gather() -> None:
        """The leader, this thread, and behind it seven that it would wake, or those that it would."""
        with app.transaction():
            threads.append(stand_in_line(0, hold))
            ready.set()
            wait_until(lambda: len(turn.line) > 1)
            threads.extend(stand_in_line(place, lambda _: None) for place in range(2, 9))

    threads, ready = list[threading.Thread](), threading.Event()
    helpers = [threading.Thread(target=gather), threading.Thread(target=interrupt)]
    for thread in helpers:
        thread.start()
    ready.wait(10)
    with pytest.raises(KeyboardInterrupt):
        writer.run(lambda _: None)
    go_on.set()
    for thread in [*helpers, *threads]:
        thread.join(10)
    assert sorted(done) == [0, *range(2, 9)]


class Interrupting:
    """A gate at which a signal comes in."""

    def acquire(self, **_: Any) -> bool:
        raise KeyboardInterrupt

    def release(self) -> None: ...


def test_a_thread_that_is_interrupted_at_its_gate_lets_those_behind_it_pass() -> None:
    turn: Turn[QueuedWrite] = Turn()
    first, second, third = group = [QueuedWrite() for _ in range(3)]
    first.gate = Interrupting()  # type: ignore[assignment]
    turn.let_pass(group)
    with pytest.raises(KeyboardInterrupt):
        turn._wait(first, 1)
    assert second.gate.acquire(blocking=False) and third.gate.acquire(blocking=False)


@pytest.mark.parametrize("count", [1, 2, 3, 500])
def test_all_whose_work_is_done_are_woken(count: int) -> None:
    turn: Turn[QueuedWrite] = Turn()
    group = [QueuedWrite() for _ in range(count)]
    group[count // 2].leads = True  # who does not wait
    waiting = [one for one in group if not one.leads]
    threads = [threading.Thread(target=turn._wait, args=(one, 10)) for one in waiting]
    for thread in threads:
        thread.start()
    turn.let_pass(group)
    for thread in threads:
        thread.join(20)
    assert all(one.done and not one.left for one in group)


@pytest.fixture
def long_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module, "GATHERING_SECONDS", 60)


def stand_in_line(turn: "Turn[QueuedWrite]", one: QueuedWrite) -> threading.Thread:
    thread = threading.Thread(target=turn.take, args=(one, 20))
    thread.start()
    wait_until(lambda: one in turn.line)
    return thread


@pytest.mark.usefixtures("long_gathering")
def test_a_leader_goes_on_when_as_many_have_come_as_the_last_time() -> None:
    turn: Turn[QueuedWrite] = Turn()
    group = [QueuedWrite() for _ in range(4)]
    turn.take(group[0], 1)
    leader = threading.Thread(target=turn.await_others, args=(4,))
    leader.start()
    threads = [stand_in_line(turn, one) for one in group[1:]]
    leader.join(20)
    assert not leader.is_alive()
    turn.let_pass(group)
    for thread in threads:
        thread.join(20)


def test_a_leader_does_not_wait_for_those_who_do_not_come() -> None:
    turn: Turn[QueuedWrite] = Turn()
    one, other = QueuedWrite(), QueuedWrite()
    turn.take(one, 1)
    turn.await_others(8)
    thread = stand_in_line(turn, other)  # too late, which must not open the next wait
    turn.await_others(8)
    turn.let_pass([one, other])
    thread.join(20)


def test_threads_that_send_one_after_another_do_not_share(app: Holdfast, url: str) -> None:
    before = commits_of(url)
    for number in range(3):
        app.queue("inbox").send(number)
    assert commits_of(url) - before == 3


def test_what_shares_with_an_enqueue_is_flushed_like_an_enqueue(app: Holdfast, crowd: Crowd) -> None:
    app.queue("inbox").send("acked")
    message = app.queue("inbox").receive()
    assert message is not None
    crowd.run({"ack": message.ack, "send": lambda: app.queue("inbox").send("x")})
    assert crowd.commits == 1
    assert engine(app).writer._connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
