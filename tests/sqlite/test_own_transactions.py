"""conn=: enqueueing inside the caller's own sqlite3 transaction."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.errors import ForeignConnection, InvalidInput, InvalidPayload, StoreError, TransactionError


@pytest.fixture
def conn(app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    """A connection of the caller, as sqlite3.connect opens it, and a table of the caller."""
    with closing(sqlite3.connect(url)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        yield connection


@pytest.fixture
def ship(app: Holdfast) -> Task[[int], None]:
    @app.task
    def ship(order: int) -> None: ...

    return ship


def orders(url: str) -> int:
    with closing(sqlite3.connect(url)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM orders")
        return int(count)


ENQUEUES: dict[str, Callable[[Holdfast, Any, sqlite3.Connection], Any]] = {
    "enqueue": lambda app, ship, conn: ship.using(conn=conn).enqueue(1),
    "enqueue with key": lambda app, ship, conn: ship.using(conn=conn, key="k").enqueue(1),
    "enqueue_many": lambda app, ship, conn: ship.using(conn=conn).enqueue_many([{"order": 1}]),
    "send": lambda app, ship, conn: app.queue("inbox").send("x", conn=conn),
    "send_many": lambda app, ship, conn: app.queue("inbox").send_many(["x"], conn=conn),
}


@pytest.fixture(params=ENQUEUES.values(), ids=ENQUEUES.keys())
def enqueue(
    request: pytest.FixtureRequest, app: Holdfast, ship: Task[[int], None]
) -> Callable[[sqlite3.Connection], Any]:
    return lambda conn: request.param(app, ship, conn)


Enqueue = Callable[[sqlite3.Connection], Any]


def test_it_exists_if_the_transaction_commits(
    app: Holdfast, conn: sqlite3.Connection, url: str, enqueue: Enqueue
) -> None:
    with conn:
        conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
        enqueue(conn)
    assert (orders(url), len(app.jobs.list())) == (1, 1)


def test_it_does_not_exist_if_the_transaction_rolls_back(
    app: Holdfast, conn: sqlite3.Connection, url: str, enqueue: Enqueue
) -> None:
    with pytest.raises(ZeroDivisionError), conn:
        conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
        enqueue(conn)
        raise ZeroDivisionError
    assert (orders(url), len(app.jobs.list())) == (0, 0)


def test_enqueueing_does_not_commit(app: Holdfast, conn: sqlite3.Connection, url: str, enqueue: Enqueue) -> None:
    conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
    enqueue(conn)
    assert conn.in_transaction
    assert (orders(url), len(app.jobs.list())) == (0, 0)
    conn.rollback()


def test_it_may_be_the_first_statement_of_the_transaction(
    app: Holdfast, conn: sqlite3.Connection, enqueue: Enqueue
) -> None:
    assert not conn.in_transaction
    enqueue(conn)
    assert conn.in_transaction
    assert len(app.jobs.list()) == 0
    conn.commit()
    assert len(app.jobs.list()) == 1


def test_an_error_of_holdfast_leaves_the_transaction_usable(
    app: Holdfast, conn: sqlite3.Connection, url: str
) -> None:
    with conn:
        conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
        with pytest.raises(InvalidPayload):
            app.queue("inbox").send_many(["x"] * 1500 + [float("nan")], conn=conn)
        assert conn.in_transaction
        conn.execute("INSERT INTO orders (item) VALUES ('dulse')")
        app.queue("inbox").send("after", conn=conn)
    assert orders(url) == 2
    assert [message.body for message in app.queue("inbox").receive_many(10)] == ["after"]


def test_an_error_of_the_database_leaves_the_transaction_usable(
    app: Holdfast, conn: sqlite3.Connection, url: str, enqueue: Enqueue
) -> None:
    conn.execute("CREATE TRIGGER refuse BEFORE INSERT ON holdfast_jobs BEGIN SELECT RAISE(ABORT, 'not today'); END")
    with conn:
        conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
        with pytest.raises(StoreError, match="not today"):
            enqueue(conn)
        assert conn.in_transaction
        conn.execute("INSERT INTO orders (item) VALUES ('dulse')")
    assert (orders(url), len(app.jobs.list())) == (2, 0)


def test_savepoints_of_the_caller_still_work(app: Holdfast, conn: sqlite3.Connection) -> None:
    with conn:
        conn.execute("INSERT INTO orders (item) VALUES ('kelp')")
        app.queue("inbox").send("kept", conn=conn)
        conn.execute("SAVEPOINT holdfast")  # the name that Holdfast uses, too
        app.queue("inbox").send("dropped", conn=conn)
        conn.execute("ROLLBACK TO holdfast")
        conn.execute("RELEASE holdfast")
    assert [message.body for message in app.queue("inbox").receive_many(10)] == ["kept"]


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda cursor, row: {"row": row}])
def test_a_row_factory_of_the_caller_is_kept(
    app: Holdfast, conn: sqlite3.Connection, enqueue: Enqueue, factory: Any
) -> None:
    conn.row_factory = factory
    with conn:
        enqueue(conn)
        enqueue(conn)
    assert conn.row_factory is factory
    assert len(app.jobs.list()) in (1, 2)


def test_a_text_factory_of_the_caller_is_kept(app: Holdfast, conn: sqlite3.Connection, enqueue: Enqueue) -> None:
    conn.text_factory = bytes
    with conn:
        enqueue(conn)
        enqueue(conn)
    assert conn.text_factory is bytes
    assert {job.queue for job in app.jobs.list()} <= {"default", "inbox"}


def test_a_row_factory_is_kept_after_an_error(app: Holdfast, conn: sqlite3.Connection) -> None:
    conn.row_factory = sqlite3.Row
    with pytest.raises(InvalidPayload), conn:
        app.queue("inbox").send_many([float("nan")], conn=conn)
    assert conn.row_factory is sqlite3.Row


def test_an_autocommit_connection_without_a_transaction_is_refused(app: Holdfast, url: str, enqueue: Enqueue) -> None:
    with closing(sqlite3.connect(url, isolation_level=None)) as autocommit:
        with pytest.raises(TransactionError, match="BEGIN IMMEDIATE"):
            enqueue(autocommit)
        assert not autocommit.in_transaction
    assert len(app.jobs.list()) == 0


def test_an_autocommit_connection_with_a_transaction_is_accepted(app: Holdfast, url: str, enqueue: Enqueue) -> None:
    with closing(sqlite3.connect(url, isolation_level=None)) as autocommit:
        autocommit.execute("BEGIN IMMEDIATE")
        enqueue(autocommit)
        autocommit.execute("COMMIT")
    assert len(app.jobs.list()) == 1


def test_a_transaction_that_cannot_write_any_more_is_refused(
    app: Holdfast, conn: sqlite3.Connection, url: str, enqueue: Enqueue
) -> None:
    """It began with a read, and another connection has written since: SQLite rejects the upgrade at once."""
    conn.commit()
    conn.execute("BEGIN")
    conn.execute("SELECT count(*) FROM orders").fetchall()
    app.queue("other").send("meanwhile")
    with pytest.raises(TransactionError, match="BEGIN IMMEDIATE") as caught:
        enqueue(conn)
    assert "database is locked" not in str(caught.value)
    conn.rollback()


def test_a_connection_to_another_file_is_refused(app: Holdfast, tmp_path: Path, enqueue: Enqueue) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(ForeignConnection, match="same file"),
    ):
        enqueue(other)


def test_a_connection_to_memory_is_refused(app: Holdfast, enqueue: Enqueue) -> None:
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(ForeignConnection):
        enqueue(other)


def test_a_connection_by_another_path_to_the_same_file_is_accepted(
    app: Holdfast, url: str, tmp_path: Path, enqueue: Enqueue
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(url)
    with closing(sqlite3.connect(link)) as conn:
        enqueue(conn)
        conn.commit()
    assert len(app.jobs.list()) == 1


@pytest.mark.parametrize("value", ["app.db", 5, object()])
def test_a_value_that_is_not_a_connection_is_refused(app: Holdfast, enqueue: Enqueue, value: Any) -> None:
    with pytest.raises(InvalidInput, match="conn="):
        enqueue(value)


def test_a_connection_of_the_caller_no_longer_checkpoints(conn: sqlite3.Connection, enqueue: Enqueue) -> None:
    enqueue(conn)
    conn.commit()
    assert conn.execute("PRAGMA wal_autocheckpoint").fetchall() == [(0,)]


def test_guard_connections_false_leaves_its_checkpoints_alone(
    open_app: Callable[..., Holdfast], conn: sqlite3.Connection
) -> None:
    app = open_app(guard_connections=False)
    app.queue("inbox").send("x", conn=conn)
    conn.commit()
    assert conn.execute("PRAGMA wal_autocheckpoint").fetchall() != [(0,)]


def test_a_key_is_found_inside_the_transaction_that_inserted_it(
    conn: sqlite3.Connection, ship: Task[[int], None]
) -> None:
    bound = ship.using(conn=conn, key="k")
    first, second = bound.enqueue(1), bound.enqueue(2)
    assert (first.id == second.id, second.deduplicated) == (True, True)
    conn.commit()


def test_the_event_is_part_of_the_transaction(app: Holdfast, conn: sqlite3.Connection, enqueue: Enqueue) -> None:
    enqueue(conn)
    assert conn.execute("SELECT event FROM holdfast_events").fetchall() == [("enqueued",)]
    conn.rollback()
    assert conn.execute("SELECT count(*) FROM holdfast_events").fetchall() == [(0,)]
