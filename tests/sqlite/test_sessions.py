"""Sessions and connections of SQLAlchemy and Django as `conn=`."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput, LeaseLost
from support.running_worker import PATIENCE_SECONDS, drain

Sql = Callable[..., list[Any]]
INSERT = text("INSERT INTO orders (item) VALUES ('kelp')")


@pytest.fixture(autouse=True)
def orders(sql: Sql) -> None:
    sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT UNIQUE)")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{url}")
    yield engine
    engine.dispose()


@pytest.fixture
def work(app: Holdfast) -> Any:
    @app.task
    def work(n: int) -> int:
        return n

    return work


def counted(sql: Sql) -> tuple[int, int]:
    return sql("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM holdfast_jobs)")[0]


@pytest.mark.parametrize("kind", ["session", "scoped_session", "connection", "pooled"])
def test_a_job_is_stored_if_and_only_if_the_session_commits(engine: Engine, work: Any, sql: Sql, kind: str) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "session": lambda: Session(engine),
        "scoped_session": lambda: scoped_session(sessionmaker(engine)),
        "connection": engine.connect,
        "pooled": engine.raw_connection,
    }
    session = makers[kind]()
    statement: Any = INSERT.text if kind == "pooled" else INSERT
    execute = session.cursor().execute if kind == "pooled" else session.execute
    execute(statement)
    work.using(conn=session).enqueue(1)
    session.rollback()
    assert counted(sql) == (0, 0)
    execute(statement)
    work.using(conn=session).enqueue_many([{"n": 1}, {"n": 2}])
    assert counted(sql) == (0, 0)
    session.commit()
    assert counted(sql) == (1, 2)
    session.close()


def test_a_session_that_wrote_nothing_yet_takes_part_as_well(engine: Engine, work: Any, sql: Sql) -> None:
    with Session(engine) as session, session.begin():
        work.using(conn=session).enqueue(1)
        assert counted(sql) == (0, 0)
    assert counted(sql) == (0, 1)


def test_a_job_completes_on_a_session(app: Holdfast, engine: Engine, work: Any, sql: Sql) -> None:
    @app.task(retry=0, max_attempts=3)
    def book(ctx: Context) -> None:
        with Session(engine) as session:
            session.execute(text("SELECT count(*) FROM orders")).all()
            with ctx.complete("booked", conn=session):
                session.execute(INSERT)
                work.using(conn=session).enqueue(1)
                if ctx.attempt == 1:
                    session.execute(INSERT)  # violates a constraint
            assert not session.in_transaction()

    job = book.enqueue()
    drain(app)
    assert (job.refresh().status, job.attempt, job.result) == ("succeeded", 2, "booked")
    assert counted(sql) == (1, 2)


def test_a_commit_that_fails_leaves_the_job_unfinished(app: Holdfast, engine: Engine, sql: Sql) -> None:
    class Refused(Exception): ...

    @app.task(max_attempts=1)
    def book(ctx: Context) -> None:
        with Session(engine) as session:

            @event.listens_for(session, "before_commit")
            def refuse(_: Session) -> None:
                raise Refused

            with ctx.complete(conn=session):
                session.execute(INSERT)

    job = book.enqueue()
    drain(app)
    assert (job.refresh().status, counted(sql)) == ("failed", (0, 1))


def test_a_batch_in_a_session_that_failed_raises_its_error(
    app: Holdfast, engine: Engine, work: Any, sql: Sql
) -> None:
    with pytest.raises(IntegrityError), Session(engine) as session, app.batch(conn=session) as batch:
        work.using(conn=session, batch=batch).enqueue(1)
        session.execute(INSERT)
        session.execute(INSERT)
    assert counted(sql) == (0, 0)


def test_the_result_may_be_read_on_the_same_session_afterwards(app: Holdfast, engine: Engine, sql: Sql) -> None:
    inbox = app.queue("inbox")
    inbox.send("x")
    message = inbox.receive()
    assert message is not None
    with Session(engine) as session:
        with message.ack_with(conn=session):
            session.execute(INSERT)
        assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 1


# --- async ---


def test_an_async_session_takes_part(app: Holdfast, work: Any, url: str, sql: Sql) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
        async with AsyncSession(engine) as session:
            await session.execute(INSERT)
            await work.using(conn=session).aenqueue(1)
            await session.rollback()
            assert counted(sql) == (0, 0)
            await session.execute(INSERT)
            await work.using(conn=session).aenqueue(1)
            await session.run_sync(lambda sync: app.queue("inbox").send("x", conn=sync))
            assert counted(sql) == (0, 0)
            await session.commit()
        async with engine.begin() as connection:
            await work.using(conn=connection).aenqueue(2)
        await engine.dispose()

    asyncio.run(main())
    assert counted(sql) == (1, 3)


def test_an_async_session_is_refused_where_it_would_block(work: Any, url: str) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidInput, match=r"AsyncSession.*aenqueue.*run_sync"):
                work.using(conn=session).enqueue(1)
        await engine.dispose()

    asyncio.run(main())


def test_aenqueue_refuses_a_connection_that_belongs_to_this_thread(work: Any, engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(InvalidInput, match="call enqueue instead"):
        asyncio.run(work.using(conn=session).aenqueue(1))


def test_a_coroutine_completes_on_an_async_session(app: Holdfast, work: Any, url: str, sql: Sql) -> None:
    @app.task(retry=0, max_attempts=3)
    async def book(ctx: Context) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
        try:
            async with AsyncSession(engine) as session, ctx.acomplete(conn=session, result="booked") as tx:
                await session.execute(INSERT)
                await work.using(conn=session).aenqueue(1)
                await asyncio.sleep(0)
                if ctx.attempt == 1:
                    await session.execute(INSERT)  # violates a constraint
                if ctx.attempt == 2:
                    tx.result = "booked in the second attempt"
        finally:
            await engine.dispose()

    job = book.enqueue()
    drain(app)
    assert (job.refresh().status, job.attempt, job.result) == ("succeeded", 2, "booked in the second attempt")
    assert counted(sql) == (1, 2)


def test_a_coroutine_that_lost_its_lease_stores_nothing(app: Holdfast, url: str, sql: Sql) -> None:
    raised: list[BaseException] = []

    @app.task
    async def book(ctx: Context) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
        try:
            async with AsyncSession(engine) as session, ctx.acomplete(conn=session):
                await session.execute(INSERT)
                await session.execute(text("UPDATE holdfast_jobs SET attempt = attempt + 1, max_attempts = 9"))
        except LeaseLost as error:
            raised.append(error)
        finally:
            await engine.dispose()

    book.enqueue()
    drain(app)
    assert (len(raised), counted(sql)) == (1, (0, 1))


def test_acomplete_refuses_other_connections(app: Holdfast, engine: Engine) -> None:
    @app.task
    async def book(ctx: Context) -> None:
        with pytest.raises(InvalidInput, match=r"AsyncSession.*ctx\.complete\(conn=…\)"), Session(engine) as session:
            async with ctx.acomplete(conn=session):
                pass
        with pytest.raises(InvalidInput, match="got None"):
            ctx.acomplete(conn=None)

    job = book.enqueue()
    drain(app)
    assert job.refresh().status == "succeeded"


# --- guard ---


def test_guard_turns_off_automatic_checkpoints(app: Holdfast, url: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{url}")
    event.listen(engine, "connect", lambda connection, _: app.guard(connection))
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA wal_autocheckpoint")).scalar() == 0
        assert app.guard(connection) is True
    engine.dispose()
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.connect() as connection:
        assert app.guard(connection) is False
        assert connection.execute(text("PRAGMA wal_autocheckpoint")).scalar() == 1000
    other.dispose()
    with pytest.raises(InvalidInput, match="got None"):
        app.guard(None)


def test_guard_works_for_an_async_engine(app: Holdfast, url: str) -> None:
    async def main() -> Any:
        engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
        event.listen(engine.sync_engine, "connect", lambda connection, _: app.guard(connection))
        async with engine.connect() as connection:
            found = await connection.execute(text("PRAGMA wal_autocheckpoint"))
            value = found.scalar()
        await engine.dispose()
        return value

    assert asyncio.run(main()) == 0


# --- Django ---

DJANGO = """
import sys
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}})

