"""14.13: a call without `conn=` inside the caller's own transaction raises at once, where that can be known."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast
from holdfast.errors import StoreBusy, TransactionError
from holdfast.store.sqlite.engine.self_wait import is_held_by_this_process, open_transactions
from support.backend import NEVER_SECONDS
from support.running_worker import PATIENCE_SECONDS, drain, eventually, outcomes

Sql = Callable[..., list[Any]]
TOLD = r"this thread has a transaction open on another connection.*as conn="
pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds a lock")


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """Waits so long for a lock that a test which does wait never ends."""
    return open_app(busy_timeout=NEVER_SECONDS)


@pytest.fixture(autouse=True)
def orders(sql: Sql) -> None:
    sql("CREATE TABLE orders (id INTEGER PRIMARY KEY)")


@pytest.fixture
def connection(url: str) -> Iterator[sqlite3.Connection]:
    one = sqlite3.connect(url)
    yield one
    one.close()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{url}")
    yield engine
    engine.dispose()


def ways(app: Holdfast) -> list[Callable[[], object]]:
    @app.task
    def work(n: int = 0) -> None: ...

    inbox = app.queue("inbox")
    return [
        lambda: inbox.send("x"),
        lambda: inbox.send("x", key="k"),
        lambda: inbox.send_many(["x", "y"]),
        work.enqueue,
        app.transaction().__enter__,
        inbox.pause,
    ]


def test_a_connection_of_this_thread(app: Holdfast, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    for way in ways(app):
        with pytest.raises(TransactionError, match=TOLD):
            way()
    app.queue("inbox").send("x", conn=connection)
    connection.commit()
    assert app.queue("inbox").stats().ready == 1


def test_a_second_connection_of_this_thread(app: Holdfast, connection: sqlite3.Connection, url: str) -> None:
    other = sqlite3.connect(url)
    other.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(TransactionError, match=TOLD):
        app.queue("inbox").send("x", conn=connection)
    other.rollback()
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (5000,), "as it was"
    app.queue("inbox").send("x", conn=connection)
    connection.commit()
    other.close()


def test_a_session_of_sqlalchemy_whose_connection_any_thread_may_use(app: Holdfast, engine: Engine) -> None:
    def endpoint() -> None:
        with Session(engine) as session:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            app.queue("inbox").send("x")

    def endpoint_with_connection() -> None:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES (1)"))
            app.queue("inbox").send("x")

    with ThreadPoolExecutor(1) as pool:  # as a web framework calls it
        for one in (endpoint, endpoint_with_connection):
            with pytest.raises(TransactionError, match=TOLD):
                pool.submit(one).result(PATIENCE_SECONDS)


def test_a_thread_that_waits_in_line_behind_another(
    app: Holdfast, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread waits for the same lock first, and leads the group commit; it goes on after the commit."""
    connection.execute("INSERT INTO orders VALUES (1)")
    leads = threading.Event()
    writer = app.store.database._engine.writer  # type: ignore[attr-defined]
    before = writer._queue.lead_if_idle

    def lead_if_idle() -> bool:
        led: bool = before()
        if led:
            leads.set()
        return led

    monkeypatch.setattr(writer._queue, "lead_if_idle", lead_if_idle)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(app.queue("inbox").send, "first")
        assert leads.wait(PATIENCE_SECONDS)
        with pytest.raises(TransactionError, match=TOLD):
            app.queue("inbox").send("second")
        connection.commit()
        assert first.result(PATIENCE_SECONDS)
    assert app.queue("inbox").stats().ready == 1


class Repository:
    def __init__(self, *connections: sqlite3.Connection) -> None:
        self.connections = {"main": list(connections)}


repository: Repository | None = None
variable: ContextVar[sqlite3.Connection] = ContextVar("variable")


