"""Connections and transactions used in a way that would break their promise."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import ForeignConnection, HoldfastError, InvalidInput, ReadOnlyDatabase, TransactionError
from support.refusals import refused, stored, told
from support.running_worker import PATIENCE_SECONDS


@pytest.fixture
def connection(app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    """The user's own, with a table of theirs."""
    one = sqlite3.connect(url)
    one.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield one
    one.close()


def orders(url: str) -> int:
    other = sqlite3.connect(url)
    try:
        return int(other.execute("SELECT count(*) FROM orders").fetchone()[0])
    finally:
        other.close()


def every_way_in(app: Holdfast, conn: Any) -> list[Callable[[], object]]:
    @app.task
    def work(n: int = 0) -> None: ...

    return [
        lambda: app.queue("inbox").send("x", conn=conn),
        lambda: app.queue("inbox").send("x", key="k", conn=conn),
        lambda: app.queue("inbox").send_many(["x", "y"], conn=conn),
        lambda: work.using(conn=conn).enqueue(),
        lambda: work.using(conn=conn).enqueue_many([{}, {}]),
    ]


def test_a_connection_to_another_file_is_refused(app: Holdfast, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    Holdfast(tmp_path / "other.db").close()
    for way in every_way_in(app, other):
        with refused(app, ForeignConnection, "other.db", "app.db", "same file"):
            way()
    assert other.in_transaction is False
    assert other.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (0,)
    other.close()


def test_a_connection_that_only_attached_this_file_is_refused(app: Holdfast, url: str, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("ATTACH ? AS app", (url,))
    with refused(app, ForeignConnection, "other.db"):
        app.queue("inbox").send("x", conn=other)
    other.close()


def test_a_connection_to_memory_is_refused(app: Holdfast) -> None:
    for place in (":memory:", ""):
        other = sqlite3.connect(place)
        with refused(app, ForeignConnection, "memory", "app.db"):
            app.queue("inbox").send("x", conn=other)
        other.close()


def test_a_transaction_of_another_app_is_refused(app: Holdfast, tmp_path: Path) -> None:
    with (
        Holdfast(tmp_path / "other.db") as other,
        other.transaction() as tx,
        refused(app, ForeignConnection, "other.db", "app.db"),
    ):
        app.queue("inbox").send("x", conn=tx)


@pytest.mark.parametrize("bad", ["app.db", 5, True, False, 0, "", object(), [], sqlite3])
def test_what_is_no_connection_is_refused(app: Holdfast, bad: Any) -> None:
    for way in every_way_in(app, bad):
        with refused(app, InvalidInput, "sqlite3.Connection", "app.transaction()"):
            way()


def test_a_cursor_is_no_connection(app: Holdfast, connection: sqlite3.Connection) -> None:
    with refused(app, InvalidInput, "Cursor"):
        app.queue("inbox").send("x", conn=connection.cursor())


def test_a_connection_in_autocommit_is_refused(app: Holdfast, url: str) -> None:
    plain = sqlite3.connect(url, isolation_level=None)
    for way in every_way_in(app, plain):
        with refused(app, TransactionError, "no open transaction", "BEGIN IMMEDIATE"):
            way()
    assert plain.in_transaction is False
    plain.execute("BEGIN IMMEDIATE")
    app.queue("inbox").send("x", conn=plain)
    plain.execute("ROLLBACK")
    assert stored(app) == []
    plain.close()


def test_a_closed_connection_is_refused(app: Holdfast, connection: sqlite3.Connection) -> None:
    connection.close()
    for way in every_way_in(app, connection):
        with pytest.raises(HoldfastError, match="closed"):
            way()
    assert stored(app) == []


def test_a_connection_of_another_thread_is_refused(app: Holdfast, connection: sqlite3.Connection) -> None:
    with ThreadPoolExecutor(1) as pool:
        for way in every_way_in(app, connection):
            with pytest.raises(HoldfastError, match="thread"):
                pool.submit(way).result(PATIENCE_SECONDS)
    assert stored(app) == []


def test_a_read_only_connection_is_refused(app: Holdfast, url: str) -> None:
    reader = sqlite3.connect(f"file:{url}?mode=ro", uri=True)
    with refused(app, ReadOnlyDatabase, "written"):
        app.queue("inbox").send("x", conn=reader)
    reader.close()


def test_a_transaction_that_read_before_others_wrote_is_told_to_begin_anew(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchall()
    app.queue("inbox").send("meanwhile")
    with refused(app, TransactionError, "roll it back", "BEGIN IMMEDIATE"):
        app.queue("inbox").send("x", conn=connection)
    connection.rollback()
    app.queue("inbox").send("x", conn=connection)
    connection.commit()
    assert len(stored(app)) == 2


def test_a_refusal_leaves_the_users_transaction_as_it_was(
    app: Holdfast, connection: sqlite3.Connection, url: str
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    for bad in ({"delay": -1}, {"priority": "x"}, {"key": ""}):
        with refused(app, InvalidInput):
            app.queue("inbox").send("x", conn=connection, **bad)
    assert connection.in_transaction
    app.queue("inbox").send("good", conn=connection)
    assert (orders(url), stored(app)) == (0, [])
    connection.commit()
    assert (orders(url), len(stored(app))) == (1, 1)


def test_writing_beside_an_open_transaction_of_this_thread_is_refused(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send("first")
    held = inbox.receive()
    assert held is not None
    beside: list[Callable[[], object]] = [
        lambda: inbox.send("x"),
        lambda: inbox.send_many(["x"]),
        lambda: inbox.send("x", key="k"),
        inbox.receive,
        held.ack,
        lambda: held.extend(5),
        held.release,
        lambda: app.jobs.cancel(held.id),
        inbox.purge,
        inbox.pause,
        app.store.file.checkpoint,
        app.transaction().__enter__,
    ]
    with app.transaction() as tx:
        for write in beside:
            with told(TransactionError, "app.transaction()", "conn=tx"):
                write()
        assert inbox.stats().running == 1
        inbox.send("in it", conn=tx)
    assert held.ack() is True
    assert inbox.stats().ready == 1


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "commit;",
        "  \n\tCommit",
        "END",
        "END TRANSACTION",
        "ROLLBACK",
        "rollback transaction",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "-- done\nCOMMIT",
        "/* done */ COMMIT",
        "COMMIT -- to the disk",
        "ROLLBACK /* to */",
        ";COMMIT",
    ],
)
def test_ending_a_transaction_by_hand_is_refused(
    app: Holdfast, connection: sqlite3.Connection, url: str, statement: str
) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        app.queue("inbox").send("x", conn=tx)
        with told(TransactionError, "app.transaction()", "block"):
            tx.execute(statement)
        with pytest.raises((TransactionError, sqlite3.ProgrammingError)):
            tx.executemany(statement, [()])
        assert (orders(url), stored(app)) == (0, [])
    assert (orders(url), len(stored(app))) == (1, 1)


def test_savepoints_inside_a_transaction_are_the_users_own(app: Holdfast, connection: sqlite3.Connection) -> None:
    with app.transaction() as tx:
        tx.execute("SAVEPOINT mine")
        app.queue("inbox").send("undone", conn=tx)
        tx.execute("ROLLBACK TO mine")
        tx.execute("RELEASE mine")
        app.queue("inbox").send("kept", conn=tx)
    assert len(stored(app)) == 1


def test_a_transaction_that_sqlite_ended_does_not_pass_for_a_commit(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    with pytest.raises(TransactionError), app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        tx.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError):
            tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1)")
        with told(TransactionError, "ended"):
            app.queue("inbox").send("y", conn=tx)
    assert stored(app) == []


def test_a_transaction_used_after_its_end_is_refused(app: Holdfast) -> None:
    with app.transaction() as tx:
        pass
    ways: list[Callable[[], object]] = [*every_way_in(app, tx), lambda: tx.execute("SELECT 1")]
    for way in ways:
        with refused(app, TransactionError, "ended", "app.transaction()"):
            way()


def test_a_transaction_used_while_another_is_open_on_its_connection_is_refused(app: Holdfast) -> None:
    with app.transaction() as first:
        pass
    with app.transaction() as second:
        with told(TransactionError, "ended"):
            first.execute("SELECT 1")
        app.queue("inbox").send("x", conn=second)
    assert len(stored(app)) == 1


def within_patience(call: Callable[[], object]) -> None:
    """A call that must return or raise. A thread of its own, since one that waits for itself never does."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001  it is the outcome
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert outcome, "it waits for itself"
    if isinstance(outcome[0], BaseException) and not isinstance(outcome[0], HoldfastError):
        raise outcome[0]


def test_closing_the_app_inside_its_own_transaction_does_not_wait_for_itself(app: Holdfast) -> None:
    def close_inside() -> None:
        with app.transaction():
            app.close()

    within_patience(close_inside)


def test_bodies_that_write_as_they_are_read_do_not_wait_for_themselves(open_app: Callable[..., Holdfast]) -> None:
    """A generator of more bodies than one batch is read while the write lock is held."""
    app = open_app(durability="normal")
    source, target = app.queue("source"), app.queue("target")

    def bodies() -> Iterator[int]:
        for n in range(1100):
            source.send(n)
            yield n

    within_patience(lambda: target.send_many(bodies()))


def test_bodies_are_read_in_the_thread_that_sends_them(app: Holdfast) -> None:
    """A cursor of the user's own connection, say, gives its rows to no other thread."""
    threads, first_batch = 4, 1000
    arrived = threading.Barrier(threads + 1)

    def send() -> set[int]:
        readers = set[int]()

        def bodies() -> Iterator[int]:
            for n in range(first_batch + 100):
                if n == first_batch - 1:
                    arrived.wait(PATIENCE_SECONDS)
                readers.add(threading.get_ident())
                yield n

        app.queue("inbox").send_many(bodies())
        return readers - {threading.get_ident()}

    with ThreadPoolExecutor(threads) as pool:
        with app.transaction():  # until all of them stand in line
            sending = [pool.submit(send) for _ in range(threads)]
            arrived.wait(PATIENCE_SECONDS)
        strangers = [one.result(PATIENCE_SECONDS) for one in sending]
    assert strangers == [set()] * threads
