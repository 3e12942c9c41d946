"""14.6: an app on the connection of a test, inside its transaction."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast, Then, group
from holdfast.errors import ForeignConnection, InvalidInput, LeaseLost, TransactionError
from holdfast.testing import FakeClock, assert_enqueued, drain, enqueued, inline, on_connection, refute_enqueued


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    """The app of the program under test, on its own database."""
    with Holdfast(tmp_path / "program.db") as app:
        yield app


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield connection
    connection.close()


def tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'holdfast%'")]


def test_jobs_are_in_the_transaction_of_the_test_and_are_rolled_back_with_it(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    @app.task
    def work(n: int) -> int:
        return n + 1

    own = app.store
    with on_connection(app, connection) as same:
        assert same is app and app.store is not own
        connection.execute("INSERT INTO orders VALUES (1)")
        job = work.using(conn=connection).enqueue(1)
        work.using(delay=3600).enqueue(2)
        assert connection.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (2,)
        assert drain(app).succeeded == 2
        assert job.refresh().result == 2
        assert_enqueued(work, n=2, delay=3600)
    assert app.store is own and enqueued(app) == []
    assert tables(connection) == [] and not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_a_transaction_that_is_open_already_is_left_to_its_owner(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    with on_connection(app, connection):
        app.queue("inbox").send("x")
    assert connection.in_transaction
    connection.rollback()
    assert tables(connection) == []


@pytest.mark.parametrize("isolation_level", ["", None], ids=["legacy", "autocommit"])
def test_a_test_that_commits_leaves_no_table_behind(app: Holdfast, isolation_level: Any) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=isolation_level)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    for _ in range(2):
        with on_connection(app, connection):
            app.queue("inbox").send("x")
            connection.commit()
            app.queue("inbox").send("y")
            connection.commit()
            assert app.queue("inbox").stats().ready == 2
    assert tables(connection) == []
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.close()


def test_tables_that_were_there_before_stay(app: Holdfast, tmp_path: Path) -> None:
    Holdfast(tmp_path / "test.db").close()
    connection = sqlite3.connect(tmp_path / "test.db")
    with on_connection(app, connection):
        app.queue("inbox").send("x")
        connection.commit()
    assert "holdfast_jobs" in tables(connection)
    connection.close()


def test_everything_else_works_there(app: Holdfast, connection: sqlite3.Connection) -> None:
    """Transactions, completion, messages, workflows, schedules, statistics, large payloads."""

    @app.task
    def book(ctx: Context, order: int) -> None:
        with ctx.complete() as tx:
            tx.execute("INSERT INTO orders VALUES (?)", (order,))
            tx.result = Then(ship, order)

    @app.task
    def ship(order: int) -> str:
        return f"shipped {order}"

    @app.task(max_attempts=2, retry=0)
    def fails(ctx: Context) -> None:
        with ctx.complete() as tx:
            tx.execute("INSERT INTO orders VALUES (99)")
            raise ValueError

    @app.task
    def long(text: str) -> str:
        return text

    @app.cron("0 * * * *")
    def hourly() -> None: ...

    clock = FakeClock()
    with on_connection(app, connection, clock):
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")
            book.using(conn=tx).enqueue(2)
        with pytest.raises(ZeroDivisionError), app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (3)")
            book.using(conn=tx).enqueue(3)
            raise ZeroDivisionError
        fails.enqueue()
        big = long.enqueue("x" * 300_000)
        steps = app.pipeline(ship.s(7), group(ship.s(8), ship.s(9)))
        ran = drain(app)
        assert (ran.failed, ran.retried) == (1, 1)
        assert [job.refresh().result for job in steps] == ["shipped 7", "shipped 8", "shipped 9"]
        assert len(big.refresh().result) == 300_000
        assert connection.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,)]
        assert [job.args["order"] for job in enqueued(ship, status="succeeded")][:1]
        clock.advance(3600)
        assert [one.task for one in drain(app, seconds=0)] == ["hourly"]
        inbox = app.queue("inbox")
        inbox.send_many(["a", "b"])
        message = inbox.receive()
        assert message is not None
        with message.ack_with(conn=connection):
            connection.execute("INSERT INTO orders VALUES (50)")
        assert inbox.stats().total == 1
        with inline(app):
            assert ship.enqueue(1).result == "shipped 1"
        assert app.jobs.explain(big.id)


def test_a_write_beside_an_open_block_is_refused_as_in_production(
    app: Holdfast, connection: sqlite3.Connection
) -> None:
    with on_connection(app, connection), app.transaction() as tx:
        with pytest.raises(TransactionError, match="conn=tx"):
            app.queue("inbox").send("x")
        app.queue("inbox").send("x", conn=tx)


def test_another_connection_is_refused(app: Holdfast, connection: sqlite3.Connection, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "program.db")
    with on_connection(app, connection):
        with pytest.raises(ForeignConnection, match="on_connection"):
            app.queue("inbox").send("x", conn=other)
        with pytest.raises(InvalidInput, match=r"sqlite3\.Connection"):
            app.queue("inbox").send("x", conn="test.db")
    other.close()


def test_without_it_the_error_names_it(app: Holdfast, connection: sqlite3.Connection) -> None:
    with pytest.raises(ForeignConnection, match=r"holdfast\.testing\.on_connection"):
        app.queue("inbox").send("x", conn=connection)


@pytest.mark.parametrize("conn", [None, 7, "test.db"])
def test_other_values_are_refused(app: Holdfast, conn: Any) -> None:
    with pytest.raises(InvalidInput), on_connection(app, conn):
        pass


def test_other_apps_are_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(InvalidInput, match="app must be a Holdfast"), on_connection("app", connection):  # type: ignore[type-var]
        pass


def test_a_worker_is_refused(app: Holdfast, connection: sqlite3.Connection) -> None:
    app.task(name="work")(lambda: None)
    with on_connection(app, connection), pytest.raises(TransactionError, match="drain or inline"):
        app.worker(until_idle=True).run()


def test_a_lost_lease_undoes_the_block(app: Holdfast, connection: sqlite3.Connection) -> None:
    with on_connection(app, connection) as _, pytest.raises(LeaseLost):
        inbox = app.queue("inbox")
        inbox.send("x")
        message = inbox.receive()
        assert message is not None
        message.ack()
        with message.ack_with() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")


@pytest.fixture(params=["memory", "file"])
def joined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    """SQLAlchemy's recipe for tests: sessions on a connection whose transaction is rolled back."""
    place = "" if request.param == "memory" else f"/{tmp_path / 'shop.db'}"
    engine = create_engine(f"sqlite://{place}")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        connection.commit()
        yield connection
    engine.dispose()


