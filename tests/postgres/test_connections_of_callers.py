"""`conn=`: connections of psycopg and of SQLAlchemy on it, and what is refused."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import Context, Holdfast
from holdfast.errors import ForeignConnection, InvalidInput, TransactionError
from support.postgres_backend import PostgresBackend, server_url

Noted = list[str]


@pytest.fixture
def app(backend: PostgresBackend) -> Holdfast:
    app = backend.open()

    @app.task
    def work(number: int = 0) -> None: ...

    return app


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """The first word of each statement that is sent."""
    found: Noted = []
    execute = psycopg.Cursor.execute

    def note(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        found.append(str(query).split()[0])
        return execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", note)
    return found


def for_sqlalchemy(backend: PostgresBackend) -> str:
    return backend.url.replace("postgresql:", "postgresql+psycopg:", 1)


def test_a_plain_enqueue_is_one_statement_and_others_have_one_savepoint(
    app: Holdfast, backend: PostgresBackend, noted: Noted
) -> None:
    with closing(backend.connect()) as connection:
        app.tasks["work"].using(conn=connection).enqueue()  # the first one also compares the databases
        noted.clear()
        app.tasks["work"].using(conn=connection).enqueue()
        assert noted == ["INSERT"]
        noted.clear()
        app.tasks["work"].using(conn=connection, key="one").enqueue()
        assert noted == ["SAVEPOINT", "SELECT", "INSERT", "RELEASE"]


def test_an_async_connection_of_psycopg_takes_part(app: Holdfast, backend: PostgresBackend) -> None:
    work = app.tasks["work"]

    async def run(end: str) -> None:
        async with await psycopg.AsyncConnection.connect(backend.url) as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS orders (id int)")
            await connection.execute("INSERT INTO orders VALUES (1)")
            await work.using(conn=connection).aenqueue(1)
            keyed = await work.using(conn=connection, key="one").aenqueue(2)
            again = await work.using(conn=connection, key="one").aenqueue(3)
            assert again.id == keyed.id
            await work.using(conn=connection, after=[keyed]).aenqueue(4)
            assert len(await work.using(conn=connection).aenqueue_many([{"number": 5}] * 3)) == 3
            assert app.jobs.count() == 0
            await (connection.rollback() if end == "rollback" else connection.commit())

    asyncio.run(run("rollback"))
    assert app.jobs.count() == 0
    asyncio.run(run("commit"))
    assert app.jobs.count() == 6
    assert backend.sql("SELECT id FROM orders") == [(1,)]


def test_an_error_on_an_async_connection_leaves_its_transaction_usable(
    app: Holdfast, backend: PostgresBackend
) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(backend.url) as connection:
            with pytest.raises(InvalidInput):
                await app.tasks["work"].using(conn=connection, after=[message]).aenqueue()
            await app.tasks["work"].using(conn=connection).aenqueue()

    message = app.queue("inbox").send("hi")
    asyncio.run(run())
    assert app.jobs.count(task="work") == 1


def test_an_async_connection_is_refused_by_enqueue(app: Holdfast, backend: PostgresBackend) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(backend.url) as connection:
            with pytest.raises(InvalidInput, match=r"await task\.using\(conn=…\)\.aenqueue"):
                app.tasks["work"].using(conn=connection).enqueue()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
def test_async_sessions_and_connections_of_sqlalchemy_take_part(
    app: Holdfast, backend: PostgresBackend, kind: type[Any]
) -> None:
    async def run(end: str) -> None:
        engine = create_async_engine(for_sqlalchemy(backend))
        async with AsyncSession(engine) if kind is AsyncSession else engine.connect() as conn:
            await conn.execute(text("SELECT 1"))
            await app.tasks["work"].using(conn=conn).aenqueue(1)
            await app.tasks["work"].using(conn=conn, key="one").aenqueue(2)
            await app.tasks["work"].using(conn=conn).aenqueue_many([{"number": 3}])
            await conn.run_sync(lambda sync: app.queue("inbox").send("hi", conn=sync))
            await getattr(conn, end)()
        await engine.dispose()

    asyncio.run(run("rollback"))
    assert app.jobs.count() == 0
    asyncio.run(run("commit"))
    assert app.jobs.count() == 4


@pytest.mark.parametrize("kind", [Session, "connection"])
def test_sessions_and_connections_of_sqlalchemy_take_part(app: Holdfast, backend: PostgresBackend, kind: Any) -> None:
    engine = create_engine(for_sqlalchemy(backend))
    for end in ("rollback", "commit"):
        with Session(engine) if kind is Session else engine.connect() as conn:
            conn.execute(text("SELECT 1"))
            app.tasks["work"].using(conn=conn).enqueue(1)
            app.tasks["work"].using(conn=conn, key="one").enqueue(1)
            getattr(conn, end)()
        assert app.jobs.count() == (2 if end == "commit" else 0)
    engine.dispose()


def test_a_job_completes_on_an_async_session(app: Holdfast, backend: PostgresBackend) -> None:
    backend.sql("CREATE TABLE orders (id int)")

    @app.task
    async def order(ctx: Context) -> None:
        engine = create_async_engine(for_sqlalchemy(backend))
        async with AsyncSession(engine) as session, ctx.acomplete(conn=session, result="done"):
            await session.execute(text("INSERT INTO orders VALUES (7)"))
            await app.tasks["work"].using(conn=session).aenqueue(1)
        await engine.dispose()

    job = order.enqueue()
    app.worker(until_idle=True).run()
    assert (job.refresh().status, job.result) == ("succeeded", "done")
    assert backend.sql("SELECT id FROM orders") == [(7,)]
    assert app.jobs.count(task="work", status="succeeded") == 1


@pytest.fixture
def order(app: Holdfast, backend: PostgresBackend) -> Any:
    """A task that completes on an AsyncConnection of psycopg, and does in the block what its argument says."""
    backend.sql("CREATE TABLE orders (id int)")

    @app.task(max_attempts=1)
    async def order(ctx: Context, then: str) -> None:
        async with await psycopg.AsyncConnection.connect(backend.url) as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
            if then == "lose":
                app.jobs.cancel(ctx.job_id or 0)
            async with ctx.acomplete(conn=connection, result="done") as tx:
                await connection.execute("INSERT INTO orders VALUES (2)")
                await tx.execute("INSERT INTO orders VALUES (3)")
                await app.tasks["work"].using(conn=connection).aenqueue(1)
                if then == "raise":
                    raise ValueError(then)
                if then == "wait":
                    await asyncio.Event().wait()

    return order


def test_a_job_completes_on_an_async_connection_of_psycopg(
    app: Holdfast, backend: PostgresBackend, order: Any
) -> None:
    job = order.enqueue("complete")
    app.worker(until_idle=True).run()
    assert (job.refresh().status, job.result) == ("succeeded", "done")
    assert backend.sql("SELECT id FROM orders ORDER BY 1") == [(1,), (2,), (3,)]
    assert app.jobs.count(task="work", status="succeeded") == 1


@pytest.mark.parametrize(("then", "status"), [("raise", "failed"), ("lose", "cancelled")])
def test_a_block_on_an_async_connection_is_undone(
    app: Holdfast, backend: PostgresBackend, order: Any, then: str, status: str
) -> None:
    job = order.enqueue(then)
    app.worker(until_idle=True).run()
    assert job.refresh().status == status
    assert backend.sql("SELECT count(*) FROM orders") == [(0,)]
    assert app.jobs.count(task="work") == 0


def test_a_cancelled_block_on_an_async_connection_is_undone(backend: PostgresBackend, order: Any) -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(order("wait"), 0.5)

    asyncio.run(run())
    assert backend.sql("SELECT count(*) FROM orders") == [(0,)]


def test_a_connection_that_is_not_asynchronous_is_refused_by_acomplete(
    app: Holdfast, backend: PostgresBackend
) -> None:
    @app.task
    async def job(ctx: Context) -> None:
        with closing(backend.connect()) as connection:
            async with ctx.acomplete(conn=connection):
                pass

    with pytest.raises(InvalidInput, match=r"or of psycopg, as conn, got Connection: use ctx.complete"):
        asyncio.run(job())


# --- what is refused ---


def autocommit(url: str) -> Any:
    return psycopg.connect(url, autocommit=True)


def of_another_database(url: str) -> Any:
    return psycopg.connect(server_url())


def aborted(url: str) -> Any:
    connection = psycopg.connect(url)
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT 1 / 0")
    return connection


def ended(url: str) -> Any:
    connection = psycopg.connect(url)
    connection.close()
    return connection


class OfPsycopg2:
    """Looks like a connection of psycopg2, which is not installed."""

    __module__ = "psycopg2.extensions"

    def rollback(self) -> None: ...


class OfAsyncpg:
    """Looks like a connection of asyncpg, which is not installed: it has no rollback()."""

    __module__ = "asyncpg.connection"


@pytest.mark.parametrize(
    ("make", "error", "advice"),
    [
        (autocommit, TransactionError, "would be committed at once"),
        (of_another_database, ForeignConnection, "pass a connection to the same database"),
        (aborted, TransactionError, "roll it back first"),
        (lambda _: OfPsycopg2(), InvalidInput, "psycopg 3.*got a connection of psycopg2"),
        (lambda _: OfAsyncpg(), InvalidInput, r"psycopg.Connection \(psycopg 3\).*got a connection of asyncpg"),
        (ended, InvalidInput, "is closed: pass an open one"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"key": "one"}], ids=["plain", "with a key"])
def test_a_connection_that_does_not_fit_says_what_to_do(
    app: Holdfast, backend: PostgresBackend, make: Callable[[str], Any], error: Any, advice: str, options: Any
) -> None:
    connection = make(backend.url)
    with pytest.raises(error, match=advice):
        app.tasks["work"].using(conn=connection, **options).enqueue()
    if hasattr(connection, "close"):
        connection.close()
    assert app.jobs.count() == 0
