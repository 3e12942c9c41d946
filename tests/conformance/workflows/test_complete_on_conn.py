"""A job or message that is completed on the caller's own connection: the same guarantees as on Holdfast's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.errors import InvalidInput, LeaseLost, TransactionError
from holdfast.testing import FakeClock
from support.backend import Backend
from support.flow import Flow, Sql
from support.plain import filled
from support.running_worker import drain

Connect = Callable[[], Any]


@pytest.fixture(autouse=True)
def _ledger(sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER, attempt INTEGER)")


@pytest.fixture
def connect(backend: Backend) -> Iterator[Connect]:
    opened: list[Any] = []

    def connect() -> Any:
        opened.append(backend.connect())
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def ledger(sql: Sql) -> list[Any]:
    return sql("SELECT job, attempt FROM ledger ORDER BY job, attempt")


def test_writes_enqueues_and_the_success_commit_together(
    app: Holdfast, flow: Flow, sql: Sql, backend: Backend
) -> None:
    seen: list[Any] = []

    @app.task
    def job(ctx: Context) -> None:
        conn = backend.connect()
        with ctx.complete("done", conn=conn) as tx:
            backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))
            flow.job("by connection", conn=conn)
            flow.job("by transaction", conn=tx)
            seen.append((ledger(sql), ctx.job.status))
        seen.append((ledger(sql), ctx.job.status))
        conn.close()

    one = job.enqueue()
    drain(app)
    assert seen == [([], "running"), ([(one.id, 1)], "succeeded")]
    assert (one.refresh().status, one.result, one.attempt) == ("succeeded", "done", 1)
    assert sorted(flow.ran) == ["by connection", "by transaction"]


def test_what_was_written_before_the_block_commits_with_it(app: Holdfast, sql: Sql, backend: Backend) -> None:
    @app.task
    def job(ctx: Context) -> None:
        conn = backend.connect()
        backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, 0))
        with ctx.complete(conn=conn):
            backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))
        conn.close()

    one = job.enqueue()
    drain(app)
    assert (one.refresh().status, ledger(sql)) == ("succeeded", [(one.id, 0), (one.id, 1)])


def test_an_exception_rolls_the_connection_back_and_the_attempt_is_retried(
    app: Holdfast, sql: Sql, backend: Backend
) -> None:
    @app.task(retry=0, max_attempts=2)
    def job(ctx: Context) -> None:
        conn = backend.connect()
        try:
            with ctx.complete(conn=conn):
                backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))
                if ctx.attempt == 1:
                    raise OSError("in the middle")
        finally:
            conn.close()

    one = job.enqueue()
    drain(app)
    assert (one.refresh().status, ledger(sql)) == ("succeeded", [(one.id, 2)])


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_lost_lease_rolls_the_connection_back(
    app: Holdfast, sql: Sql, backend: Backend, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[BaseException] = []

    @app.task
    def job(ctx: Context) -> None:
        conn = backend.connect()
        backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, 0))
        conn.rollback()
        if when == "before":
            app.jobs.cancel(ctx.job_id or 0)
        try:
            with ctx.complete(conn=conn):
                backend.execute(conn, filled("INSERT INTO ledger VALUES (?, ?)", ctx.job_id, ctx.attempt))
                lost = "UPDATE holdfast_jobs SET attempt = attempt + 1, max_attempts = 9 WHERE id = ?"
                if when == "inside":
                    backend.execute(conn, lost, (ctx.job_id,))
        except LeaseLost as error:
            raised.append(error)
        finally:
            conn.close()

    one = job.enqueue()
    drain(app)
    assert len(raised) == 1
    assert ledger(sql) == []
    assert one.refresh().result is None


def test_the_chain_continues(app: Holdfast, flow: Flow, backend: Backend) -> None:
    @app.task
    def job(ctx: Context) -> None:
        conn = backend.connect()
        with ctx.complete(conn=conn) as tx:
            tx.result = Then(flow.step, "next")
        conn.close()

    job.enqueue()
    drain(app)
    assert flow.ran == ["next"]


def test_a_direct_call_commits_the_connection(app: Holdfast, connect: Connect, sql: Sql, backend: Backend) -> None:
    @app.task
    def job(ctx: Context, fail: bool) -> None:
        conn = connect()
        with ctx.complete(conn=conn):
            backend.execute(conn, "INSERT INTO ledger VALUES (1, 1)")
            assert not fail

    job(fail=False)
    with pytest.raises(AssertionError):
        job(fail=True)
    assert ledger(sql) == [(1, 1)]


def test_none_and_other_values_are_refused(app: Holdfast, connect: Connect) -> None:
    refused: list[BaseException] = []

    @app.task(max_attempts=1)
    def job(ctx: Context) -> None:
        for bad in (None, "app.db", 7):
            try:
                with ctx.complete(conn=bad):
                    raise AssertionError("must not come here")
            except InvalidInput as error:
                refused.append(error)

    one = job.enqueue()
    drain(app)
    assert (len(refused), one.refresh().status) == (3, "succeeded")
    assert "got None" in str(refused[0])


def test_a_message_is_acknowledged_on_the_callers_connection(
    app: Holdfast, connect: Connect, sql: Sql, backend: Backend, clock: FakeClock
) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send_many(["first", "late"])
    conn = connect()
    message = inbox.receive()
    assert message is not None
    with message.ack_with(conn=conn):
        backend.execute(conn, "INSERT INTO ledger VALUES (1, 1)")
        assert ledger(sql) == []
    assert (ledger(sql), inbox.stats().running) == ([(1, 1)], 0)
    late = inbox.receive()
    assert late is not None
    clock.advance(31)
    assert inbox.receive() is not None
    with pytest.raises(LeaseLost), late.ack_with(conn=conn):
        backend.execute(conn, "INSERT INTO ledger VALUES (2, 1)")
    assert ledger(sql) == [(1, 1)]
    with pytest.raises(InvalidInput, match="got None"):
        late.ack_with(conn=None)


def test_writing_beside_it_raises_at_once_inside_a_transaction_of_holdfast(app: Holdfast, connect: Connect) -> None:
    inbox = app.queue("inbox")
    inbox.send("x")
    message = inbox.receive()
    assert message is not None
    with app.transaction(), pytest.raises(TransactionError, match="conn=tx"), message.ack_with(conn=connect()):
        pass
    assert message.ack()


@pytest.mark.parametrize("way", ["send", "send_many", "using", "external", "batch", "pipeline"])
def test_an_explicit_none_is_an_error_that_says_what_to_do(app: Holdfast, flow: Flow, way: str) -> None:
    """14.11: Django's `connection.connection` is None before the first query."""
    ways: dict[str, Callable[[], object]] = {
        "send": lambda: app.queue("inbox").send("x", conn=None),
        "send_many": lambda: app.queue("inbox").send_many(["x"], conn=None),
        "using": lambda: flow.step.using(conn=None),
        "external": lambda: app.external("approve", conn=None),
        "batch": lambda: app.batch(conn=None),
        "pipeline": lambda: app.pipeline(flow.step.s("x"), conn=None),
    }
    with pytest.raises(InvalidInput, match=r"got None: leave conn= out.*django\.db\.connection"):
        ways[way]()
    assert list(app.jobs.list()) == []