def test_sessions_that_commit_are_rolled_back_with_their_jobs(app: Holdfast, joined: Connection) -> None:
    @app.task
    def work(order: int) -> None: ...

    @app.task
    def book(ctx: Context, order: int) -> None:
        with Session(joined, join_transaction_mode="create_savepoint") as session, ctx.complete(conn=session):
            session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order})

    for _ in range(2):
        with on_connection(app, joined):
            refute_enqueued(app)
            with Session(joined, join_transaction_mode="create_savepoint") as session:
                session.execute(text("INSERT INTO orders VALUES (1)"))
                work.using(conn=session).enqueue(1)
                session.commit()
                session.execute(text("INSERT INTO orders VALUES (2)"))
                work.using(conn=session).enqueue(2)
                session.rollback()
                book.using(conn=session).enqueue(3)
                session.commit()
                assert drain(app).succeeded == 2
                assert session.execute(text("SELECT id FROM orders ORDER BY id")).scalars().all() == [1, 3]
            assert_enqueued(work, order=1, count=1)
            refute_enqueued(work, order=2)
        joined.rollback()
    assert joined.execute(text("SELECT count(*) FROM orders")).scalar() == 0


def test_the_fixture_uses_the_database_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop="""
        from holdfast import Holdfast

        app = Holdfast("real.db")

        @app.task
        def work(order: int) -> int:
            return order
        """,
        conftest="""
        import sqlite3
        import pytest

        @pytest.fixture
        def holdfast_database():
            connection = sqlite3.connect(":memory:")
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            return connection
        """,
        test_shop="""
        from holdfast.testing import drain
        from shop import work

        def test_one(holdfast_app, holdfast_database):
            with holdfast_database:
                holdfast_database.execute("INSERT INTO orders VALUES (1)")
                job = work.using(conn=holdfast_database).enqueue(1)
            assert drain(holdfast_app).succeeded == 1
            assert job.refresh().result == 1
        """,
    )
    pytester.makeini("[pytest]\nholdfast_app = shop:app\n")
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


pytest_plugins = ["pytester"]
