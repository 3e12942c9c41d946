"""Large payloads and results in a blob store of the user's own, and names of blobs that were written by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Then
from holdfast.errors import BlobDamaged, BlobError, BlobMissing, InvalidInput, StoreError
from holdfast.testing import drain
from support.backend import Backend
from support.blob_stores import HOSTILE, MemoryBlobs, collect, large, missing, name_of, orphaned

Sql = Callable[..., list[Any]]

# --- names that were written by hand ---


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_the_database_refuses_what_is_no_name(app: Holdfast, backend: Backend, name: Any) -> None:
    app.queue("inbox").send(1)
    for statement in ("UPDATE holdfast_jobs SET args_blob = ?", "UPDATE holdfast_jobs SET result_blob = ?"):
        with pytest.raises(backend.DatabaseError):
            backend.sql(statement, (name,))


def test_no_blob_is_made_by_a_hand_that_names_one(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send(None)
    sql("UPDATE holdfast_jobs SET args_blob = ? WHERE id = ?", ("0" * 64, id))
    assert app.queue("inbox").receive() is None
    assert app.jobs.get(id).error_code == "RESOURCE:BLOB_MISSING"


# --- another blob store ---


@pytest.fixture
def kept() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def other(open_app: Callable[..., Holdfast], clock: Any, kept: MemoryBlobs) -> Holdfast:
    return open_app(clock=clock, blobs=kept)


def test_another_blob_store_can_stand_in(other: Holdfast, kept: MemoryBlobs, backend: Backend) -> None:
    @other.task
    def double(text: str) -> str:
        return text + text

    job = double.enqueue(large())
    drain(other)
    assert job.refresh().result == large() + large()
    assert len(kept.kept) == 2 and backend.blob_names() == []
    other.jobs.delete(job.id)
    assert collect(other) == 2 and kept.kept == {}
    assert orphaned(other) == 0, "it cannot list them"


@pytest.mark.parametrize("wrong", [object(), "s3://bucket", 1])
def test_what_is_no_blob_store_is_refused(open_app: Callable[..., Holdfast], wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="BlobStore"):
        open_app(blobs=wrong)


def test_small_ones_do_not_reach_it(other: Holdfast, kept: MemoryBlobs) -> None:
    other.queue("inbox").send("small")
    other.queue("inbox").receive()
    assert kept.asked == []


def test_what_it_raises_is_told_as_an_error_of_the_store(other: Holdfast, kept: MemoryBlobs) -> None:
    kept.trouble = RuntimeError("503")
    with pytest.raises(BlobError, match="503"):
        other.queue("inbox").send(large())
    assert other.queue("inbox").stats().total == 0


def test_what_it_lacks_may_be_said_by_any_lookup_error(other: Holdfast, kept: MemoryBlobs) -> None:
    id = other.queue("inbox").send(large())
    kept.trouble = KeyError("no such key")
    with pytest.raises(BlobMissing, match="no such key"):
        _ = other.jobs.get(id).args


@pytest.mark.parametrize("given", [b"else", "text", None, bytearray(b"x")])
def test_what_it_gives_back_is_compared_with_what_was_put(other: Holdfast, kept: MemoryBlobs, given: Any) -> None:
    id = other.queue("inbox").send(large())
    kept.kept[name_of(large())] = given
    with pytest.raises(BlobDamaged):
        _ = other.jobs.get(id).args


def test_while_it_is_out_of_reach_jobs_are_tried_again(other: Holdfast, kept: MemoryBlobs, clock: Any) -> None:
    @other.task
    def work(text: str) -> int:
        return len(text)

    inbox = other.queue("inbox", visibility=30)
    job, id = work.enqueue(large()), inbox.send(large())
    kept.trouble = ConnectionError("no route")
    drain(other, raise_errors=False, seconds=0)
    assert inbox.receive() is None
    assert (job.refresh().status, job.error_code) == ("scheduled", "RESOURCE:BLOB_STORE")
    assert (other.jobs.get(id).status, other.jobs.get(id).error_code) == ("scheduled", "RESOURCE:BLOB_STORE")
    kept.trouble = None
    clock.advance(3600)
    drain(other)
    message = inbox.receive()
    assert job.refresh().result == len(large()) and message is not None and message.body == large()


@pytest.mark.parametrize("kind", ["result", "then", "async"])
def test_a_result_that_cannot_be_kept_fails_its_attempt_alone(
    other: Holdfast, kept: MemoryBlobs, clock: Any, kind: str
) -> None:
    @other.task
    def after(text: str) -> str:
        return text

    @other.task
    def small() -> int:
        return 1

    def make() -> Any:
        kept.trouble = None if succeeds else ConnectionError("no route")
        return Then(after, large()) if kind == "then" else large()

    async def make_async() -> Any:
        return make()

    succeeds = False
    job = other.task(make_async if kind == "async" else make).enqueue()
    fine = small.enqueue()
    drain(other, raise_errors=False, seconds=0)
    assert fine.refresh().status == "succeeded"
    assert (job.refresh().status, job.error_code) == ("scheduled", "RESOURCE:BLOB_STORE")
    succeeds = True
    clock.advance(3600)
    drain(other)
    assert job.wait_chain(0) == large()


def test_a_transaction_of_an_attempt_fails_with_what_cannot_be_kept(other: Holdfast, kept: MemoryBlobs) -> None:
    @other.task(max_attempts=1)
    def work(ctx: Context) -> None:
        kept.trouble = ConnectionError("no route")
        with ctx.complete(large()) as tx:
            other.queue("inbox").send("never", conn=tx)

    job = work.enqueue()
    drain(other, raise_errors=False)
    assert (job.refresh().status, job.error_code) == ("failed", "RESOURCE:BLOB_STORE")
    assert other.queue("inbox").stats().total == 0


def test_one_kind_does_not_write_where_another_has_what_is_there(
    other: Holdfast, kept: MemoryBlobs, open_app: Callable[..., Holdfast]
) -> None:
    """Such as the command line, which does not know the app's: it would put them where no worker looks."""
    id = other.queue("inbox").send(large())
    plain = open_app()
    with pytest.raises(BlobError, match=r"MemoryBlobs.*(File|Table)Blobs.*--app"):
        plain.queue("inbox").send(large(letter="y"))
    plain.queue("inbox").send("small")
    plain.jobs.delete(id)
    assert collect(plain) == 0 and len(kept.kept) == 1
    assert missing(plain) == []
    assert collect(other) == 1 and kept.kept == {}


def test_a_test_on_a_temporary_database_leaves_the_programs_blobs_alone(other: Holdfast, kept: MemoryBlobs) -> None:
    from holdfast.testing import on_temporary_database

    with on_temporary_database(other):
        id = other.queue("inbox").send(large())
        assert other.jobs.get(id).args == large()
    assert kept.asked == []


def test_all_of_these_are_errors_of_holdfast() -> None:
    assert issubclass(BlobError, StoreError) and issubclass(BlobDamaged, BlobMissing)
    assert issubclass(BlobMissing, LookupError)