import django
django.setup()

from django.db import connection, connections, transaction
from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput, TransactionError

app = Holdfast(sys.argv[1])

@app.task
def work(n: int) -> None: ...

@app.task(retry=0, max_attempts=2)
def book(ctx: Context) -> None:
    with ctx.complete(conn=connection):
        connection.cursor().execute("INSERT INTO orders (item) VALUES (%s)", ["book"])
        work.using(conn=connection).enqueue(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError
    connection.close()

@app.task(max_attempts=1)
def nested(ctx: Context) -> None:
    with transaction.atomic(), ctx.complete(conn=connection):
        connection.cursor().execute("INSERT INTO orders (item) VALUES (%s)", ["nested"])

def jobs():
    return [job.args["n"] for job in reversed(app.jobs.list(task="work"))]

def refused(error, call):
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError("not refused")

# before the first query, outside of a transaction
assert connection.connection is None
assert "django.db.connection" in refused(InvalidInput, lambda: work.using(conn=connection.connection))
assert "transaction.atomic()" in refused(TransactionError, lambda: work.using(conn=connection).enqueue(0))
with transaction.atomic():
    work.using(conn=connection).enqueue(1)
with transaction.atomic():
    work.using(conn=connections["default"]).enqueue(2)
    transaction.set_rollback(True)
assert jobs() == [1]
job, other = book.enqueue(), nested.enqueue()
app.worker(until_idle=True).run()
assert (job.refresh().status, job.attempt, jobs()) == ("succeeded", 2, [1, 2]), (job, jobs())
assert other.refresh().status == "failed" and "leave that block" in other.error_detail, other.error_detail
with connection.cursor() as cursor:
    cursor.execute("SELECT item FROM orders")
    assert cursor.fetchall() == [("book",)]
print("all is well")
"""


def test_djangos_connection_takes_part(url: str, sql: Sql, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", DJANGO, url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (run.stdout, run.returncode) == ("all is well\n", 0), run.stderr
