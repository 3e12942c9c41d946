"""app.transaction(): the user's statements and our enqueues commit together, or not at all."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.errors import InvalidPayload, StoreClosed, TransactionError

Sql = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def orders(sql: Sql) -> None:
    sql("CREATE TABLE orders (item TEXT NOT NULL)")


@pytest.fixture
def ship(app: Holdfast) -> Task[[int], None]:
    @app.task
    def ship(order: int) -> None: ...

    return ship


def test_statements_and_enqueues_commit_together(app: Holdfast, ship: Task[[int], None], sql: Sql) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        job = ship.using(conn=tx).enqueue(7)
        message = app.queue("inbox").send("ordered", conn=tx)
    assert sql("SELECT item FROM orders") == [("kelp",)]
    assert app.jobs.get(job.id).args == {"order": 7}
    assert app.jobs.get(message).args == "ordered"


def test_an_exception_rolls_all_of_it_back(app: Holdfast, ship: Task[[int], None], sql: Sql) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        ship.using(conn=tx).enqueue(1)
        app.queue("inbox").send_many([1, 2], conn=tx)
        ship.using(conn=tx).enqueue_many([{"order": 1}])
        raise ZeroDivisionError
    assert sql("SELECT count(*) FROM orders") == [(0,)]
    assert sql("SELECT count(*) FROM holdfast_jobs") == [(0,)]
    assert sql("SELECT count(*) FROM holdfast_events") == [(0,)]


def test_nothing_is_seen_before_the_commit(app: Holdfast) -> None:
    with app.transaction() as tx:
        id = app.queue("inbox").send("secret", conn=tx)
        assert app.store.jobs.get(id) is None
    assert app.store.jobs.get(id) is not None


def test_a_statement_sees_what_came_before_it(app: Holdfast) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp'), ('dulse')")
        app.queue("inbox").send("x", conn=tx)
        assert tx.execute("SELECT count(*) FROM orders").fetchall() == [(2,)]
        assert tx.execute("SELECT count(*) FROM holdfast_jobs").fetchall() == [(1,)]


def test_a_failed_enqueue_leaves_the_transaction_usable(app: Holdfast, sql: Sql) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        with pytest.raises(InvalidPayload):
            app.queue("inbox").send_many([1, float("nan")], conn=tx)
        app.queue("inbox").send("after the error", conn=tx)
    assert sql("SELECT item FROM orders") == [("kelp",)]
    assert [message.body for message in app.queue("inbox").receive_many(10)] == ["after the error"]


def test_keys_hold_within_a_transaction(app: Holdfast, ship: Task[[int], None]) -> None:
    with app.transaction() as tx:
        first = ship.using(conn=tx, key="k").enqueue(1)
        second = ship.using(conn=tx, key="k").enqueue(2)
    assert (first.id == second.id, second.deduplicated) == (True, True)


@pytest.mark.parametrize("statement", ["COMMIT", "  rollback;", "BEGIN", "END", "end transaction"])
def test_ending_it_by_hand_is_refused(app: Holdfast, statement: str) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        with pytest.raises(TransactionError, match="commits when the block ends"):
            tx.execute(statement)
    assert app.queue("inbox").stats().ready == 1


def test_savepoints_of_ones_own_are_allowed(app: Holdfast) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send("kept", conn=tx)
        tx.execute("SAVEPOINT mine")
        app.queue("inbox").send("dropped", conn=tx)
        tx.execute("ROLLBACK TO mine")
        tx.execute("RELEASE mine")
    assert [message.body for message in app.queue("inbox").receive_many(10)] == ["kept"]


def test_a_transaction_that_has_ended_cannot_be_used(app: Holdfast) -> None:
    with app.transaction() as tx:
        pass
    with pytest.raises(TransactionError, match="ended"):
        tx.execute("SELECT 1")
    with pytest.raises(TransactionError, match="ended"):
        app.queue("inbox").send("x", conn=tx)


def test_writing_beside_ones_own_transaction_is_refused_instead_of_hanging(app: Holdfast) -> None:
    with app.transaction(), pytest.raises(TransactionError, match="conn=tx"):
        app.queue("inbox").send("beside")
    assert app.queue("inbox").stats().total == 0


def test_a_transaction_within_a_transaction_is_refused(app: Holdfast) -> None:
    with app.transaction(), pytest.raises(TransactionError), app.transaction():
        pass
    app.queue("inbox").send("still works")


def test_reading_beside_ones_own_transaction_works(app: Holdfast) -> None:
    id = app.queue("inbox").send("before")
    with app.transaction() as tx:
        tx.execute("DELETE FROM holdfast_jobs")
        assert app.jobs.get(id).args == "before"
        assert app.queue("inbox").stats().ready == 1


def test_an_enqueued_job_in_a_transaction_is_received_after_the_commit_by_others(
    app: Holdfast, open_app: Callable[..., Holdfast]
) -> None:
    other = open_app()
    with app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        assert other.queue("inbox").stats().total == 0
    assert other.queue("inbox").stats().total == 1


def test_after_close_there_is_no_transaction(app: Holdfast) -> None:
    app.close()
    with pytest.raises(StoreClosed), app.transaction():
        pass
