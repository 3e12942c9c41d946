"""Commit together: the user's writes, enqueues, the continuation and the job's success, or none of them."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze, Then, codec
from holdfast.errors import InvalidInput, InvalidResult, TransactionError
from support.backend import Backend
from support.flow import Events, Flow, Sql
from support.plain import filled
from support.running_worker import attempts, drain, outcomes

Define = Callable[..., Any]


@pytest.fixture(autouse=True)
def _ledger(sql: Sql) -> None:
    sql("CREATE TABLE ledger (job INTEGER, attempt INTEGER, note TEXT UNIQUE)")


def write(ctx: Context, tx: Any, note: str = "x") -> None:
    tx.execute(filled("INSERT INTO ledger VALUES (?, ?, ?)", ctx.job_id, ctx.attempt, note))


def ledger(sql: Sql) -> list[Any]:
    return sql("SELECT job, attempt FROM ledger ORDER BY job, attempt")


# --- together ---


def test_writes_enqueues_and_the_success_are_there_together(
    app: Holdfast, define: Define, flow: Flow, sql: Sql, events: Events
) -> None:
    inbox = app.queue("inbox")
    seen: list[Any] = []

    def look() -> list[Any]:
        return [ledger(sql), sql("SELECT status, result FROM holdfast_jobs ORDER BY id")]

    def body(ctx: Context) -> None:
        with ctx.complete("done") as tx:
            write(ctx, tx)
            flow.job("child", conn=tx)
            flow.step.using(conn=tx, queue="later").enqueue_many([{"name": "many"}])
            inbox.send("hello", conn=tx)
            seen.append(look())
        seen.append(look())

    job = define(body).enqueue()
    report = drain(app, queues=["default"], concurrency=1)
    assert seen[0] == [[], [("running", None)]]
    assert seen[1] == [[(job.id, 1)], [("succeeded", '"done"'), ("ready", None), ("ready", None), ("ready", None)]]
    assert (job.refresh().status, job.result, job.attempt) == ("succeeded", "done", 1)
    assert events(job.id) == ["enqueued", "claimed", "succeeded"]
    (attempt,) = attempts(app, job.id)
    assert (attempt.name, attempt.actor) == ("succeeded", job.worker)
    assert job.started_at is not None
    assert (report.succeeded, report.failed, report.lost) == (2, 0, 0)
    assert flow.ran == ["child"]
    message = inbox.receive()
    assert message is not None
    assert message.body == "hello"


def test_the_continuation_is_there_with_it(app: Holdfast, define: Define, flow: Flow, sql: Sql) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete(Then(flow.step.using(queue="next"), "next")) as tx:
            write(ctx, tx)
        assert app.chains.get(ctx.job_id or 0).length == 2

    job = define(body).enqueue()
    drain(app)
    assert job.wait_chain(timeout=0) == "NEXT"
    assert ledger(sql) == [(job.id, 1)]
    sql("UPDATE holdfast_jobs SET status = 'ready', attempt = attempt WHERE id = ?", (job.id,))
    sql("DELETE FROM ledger")
    drain(app)
    assert (app.chains.get(job.id).length, flow.ran) == (2, ["next"]), "once, however often it is run"


@pytest.mark.parametrize("size", [10, 5_000, 900_000])
def test_the_result_may_be_set_in_the_block(app: Holdfast, define: Define, size: int) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete("first thought") as tx:
            assert tx.result == "first thought"
            tx.result = ["é\0", "x" * size]

    job = define(body).enqueue()
    drain(app)
    assert job.refresh().result == ["é\0", "x" * size]


def test_a_task_that_returns_nothing_may_have_a_result(app: Holdfast, flow: Flow) -> None:
    @app.task
    def job(ctx: Context) -> None:
        with ctx.complete({"n": 1}):
            pass

    one = job.enqueue()
    flow.job("waiting", one)
    drain(app)
    assert one.wait(timeout=0) == one.wait_chain(timeout=0) == {"n": 1}
    assert flow.found["waiting"] == ({"n": 1},)


def test_the_continuation_may_be_set_or_raised_in_the_block(
    app: Holdfast, define: Define, flow: Flow, sql: Sql
) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx, str(ctx.job_id))
            if ctx.job_id == 1:
                tx.result = Then(flow.step, "was set")
            else:
                raise Then(flow.step, "was raised")

    jobs = [define(body).enqueue(), app.tasks["job"].enqueue()]
    report = drain(app)
    assert [job.wait_chain(timeout=0) for job in jobs] == ["WAS SET", "WAS RAISED"]
    assert ledger(sql) == [(1, 1), (2, 1)]
    assert report.succeeded == 4


def test_who_waits_and_whose_batch_it_is_are_told_in_the_same_transaction(
    app: Holdfast, define: Define, flow: Flow
) -> None:
    seen: list[str] = []

    def body(ctx: Context) -> None:
        with ctx.complete("result"):
            pass
        seen.extend(one.status for one in (waiting.refresh(), app.jobs.get(batch.done_job_id or 0)))

    task = define(body, priority=9)
    with app.batch(on_done=flow.step.s("callback")) as batch:
        job = task.using(batch=batch).enqueue()
    waiting = flow.job("waiting", job, queue="later")
    drain(app, concurrency=1, queues=["default"])
    assert seen == ["ready", "ready"]
    drain(app)
    assert flow.found["waiting"] == ("result",)


def test_many_at_once(app: Holdfast, sql: Sql) -> None:
    @app.task
    def job(ctx: Context, n: int) -> None:
        with ctx.complete(n) as tx:
            write(ctx, tx, f"note {n}")

    job.enqueue_many([{"n": n} for n in range(200)])
    report = drain(app, concurrency=8)
    assert report.succeeded == app.jobs.count(status="succeeded") == 200
    # One that waited too long to begin was given back, and taken again.
    assert sorted(ledger(sql)) == sql("SELECT id, attempt FROM holdfast_jobs ORDER BY id")


# --- or none of it ---


def test_an_exception_rolls_back_all_of_it_and_the_attempt_fails(
    app: Holdfast, define: Define, flow: Flow, sql: Sql
) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete(Then(flow.step, "next")) as tx:
            write(ctx, tx)
            flow.job("child", conn=tx)
            app.queue("inbox").send("hello", conn=tx)
            app.external("approve", conn=tx)
            if ctx.attempt < 3:
                raise ConnectionError("no line")

    job = define(body, retry=0).enqueue()
    report = drain(app)
    assert outcomes(app, job.id) == ["retry_scheduled", "retry_scheduled", "succeeded"]
    assert (report.retried, report.succeeded) == (2, 3)
    assert ledger(sql) == [(job.id, 3)]
    assert sorted(flow.ran) == ["child", "next"]
    assert app.queue("inbox").stats().total == 1
    assert app.jobs.count(task="approve") == 1
    assert [entry.detail.get("error_code") for entry in attempts(app, job.id)] == [
        "DEPENDENCY:CONNECTION",
        "DEPENDENCY:CONNECTION",
        None,
    ]


def test_after_the_last_attempt_the_job_has_failed(app: Holdfast, define: Define, sql: Sql) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            raise ConnectionError

    job = define(body, max_attempts=2, retry=0).enqueue()
    report = drain(app)
    assert (job.refresh().status, job.attempt, ledger(sql)) == ("failed", 2, [])
    assert (report.retried, report.failed) == (1, 1)


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (Retry(after=60), "scheduled", "RETRY:REQUESTED"),
        (Snooze(60), "scheduled", None),
        (Fail("REJECTED:BUDGET"), "failed", "REJECTED:BUDGET"),
        (Cancel("gone"), "cancelled", None),
    ],
)
def test_an_outcome_that_is_raised_in_the_block_undoes_it_and_counts(
    app: Holdfast, define: Define, sql: Sql, outcome: Exception, status: str, code: str | None
) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete("no") as tx:
            write(ctx, tx)
            raise outcome

    job = define(body).enqueue()
    drain(app)
    assert (job.refresh().status, job.error_code, job.result, ledger(sql)) == (status, code, None, [])


@pytest.mark.parametrize(
    ("result", "error", "code"),
    [
        (Retry(), InvalidInput, "INVALID_INPUT:VALUE"),
        (Fail("A:B"), InvalidInput, "INVALID_INPUT:VALUE"),
        (object(), InvalidResult, "RESULT:NOT_JSON"),
        (float("nan"), InvalidResult, "RESULT:NOT_JSON"),
        ("x" * 2_000_000, InvalidResult, "RESULT:TOO_LARGE"),
    ],
)
@pytest.mark.parametrize("where", ["before", "in the block"])
def test_what_is_no_success_is_told_to_the_handler_and_undoes_the_block(
    app: Holdfast,
    define: Define,
    sql: Sql,
    result: Any,
    error: type[Exception],
    code: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 1024 * 1024)
    caught: list[type[Exception]] = []

    def body(ctx: Context) -> None:
        try:
            with ctx.complete(result if where == "before" else None) as tx:
                write(ctx, tx)
                if where != "before":
                    tx.result = result
        except Exception as problem:
            caught.append(type(problem))
            raise

    attempts = 2 if error is InvalidResult else 1  # a result that cannot be stored is not retried
    job = define(body, max_attempts=attempts).enqueue()
    drain(app)
    assert (job.refresh().status, job.error_code, job.attempt) == ("failed", code, 1)
    assert (ledger(sql), caught) == ([], [error])


@pytest.mark.parametrize(
    ("result", "detail"), [("twelve", "Expected `int`, got `str`"), (None, "set tx.result in the block")]
)
def test_a_result_of_another_type_than_the_annotated_one_undoes_the_block_and_fails_the_job(
    app: Holdfast, sql: Sql, result: Any, detail: str
) -> None:
    @app.task
    def count(ctx: Context) -> int:  # type: ignore[return]
        with ctx.complete(result) as tx:
            write(ctx, tx)

    job = count.enqueue()
    drain(app)
    assert (job.refresh().status, job.attempt, job.error_code) == ("failed", 1, "RESULT:WRONG_TYPE")
    assert detail in (job.error_detail or "")
    assert ledger(sql) == []


def test_an_error_of_the_users_statement_undoes_it_unless_it_is_dealt_with(
    app: Holdfast, define: Define, sql: Sql, backend: Backend
) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx, "same")
            if ctx.attempt == 1:
                write(ctx, tx, "same")
            tx.execute("SAVEPOINT mine")
            with pytest.raises(backend.IntegrityError):
                write(ctx, tx, "same")
            tx.execute("ROLLBACK TO mine")

    job = define(body, retry=0).enqueue()
    drain(app)
    assert (outcomes(app, job.id), ledger(sql)) == (["retry_scheduled", "succeeded"], [(job.id, 2)])


def test_a_commit_that_the_database_refuses_is_no_success(app: Holdfast, define: Define, sql: Sql) -> None:
    sql("CREATE TABLE books (id INTEGER PRIMARY KEY)")
    sql("CREATE TABLE pages (book INTEGER REFERENCES books (id) DEFERRABLE INITIALLY DEFERRED)")

    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            if ctx.attempt == 1:
                tx.execute("INSERT INTO pages VALUES (7)")

    job = define(body, retry=0).enqueue()
    drain(app)
    assert (outcomes(app, job.id), ledger(sql)) == (["retry_scheduled", "succeeded"], [(job.id, 2)])


def test_a_block_that_failed_may_be_followed_by_another(app: Holdfast, define: Define, sql: Sql) -> None:
    def body(ctx: Context) -> None:
        try:
            with ctx.complete("first") as tx:
                write(ctx, tx, "first")
                raise ConnectionError
        except ConnectionError:
            with ctx.complete("second") as tx:
                write(ctx, tx, "second")

    job = define(body).enqueue()
    drain(app)
    assert (job.refresh().result, sql("SELECT note FROM ledger")) == ("second", [("second",)])


# --- the transaction ---


def test_the_user_cannot_end_the_transaction(app: Holdfast, define: Define, sql: Sql, backend: Backend) -> None:
    def body(ctx: Context) -> None:
        with ctx.complete() as tx:
            write(ctx, tx)
            for statement in ("COMMIT", "ROLLBACK", "BEGIN", "END"):
                with pytest.raises(TransactionError):
                    tx.execute(statement)
            with pytest.raises((backend.DatabaseError, TransactionError)):
                tx.connection.commit()
            assert tx.execute("SELECT count(*) FROM ledger").fetchone() == (1,)
        with pytest.raises(TransactionError):
            tx.execute("SELECT 1")

    job = define(body, max_attempts=1).enqueue()
    drain(app)
    assert (job.refresh().status, ledger(sql)) == ("succeeded", [(job.id, 1)])


def test_the_attempt_is_counted_before_the_handler_runs(app: Holdfast, define: Define, sql: Sql) -> None:
    seen: list[Any] = []

    def body(ctx: Context) -> None:
        about = filled("SELECT status, attempt FROM holdfast_jobs WHERE id = ?", ctx.job_id)
        seen.extend(sql(about))
        with ctx.complete() as tx:
            seen.extend(tx.execute(about).fetchall())
            if ctx.attempt == 1:
                raise ConnectionError

    define(body, retry=0).enqueue()
    drain(app)
    assert seen == [("running", 1), ("running", 1), ("running", 2), ("running", 2)]


def test_in_an_ordinary_call_it_is_a_transaction(app: Holdfast, sql: Sql) -> None:
    @app.task
    def job(ctx: Context, fails: bool) -> str:
        with ctx.complete(Then(app.tasks["job"], True)) as tx:
            write(ctx, tx)
            tx.result = object()
            if fails:
                raise ConnectionError
        return "returned"

    with pytest.raises(ConnectionError):
        job(True)
    assert ledger(sql) == []
    assert job(False) == "returned"
    assert ledger(sql) == [(None, 0)]


def test_a_context_of_no_app_cannot_complete() -> None:
    with pytest.raises(TransactionError, match="does not belong to an app"):
        Context().complete()
