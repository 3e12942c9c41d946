"""A large payload or result that is gone, damaged or out of reach fails its own job, with a code, and no other."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blobs import MemoryBlobs, blob_files, large, missing, name_of, orphaned
from holdfast import Context, Holdfast, Then
from holdfast.errors import BlobDamaged, BlobError, BlobMissing, InvalidInput, StoreError
from holdfast.testing import drain
from shift import Shift, eventually

Sql = Callable[..., list[Any]]

HOSTILE = ["../../etc/passwd", "/etc/passwd", "", "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "/", "..", b"\xff\x00", 7]


def lose(url: str) -> None:
    for path in blob_files(url):
        path.unlink()


def damage(url: str) -> None:
    for path in blob_files(url):
        path.write_bytes(b'"something else"')


def truncate(url: str) -> None:
    for path in blob_files(url):
        os.truncate(path, 100)


def replace_by_link(url: str) -> None:
    for path in blob_files(url):
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))


def replace_by_pipe(url: str) -> None:
    for path in blob_files(url):
        path.unlink()
        os.mkfifo(path)


def grow(url: str) -> None:
    for path in blob_files(url):
        os.truncate(path, 1024**3)


HARM = {
    lose: "RESOURCE:BLOB_MISSING",
    damage: "RESOURCE:BLOB_DAMAGED",
    truncate: "RESOURCE:BLOB_DAMAGED",
    grow: "RESOURCE:BLOB_DAMAGED",
    replace_by_link: "RESOURCE:BLOB_DAMAGED",
    replace_by_pipe: "RESOURCE:BLOB_DAMAGED",
}


@pytest.fixture(params=HARM, ids=lambda harm: harm.__name__)
def harm(request: pytest.FixtureRequest, url: str) -> Iterator[tuple[Callable[[], None], str]]:
    yield (lambda: request.param(url)), HARM[request.param]


Harm = tuple[Callable[[], None], str]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_fails_alone_and_is_not_tried_again(app: Holdfast, harm: Harm, kind: str) -> None:
    @app.task(name="work")
    def plain(text: str) -> int:
        return len(text)

    async def coroutine(text: str) -> int:
        await asyncio.sleep(0)
        return len(text)

    work = plain if kind == "sync" else app.task(name="async work")(coroutine)
    spoilt = work.enqueue(large())
    harm[0]()
    good = [work.enqueue("small"), work.enqueue(large(letter="g"))]
    drain(app, raise_errors=False)
    assert (spoilt.refresh().status, spoilt.error_code, spoilt.attempt) == ("failed", harm[1], 1)
    assert [job.refresh().status for job in good] == ["succeeded"] * 2


def test_a_worker_goes_on_with_the_others(live: Holdfast, harm: Harm) -> None:
    @live.task
    def work(text: str) -> int:
        return len(text)

    spoilt = work.enqueue(large())
    harm[0]()
    good = [work.enqueue(large(letter=letter)) for letter in "abc"]
    with Shift(live):
        eventually(lambda: all(job.refresh().is_finished for job in [spoilt, *good]))
    assert [job.status for job in [spoilt, *good]] == ["failed", *["succeeded"] * 3]
    assert spoilt.error_code == harm[1]


def test_a_message_becomes_a_dead_letter_and_the_next_is_delivered(app: Holdfast, harm: Harm) -> None:
    inbox = app.queue("inbox")
    spoilt = inbox.send(large())
    harm[0]()
    inbox.send("good")
    message = inbox.receive()
    assert message is not None and message.body == "good"
    assert app.jobs.get(spoilt).error_code == harm[1]
    assert [job.id for job in inbox.dead_letters()] == [spoilt]


def test_whoever_asks_for_it_is_told(app: Holdfast, url: str) -> None:
    @app.task
    def work() -> str:
        return large()

    job = work.enqueue()
    drain(app)
    damage(url)
    with pytest.raises(BlobDamaged, match="not what was put"):
        _ = job.refresh().result
    lose(url)
    with pytest.raises(BlobMissing, match="is gone"):
        _ = job.result
    assert job.status == "succeeded", "all else can be read"


def test_one_that_waited_for_a_result_that_is_gone_fails_with_the_code(app: Holdfast, url: str) -> None:
    @app.task
    def make() -> str:
        return large()

    @app.task(max_attempts=1)
    def take(ctx: Context) -> int:
        return len(ctx.blockers)

    made = make.enqueue()
    drain(app)
    lose(url)
    job = take.using(after=made).enqueue()
    drain(app, raise_errors=False)
    assert job.refresh().error_code == "RESOURCE:BLOB_MISSING"


def test_whoever_sends_the_same_again_mends_it(app: Holdfast, harm: Harm) -> None:
    inbox = app.queue("inbox")
    first = inbox.send(large())
    harm[0]()
    inbox.send(large())
    assert app.jobs.get(first).args == large()


# --- names that somebody wrote by hand ---


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_the_database_refuses_what_is_no_name(app: Holdfast, sql: Sql, name: Any) -> None:
    app.queue("inbox").send(1)
    for statement in ("UPDATE holdfast_jobs SET args_blob = ?", "UPDATE holdfast_jobs SET result_blob = ?"):
        with pytest.raises(sqlite3.IntegrityError):
            sql(statement, (name,))


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_no_path_comes_from_the_database(app: Holdfast, url: str, name: Any) -> None:
    """Whoever can write to the database gets no further than that."""

    @app.task
    def work(text: str) -> None: ...

    inbox = app.queue("inbox")
    job, id, other = work.enqueue(large()), inbox.send(large()), inbox.send("good")
    conn = sqlite3.connect(url)
    conn.execute("PRAGMA ignore_check_constraints = ON")
    conn.execute("UPDATE holdfast_jobs SET args_blob = ? WHERE args = 'null'", (name,))
    conn.commit()
    conn.close()
    drain(app, raise_errors=False)
    message = inbox.receive()
    assert message is not None and message.id == other
    assert job.refresh().error_code == app.jobs.get(id).error_code == "RESOURCE:BLOB_MISSING"
    with pytest.raises(BlobMissing, match="not the name of a blob"):
        _ = job.refresh().args
    assert name == "" or {id for id, *_ in missing(app)} == {job.id}
    app.jobs.delete(status="failed")
    app.store.collect_blobs()
    assert Path("/etc/passwd").exists() and missing(app) == []


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


def test_another_blob_store_can_stand_in(other: Holdfast, kept: MemoryBlobs, url: str) -> None:
    @other.task
    def double(text: str) -> str:
        return text + text

    job = double.enqueue(large())
    drain(other)
    assert job.refresh().result == large() + large()
    assert len(kept.kept) == 2 and not Path(f"{url}-blobs").exists()
    other.jobs.delete(job.id)
    assert other.store.collect_blobs() == 2 and kept.kept == {}
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
    with pytest.raises(BlobError, match=r"MemoryBlobs.*FileBlobs.*--app"):
        plain.queue("inbox").send(large(letter="y"))
    plain.queue("inbox").send("small")
    plain.jobs.delete(id)
    assert plain.store.collect_blobs() == 0 and len(kept.kept) == 1
    assert missing(plain) == []
    assert other.store.collect_blobs() == 1 and kept.kept == {}


def test_a_test_on_a_temporary_database_leaves_the_programs_blobs_alone(other: Holdfast, kept: MemoryBlobs) -> None:
    from holdfast.testing import on_temporary_database

    with on_temporary_database(other):
        id = other.queue("inbox").send(large())
        assert other.jobs.get(id).args == large()
    assert kept.asked == []


def test_all_of_these_are_errors_of_holdfast() -> None:
    assert issubclass(BlobError, StoreError) and issubclass(BlobDamaged, BlobMissing)
    assert issubclass(BlobMissing, LookupError)
