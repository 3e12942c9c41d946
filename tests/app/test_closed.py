"""After close() every call says so, also one that was waiting."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreClosed
from support.refusals import told
from support.running_worker import PATIENCE_SECONDS, eventually


def every_call(app: Holdfast) -> dict[str, Callable[[], object]]:
    """All of the public API that needs the database, prepared while the app is open."""
    inbox, jobs = app.queue("inbox"), app.jobs

    @app.task
    def work() -> None: ...

    inbox.send("x")
    message = inbox.receive()
    assert message is not None
    job = work.enqueue()
    connection = sqlite3.connect(app.store.database.options.path)  # type: ignore[attr-defined]

    def open_transaction() -> None:
        with app.transaction():
            pass

    return {
        "send": lambda: inbox.send("x"),
        "send with a key": lambda: inbox.send("x", key="k"),
        "send on a connection": lambda: inbox.send("x", conn=connection),
        "send_many": lambda: inbox.send_many(["x"]),
        "receive": inbox.receive,
        "receive and wait": lambda: inbox.receive(wait=PATIENCE_SECONDS),
        "receive_many": lambda: inbox.receive_many(5),
        "message.ack": message.ack,
        "message.extend": lambda: message.extend(5),
        "message.extend by nothing": lambda: message.extend(0),
        "message.release": message.release,
        "queue.ack": lambda: inbox.ack(1, 1),
        "queue.extend": lambda: inbox.extend(1, 1, 5),
        "queue.release": lambda: inbox.release(1, 1),
        "stats": inbox.stats,
        "dead_letters": inbox.dead_letters,
        "requeue": inbox.requeue,
        "purge": inbox.purge,
        "pause": inbox.pause,
        "resume": inbox.resume,
        "enqueue": work.enqueue,
        "aenqueue": lambda: asyncio.run(work.aenqueue()),
        "enqueue_many": lambda: work.enqueue_many([{}]),
        "using": lambda: work.using(delay=5).enqueue(),
        "job.refresh": job.refresh,
        "job.wait": lambda: job.wait(PATIENCE_SECONDS),
        "jobs.get": lambda: jobs.get(1),
        "jobs.list": jobs.list,
        "jobs.retry": lambda: jobs.retry(1),
        "jobs.cancel": lambda: jobs.cancel(status="ready"),
        "jobs.run_now": lambda: jobs.run_now(1),
        "jobs.delete": lambda: jobs.delete(1),
        "jobs.history": lambda: jobs.history(1),
        "jobs.traceback": lambda: jobs.traceback("f"),
        "transaction": open_transaction,
        "checkpoint": app.store.file.checkpoint,
        "sweep": app.store.jobs.sweep,
    }


def test_every_call_after_close_says_that_it_was_closed(app: Holdfast, subtests: pytest.Subtests) -> None:
    calls = every_call(app)
    app.close()
    for name, call in calls.items():
        with subtests.test(name), told(StoreClosed, "closed", "new one"):
            call()


def test_closing_twice_is_closing_once(app: Holdfast) -> None:
    app.close()
    app.close()
    with app:
        pass


def test_what_needs_no_database_still_works(app: Holdfast) -> None:
    app.close()

    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert repr(app.queue("inbox")) == "<Queue inbox>"


def test_the_end_of_a_with_block_closes(url: str) -> None:
    with Holdfast(url) as app:
        app.queue("inbox").send("x")
    with told(StoreClosed, "closed"):
        app.queue("inbox").send("x")
    assert [file.name for file in Path(url).parent.iterdir()] == ["app.db"]


def test_a_consumer_that_waits_is_told_when_the_app_is_closed(app: Holdfast) -> None:
    """As soon as it is closed, and not when the wait is over."""
    inbox = app.queue("inbox")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(inbox.receive, wait=2 * PATIENCE_SECONDS) for _ in range(4)]
        all_wait(app, 4)
        app.close()
        for one in waiting:
            with told(StoreClosed, "closed"):
                one.result(PATIENCE_SECONDS)


def all_wait(app: Holdfast, number: int) -> None:
    """Until so many threads wait."""
    eventually(lambda: len(app.store.waiters) >= number, "nobody waits")


def test_no_thread_and_no_file_outlives_the_app(url: str) -> None:
    before = set(threading.enumerate())
    app = Holdfast(url)
    app.queue("inbox").receive(wait=0.05)
    app.queue("inbox").send("x")
    app.close()
    assert set(threading.enumerate()) <= before
    assert not [link for link in Path("/proc/self/fd").iterdir() if url in _target(link)]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_closing_while_threads_send_loses_nothing_that_was_acknowledged(url: str) -> None:
    app = Holdfast(url)
    started = threading.Barrier(5)

    def send() -> list[int]:
        sent: list[int] = []
        try:
            started.wait(PATIENCE_SECONDS)
            while True:
                sent.append(app.queue("inbox").send("x"))
        except StoreClosed:
            return sent

    with ThreadPoolExecutor(4) as pool:
        senders = [pool.submit(send) for _ in range(4)]
        started.wait(PATIENCE_SECONDS)
        while app.queue("inbox").stats().total < 20:
            pass
        app.close()
        acknowledged = {id for sender in senders for id in sender.result(PATIENCE_SECONDS)}
    with Holdfast(url) as again:
        assert acknowledged <= {job.id for job in again.jobs.list(limit=1000)}


def test_closing_ends_no_transaction_of_another_thread(url: str) -> None:
    app = Holdfast(url)
    inside, closing = threading.Event(), threading.Event()

    def in_a_transaction() -> None:
        with app.transaction() as tx:
            inside.set()
            assert closing.wait(PATIENCE_SECONDS)
            app.queue("inbox").send("x", conn=tx)

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(in_a_transaction)
        assert inside.wait(PATIENCE_SECONDS)
        closed = pool.submit(app.close)
        closing.set()
        problem = writing.exception(PATIENCE_SECONDS)
        closed.result(PATIENCE_SECONDS)
    with Holdfast(url) as again:  # it may be refused or committed, but not half of it
        assert again.queue("inbox").stats().total == (1 if problem is None else 0)
        assert problem is None or isinstance(problem, StoreClosed)
