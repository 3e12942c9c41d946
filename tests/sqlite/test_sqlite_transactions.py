"""Transactions as only SQLite has them: one writer at a time, statements that fail alone, factories for rows."""

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Queue, Then
from holdfast.errors import TransactionError
from support.flow import Flow
from support.running_worker import PATIENCE_SECONDS, drain, outcomes

Sql = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def orders(sql: Sql) -> None:
    sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL UNIQUE)")


@pytest.fixture
def flow(app: Holdfast) -> Flow:
    return Flow(app)


def items(sql: Sql) -> list[str]:
    return [item for (item,) in sql("SELECT item FROM orders ORDER BY id")]


def test_statements_take_values_and_tell_the_last_row(app: Holdfast, sql: Sql) -> None:
    with app.transaction() as tx:
        assert tx.execute("INSERT INTO orders (item) VALUES (?)", ("kelp",)).lastrowid == 1
        tx.executemany("INSERT INTO orders (item) VALUES (?)", [("dulse",), ("nori",)])
    assert items(sql) == ["kelp", "dulse", "nori"]


def test_a_failed_statement_leaves_the_transaction_usable(app: Holdfast, sql: Sql) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send("kept", conn=tx)
        with pytest.raises(Exception, match="NOT NULL"):
            tx.execute("INSERT INTO orders (item) VALUES (NULL)")
    assert sql("SELECT count(*) FROM holdfast_jobs") == [(1,)]


def test_in_an_attempt_a_failed_statement_undoes_the_block_unless_it_is_dealt_with(app: Holdfast, sql: Sql) -> None:
    @app.task(retry=0)
    def job(ctx: Context) -> None:
        with ctx.complete() as tx:
            tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
            if ctx.attempt == 1:
                tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
            with pytest.raises(sqlite3.IntegrityError):
                tx.execute("INSERT INTO orders (item) VALUES ('kelp')")

    one = job.enqueue()
    drain(app)
    assert (outcomes(app, one.id), items(sql)) == (["retry_scheduled", "succeeded"], ["kelp"])


def test_beginning_another_by_hand_is_refused(app: Holdfast) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        with pytest.raises(TransactionError, match="commits when the block ends"):
            tx.execute("BEGIN IMMEDIATE")
    assert app.queue("inbox").stats().ready == 1


def test_other_threads_wait_for_the_transaction_and_then_write(app: Holdfast) -> None:
    sent: list[int] = []
    thread = threading.Thread(target=lambda: sent.append(app.queue("inbox").send("from a thread")))
    with app.transaction() as tx:
        thread.start()
        first = app.queue("inbox").send("from the transaction", conn=tx)
        assert sent == []
    thread.join(PATIENCE_SECONDS)
    assert sent and sent[0] > first


# --- rows read in another way ---


@pytest.mark.parametrize("history", [True, False])
def test_a_consumer_may_read_rows_in_another_way(app: Holdfast, flow: Flow, sql: Sql, history: bool) -> None:
    inbox: Queue[Any] = app.queue("inbox", history=history)
    inbox.send("hello")
    message = inbox.receive()
    assert message is not None
    with message.ack_with() as tx:
        tx.connection.row_factory = sqlite3.Row
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        assert tx.execute("SELECT item FROM orders").fetchone()["item"] == "kelp"
        flow.step.using(conn=tx, key="k").enqueue("child")
    assert (items(sql), inbox.stats().total) == (["kelp"], 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_may_read_rows_in_another_way(app: Holdfast, flow: Flow, kind: str) -> None:
    blocker = flow.job("blocker")

    def body(ctx: Context) -> None:
        with ctx.complete(Then(flow.step.using(after=[blocker]), "next")) as tx:
            tx.connection.row_factory = lambda _cursor, row: {"row": row}
            tx.connection.text_factory = bytes
            tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
            assert tx.execute("SELECT item FROM orders").fetchone() == {"row": (b"kelp",)}
            flow.job("child", blocker, conn=tx)
            flow.step.using(conn=tx, key="k").enqueue("keyed")

    async def body_later(ctx: Context) -> None:
        body(ctx)

    job = app.task(name="job", max_attempts=1)(body if kind == "sync" else body_later).enqueue()
    drain(app)
    assert job.wait_chain(timeout=0) == "NEXT"
    assert sorted(flow.ran) == ["blocker", "child", "keyed", "next"]
    with app.transaction() as tx:
        assert tx.execute("SELECT item FROM orders").fetchone() == ("kelp",), "the next one has plain rows"