@pytest.mark.parametrize("where", ["an attribute of a local variable", "a global variable", "a context variable"])
def test_a_connection_that_is_no_local_variable(
    app: Holdfast, url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> Repository | None:
        connection = sqlite3.connect(url)
        connection.execute("INSERT INTO orders VALUES (1)")
        if where == "an attribute of a local variable":
            return Repository(connection)
        if where == "a global variable":
            monkeypatch.setattr(sys.modules[__name__], "repository", Repository(connection))
        else:
            variable.set(connection)
        return None

    def call() -> None:
        local = begin()  # noqa: F841
        with pytest.raises(TransactionError, match=TOLD):
            app.queue("inbox").send("x")

    copy_context().run(call)


@pytest.mark.parametrize("together", ["by one statement", "in one transaction"])
def test_a_thread_whose_write_another_thread_has_taken(
    app: Holdfast, connection: sqlite3.Connection, together: str
) -> None:
    """The other thread leads the group commit and waits for the lock, which this one would never release."""
    connection.execute("INSERT INTO orders VALUES (1)")
    writer = app.store.database._engine.writer  # type: ignore[attr-defined]
    held = threading.Event()

    def keep_the_others_out() -> None:
        with writer.exclusive():
            held.set()
            eventually(lambda: len(writer._queue.pending) == 2)

    with ThreadPoolExecutor(2) as pool:
        keeping = pool.submit(keep_the_others_out)
        assert held.wait(PATIENCE_SECONDS)
        inbox = app.queue("inbox")
        first = pool.submit(*((inbox.send, "1") if together == "by one statement" else (inbox.send_many, ["1"])))
        eventually(lambda: len(writer._queue.pending) == 1)
        with pytest.raises(TransactionError, match=TOLD):
            app.queue("inbox").send("second")
        keeping.result(PATIENCE_SECONDS)
        connection.commit()
        assert first.result(PATIENCE_SECONDS)
    assert app.queue("inbox").stats().ready == 1


def test_a_task_that_enqueues_without_conn(app: Holdfast, engine: Engine) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        with Session(engine) as session, ctx.complete(conn=session):
            app.queue("inbox").send("x")

    job = work.enqueue()
    drain(app)
    assert (outcomes(app, job.id), job.refresh().error_code) == (["failed"], "INTERNAL:ERROR")
    assert job.error_detail is not None and "as conn=" in job.error_detail


def test_a_transaction_on_another_connection_does_not_hide_it(
    app: Holdfast, connection: sqlite3.Connection, url: str, tmp_path: Path
) -> None:
    others = [sqlite3.connect(file, check_same_thread=False) for file in (url, tmp_path / "other.db")]
    for other in others:
        other.execute("BEGIN")
    connection.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(TransactionError, match=TOLD):
        app.queue("inbox").send("x")
    for other in others:
        other.close()


DJANGO = """
import sys
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})
import django
django.setup()
from django.db import connection, transaction
from holdfast import Holdfast
from holdfast.errors import TransactionError

app = Holdfast(sys.argv[1], busy_timeout=3600)
try:
    with transaction.atomic():
        connection.cursor().execute("INSERT INTO orders VALUES (1)")
        app.queue("inbox").send("x")
except TransactionError as error:
    print(error)
"""


def test_djangos_connection(url: str, sql: Sql) -> None:
    run = subprocess.run(
        [sys.executable, "-c", DJANGO, url], capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=os.environ
    )
    assert "this thread has a transaction open" in run.stdout, run.stderr


# --- where it is not known, or not so ---


def waits_until(release: Callable[[], object], call: Callable[[], object]) -> object:
    """Call it in this thread, and release the lock from another one after the call has begun to wait."""
    checked = threading.Event()

    def check(path: Path) -> Any:
        found = real(path)
        checked.set()
        return found

    import holdfast.store.sqlite.engine.engine as module

    real = module.self_wait
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(module, "self_wait", check)
        released = pool.submit(lambda: checked.wait(PATIENCE_SECONDS) and release())
        result = call()
        released.result(PATIENCE_SECONDS)
    return result


def test_a_connection_of_another_thread_is_waited_for(app: Holdfast, url: str) -> None:
    theirs = sqlite3.connect(url, check_same_thread=False)
    theirs.execute("INSERT INTO orders VALUES (1)")
    with ThreadPoolExecutor(1) as pool:
        bound = pool.submit(sqlite3.connect, url).result()
        assert waits_until(theirs.commit, lambda: app.queue("inbox").send("x"))
        pool.submit(bound.close).result()
    theirs.close()


def test_a_transaction_of_this_thread_that_only_reads_is_not_blamed(
    app: Holdfast, connection: sqlite3.Connection, url: str
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchall()
    theirs = sqlite3.connect(url, check_same_thread=False)
    theirs.execute("INSERT INTO orders VALUES (1)")
    assert waits_until(theirs.commit, lambda: app.queue("inbox").send("x"))
    connection.rollback()
    theirs.close()


def test_a_transaction_that_only_reads_is_not_blamed_when_the_writer_commits_after_the_look_at_the_lock(
    app: Holdfast, connection: sqlite3.Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchall()
    theirs, looks = sqlite3.connect(url), list[bool]()
    theirs.execute("INSERT INTO orders VALUES (1)")

    def look(path: Path) -> bool:
        looks.append(True)
        theirs.commit()
        return True

    monkeypatch.setattr("holdfast.store.sqlite.engine.self_wait.is_held_by_this_process", look)
    assert app.queue("inbox").send("x")
    assert looks
    connection.rollback()
    theirs.close()


def test_a_transaction_of_holdfast_in_another_thread_is_waited_for(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchall()
    opened, done = threading.Event(), threading.Event()

    def hold() -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")
            opened.set()
            assert done.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert opened.wait(PATIENCE_SECONDS)
        assert waits_until(done.set, lambda: app.queue("inbox").send("x"))
        holding.result(PATIENCE_SECONDS)
    connection.rollback()


def test_the_error_after_the_timeout_names_this_program(open_app: Callable[..., Holdfast], url: str) -> None:
    app = open_app(busy_timeout=0.1)
    holder: dict[str, sqlite3.Connection] = {"it": sqlite3.connect(url, check_same_thread=False)}
    holder["it"].execute("CREATE TABLE mine (id)")
    holder["it"].execute("BEGIN IMMEDIATE")
    eventually(lambda: is_held_by_this_process(Path(url)), "the lock is listed")  # a read of /proc/locks may miss one
    with pytest.raises(StoreBusy, match=r"a connection of this program.*as conn="):
        app.queue("inbox").send("x")
    holder["it"].close()


# --- how long ---


def test_a_call_waits_for_five_seconds_and_a_worker_for_sixty(tmp_path: Path) -> None:
    app, chosen = Holdfast(tmp_path / "a.db"), Holdfast(tmp_path / "b.db", busy_timeout=7)

    def timeout(of: Holdfast) -> float:
        return of.store.database._engine.busy_retry.timeout  # type: ignore[attr-defined,no-any-return]

    assert (timeout(app), timeout(chosen)) == (5, 7)
    for one in (app, chosen):
        one.task(name="work")(lambda: None).enqueue()
        drain(one)
    assert (timeout(app), timeout(chosen)) == (60, 7)
    app.close()
    chosen.close()


def test_a_thread_that_waits_never_uses_the_connection_of_another_thread(app: Holdfast, url: str) -> None:
    """It could hold the interpreter and wait for the connection's mutex, while the other thread does the opposite."""
    theirs, used = sqlite3.connect(url, check_same_thread=False), list[str]()
    theirs.execute("INSERT INTO orders VALUES (1)")
    theirs.set_trace_callback(used.append)
    assert waits_until(theirs.commit, lambda: app.queue("inbox").send("x"))
    assert used == ["COMMIT"]
    theirs.close()


def test_a_search_for_transactions_does_not_disturb_other_threads(connection: sqlite3.Connection) -> None:
    """CPython raises SystemError if anything refers to a tuple that is being made from a generator."""
    connection.execute("BEGIN")
    stop, errors, made = threading.Event(), list[BaseException](), deque[int](maxlen=1)

    def make_tuples() -> None:
        try:
            while not stop.is_set():
                made.append(len(tuple(number for number in range(1000))))
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        eventually(lambda: bool(made))
        for _ in range(50):
            assert open_transactions() == [connection]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        sys.setswitchinterval(interval)
    assert not errors
