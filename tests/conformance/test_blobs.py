"""Large payloads and results are kept by reference: the same to whoever uses them, by whatever way they come."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.errors import BlobMissing, InvalidInput, PayloadTooLarge
from holdfast.testing import drain
from support.backend import Backend
from support.blob_stores import LARGE, collect, large, name_of

Sql = Callable[..., list[Any]]


def reference(sql: Sql, job_id: int) -> tuple[Any, ...]:
    (row,) = sql("SELECT args, args_blob, result, result_blob FROM holdfast_jobs WHERE id = ?", (job_id,))
    return tuple(row)


@pytest.mark.parametrize(("size", "by_reference"), [(LARGE - 1, False), (LARGE, False), (LARGE + 1, True)])
def test_what_is_over_the_threshold_is_kept_by_reference(
    app: Holdfast, sql: Sql, size: int, by_reference: bool
) -> None:
    body = large(size)
    id = app.queue("inbox").send(body)
    args, blob, _, _ = reference(sql, id)
    assert (args, blob) == (("null", name_of(body)) if by_reference else (f'"{body}"', None))
    message = app.queue("inbox").receive()
    assert message is not None and message.body == body


def test_the_threshold_counts_bytes_and_not_characters(app: Holdfast, sql: Sql) -> None:
    body = "ü" * (LARGE // 2)
    id = app.queue("inbox").send(body)
    assert reference(sql, id)[1] == name_of(body)
    assert app.queue("inbox").send("ü" * (LARGE // 2 - 1)) and len(sql("SELECT * FROM holdfast_unused_blobs")) == 0
    assert app.jobs.get(id).args == body


def test_the_threshold_can_be_set(open_app: Callable[..., Holdfast], sql: Sql) -> None:
    app = open_app(blob_bytes=2000)
    sent = [app.queue("inbox").send(large(size)) for size in (2000, 2001)]
    assert [reference(sql, id)[1] is None for id in sent] == [True, False]


@pytest.mark.parametrize("wrong", [0, 1023, 1024 * 1024 + 1, -1, "64k", 1.5, True])
def test_a_threshold_out_of_its_limits_is_refused(open_app: Callable[..., Holdfast], wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="blob_bytes"):
        open_app(blob_bytes=wrong)


def test_a_task_gets_its_large_payload_and_gives_a_large_result(app: Holdfast, sql: Sql, backend: Backend) -> None:
    @app.task
    def double(text: str) -> str:
        return text + text

    job = double.enqueue(large())
    assert job.args == {"text": large()}
    drain(app)
    assert job.refresh().result == large() + large()
    args, args_blob, result, result_blob = reference(sql, job.id)
    assert args == result == "null" and args_blob != result_blob
    assert set(backend.blob_names()) == {args_blob, result_blob}
    assert app.jobs.get(job.id).args == {"text": large()}


def test_a_coroutine_does_as_well(app: Holdfast) -> None:
    @app.task
    async def double(text: str) -> str:
        await asyncio.sleep(0)
        return text + text

    job = double.enqueue(large())
    drain(app)
    assert job.refresh().result == large() + large()


@pytest.mark.parametrize("is_large", [True, False])
def test_the_same_content_is_kept_once(app: Holdfast, backend: Backend, is_large: bool) -> None:
    for _ in range(3):
        app.queue("inbox").send(large() if is_large else "small")
    assert len(backend.blob_names()) == int(is_large)


def test_many_at_once_keep_their_order(app: Holdfast, backend: Backend, sql: Sql) -> None:
    bodies = [large(LARGE + 10 + n, "abc"[n % 3]) if n % 2 else f"small {n}" for n in range(40)]
    ids = app.queue("inbox").send_many(bodies)
    assert [app.jobs.get(id).args for id in ids] == bodies
    assert len(backend.blob_names()) == 20
    assert sql("SELECT count(*) FROM holdfast_jobs WHERE args = 'null' AND args_blob IS NOT NULL") == [(20,)]


def test_many_tasks_at_once(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task
    def work(text: str) -> None:
        seen.append(text)

    texts = [large(LARGE + n, "xyz"[n % 3]) for n in range(10)]
    work.enqueue_many([{"text": text} for text in texts])
    drain(app)
    assert seen == texts


def test_a_chain_goes_on_with_a_large_payload(app: Holdfast, sql: Sql) -> None:
    @app.task
    def last(text: str, times: int) -> int:
        return len(text) * times

    @app.task
    def first(how: str) -> Then:
        if how == "raise":
            raise Then(last, large(), 3)
        return Then(last, large(), 2)

    jobs = [first.enqueue("return"), first.enqueue("raise")]
    drain(app)
    assert [job.wait_chain(0) for job in jobs] == [len(large()) * 2, len(large()) * 3]
    assert sql("SELECT count(*) FROM holdfast_jobs WHERE chain_index = 1 AND args_blob IS NOT NULL") == [(2,)]


def test_what_waited_for_a_large_result_gets_it(app: Holdfast) -> None:
    @app.task
    def make() -> str:
        return large()

    @app.task
    def take(ctx: Context, text: str) -> bool:
        return bool(ctx.blocker_results == (large(),) and ctx.job.args == {"text": text})

    job = take.using(after=make.enqueue()).enqueue(large(LARGE * 3))
    drain(app)
    assert job.refresh().result is True


@pytest.mark.parametrize("kind", ["result", "then"])
def test_an_attempt_completes_itself_with_something_large(app: Holdfast, sql: Sql, kind: str) -> None:
    @app.task
    def after(text: str) -> str:
        return text

    @app.task
    def work(ctx: Context) -> None:
        with ctx.complete(large() if kind == "result" else Then(after, large())):
            pass

    job = work.enqueue()
    drain(app)
    assert job.wait_chain(0) == large()
    assert sql("SELECT count(*) FROM holdfast_jobs WHERE result_blob IS NOT NULL") == [(1,)]


def test_somebody_outside_gives_a_large_result(app: Holdfast, sql: Sql, backend: Backend) -> None:
    job = app.external("approval", large(letter="a"))
    assert app.jobs.complete(job.id, large(letter="r")) is True
    assert job.refresh().result == large(letter="r")
    assert reference(sql, job.id) == ("null", name_of(large(letter="a")), "null", name_of(large(letter="r")))
    assert app.jobs.complete(job.id, large(letter="s")) is False
    collect(app)
    assert set(backend.blob_names()) == {name_of(large(letter=one)) for one in "ar"}


def test_a_batch_calls_back_with_a_large_payload(app: Holdfast, sql: Sql) -> None:
    @app.task
    def member() -> None: ...

    @app.task
    def report(text: str) -> int:
        return len(text)

    with app.batch(on_done=report.s(large())) as batch:
        member.using(batch=batch).enqueue()
    drain(app)
    (row,) = sql("SELECT args, result FROM holdfast_jobs WHERE task = 'report'")
    assert row == ("null", str(len(large())))
    with pytest.raises(PayloadTooLarge, match="1,048,576"):
        app.batch(on_done=report.s("x" * 1024 * 1024)).__enter__()


def test_a_schedule_fires_with_a_large_payload(app: Holdfast, clock: Any, sql: Sql) -> None:
    @app.task
    def work(text: str) -> int:
        return len(text)

    app.schedules.add("nightly", "0 0 * * *", work, {"text": large()})
    clock.advance(24 * 3600)
    drain(app)
    assert sql("SELECT args, result FROM holdfast_jobs") == [("null", str(len(large())))]
    with pytest.raises(PayloadTooLarge, match="1,048,576"):
        app.schedules.add("other", "0 0 * * *", work, {"text": "x" * 1024 * 1024})


def test_a_replaced_payload_is_replaced_by_reference_and_back(app: Holdfast, sql: Sql, backend: Backend) -> None:
    @app.task
    def work(text: str) -> None: ...

    def replace(text: str) -> str:
        job = work.using(key="one", on_conflict="replace", delay=60).enqueue(text)
        collect(app)
        return str(app.jobs.get(job.id).args["text"])

    for text in (large(letter="a"), large(letter="b"), "small", large(letter="a")):
        assert replace(text) == text
        assert len(backend.blob_names()) == (text != "small")


def test_a_key_that_is_taken_leaves_nothing_behind(app: Holdfast, backend: Backend) -> None:
    @app.task
    def work(text: str) -> None: ...

    first = work.using(key="one").enqueue(large(letter="a"))
    assert work.using(key="one").enqueue(large(letter="b")).id == first.id
    collect(app)
    assert len(backend.blob_names()) == 1 and first.refresh().args == {"text": large(letter="a")}


def test_in_a_transaction_of_the_user_it_is_there_with_the_commit(app: Holdfast, backend: Backend) -> None:
    conn = backend.connect()
    id = app.queue("inbox").send(large(), conn=conn)
    assert backend.blob_names() == [name_of(large())], "before the commit"
    conn.commit()
    assert app.jobs.get(id).args == large()
    with app.transaction() as tx:
        other = app.queue("inbox").send_many([large(letter="y")], conn=tx)
    assert app.jobs.get(other[0]).args == large(letter="y")
    conn.close()


def test_switched_off_everything_is_in_the_row_up_to_a_mebibyte(
    open_app: Callable[..., Holdfast], sql: Sql, backend: Backend
) -> None:
    app = open_app(blob_bytes=None)
    most = 1024 * 1024

    @app.task
    def work(text: str, size: int) -> str:
        return "y" * size

    job = work.enqueue(large(most // 2), most - 2)
    too_large = work.enqueue("", most - 1)
    with pytest.raises(PayloadTooLarge, match=r"at most 1,048,576 bytes .* got 1,048,577"):
        app.queue("inbox").send(large(most + 1))
    with pytest.raises(PayloadTooLarge, match=r"1,048,576"):
        app.queue("inbox").send_many(["small", large(most + 1)])
    drain(app, raise_errors=False)
    assert len(job.refresh().result or "") == most - 2
    assert too_large.refresh().error_code == "RESULT:TOO_LARGE" and "result" in (too_large.error_detail or "")
    assert backend.blob_names() == []
    assert app.queue("inbox").stats().total == 0


def test_switched_off_what_is_there_by_reference_can_still_be_read(open_app: Callable[..., Holdfast]) -> None:
    id = open_app().queue("inbox").send(large())
    off = open_app(blob_bytes=None)
    assert off.jobs.get(id).args == large()
    message = off.queue("inbox").receive()
    assert message is not None and message.body == large()


def test_two_apps_share_what_one_of_them_put(open_app: Callable[..., Holdfast]) -> None:
    one, other = open_app(), open_app()
    one.queue("inbox").send(large())
    message = other.queue("inbox").receive()
    assert message is not None and message.body == large()


def test_the_cap_is_64_mebibytes(app: Holdfast) -> None:
    most = 64 * 1024 * 1024
    id = app.queue("inbox").send(large(most))
    message = app.queue("inbox").receive()
    assert message is not None and message.id == id and len(message.body) == most - 2
    with pytest.raises(PayloadTooLarge, match="67,108,864"):
        app.queue("inbox").send(large(most + 1))


def test_a_payload_that_was_changed_by_hand_counts_and_the_reference_does_not(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send(large())
    sql("UPDATE holdfast_jobs SET args = '[1]' WHERE id = ?", (id,))
    assert app.jobs.get(id).args == [1]
    message = app.queue("inbox").receive()
    assert message is not None and message.body == [1]


def test_a_plain_insert_of_something_large_is_as_good(app: Holdfast, sql: Sql) -> None:
    sql("INSERT INTO holdfast_jobs (queue, args) VALUES ('inbox', ?)", (f'"{large()}"',))
    message = app.queue("inbox").receive()
    assert message is not None and message.body == large()


def test_a_job_that_is_gone_takes_what_it_had_along(app: Holdfast, backend: Backend) -> None:
    job = app.jobs.get(app.queue("inbox").send(large()))
    app.jobs.delete(job.id)
    assert collect(app) == 1 and backend.blob_names() == []
    with pytest.raises(BlobMissing):
        _ = job.args
