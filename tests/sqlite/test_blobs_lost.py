"""A missing or damaged file with a large payload or result fails its own job, with a code, and no other."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import BlobDamaged, BlobMissing
from holdfast.testing import drain
from support.blob_stores import HOSTILE, blob_files, collect, large, missing
from support.running_worker import RunningWorker, eventually


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


def test_a_worker_continues_with_other_jobs(live: Holdfast, harm: Harm) -> None:
    @live.task
    def work(text: str) -> int:
        return len(text)

    spoilt = work.enqueue(large())
    harm[0]()
    good = [work.enqueue(large(letter=letter)) for letter in "abc"]
    with RunningWorker(live):
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


def test_reading_a_lost_payload_raises(app: Holdfast, url: str) -> None:
    @app.task
    def work() -> str:
        return large()

    job = work.enqueue()
    drain(app)
    damage(url)
    with pytest.raises(BlobDamaged, match="returned other data"):
        _ = job.refresh().result
    lose(url)
    with pytest.raises(BlobMissing, match="does not exist"):
        _ = job.result
    assert job.status == "succeeded", "all else can be read"


def test_a_job_that_waited_for_a_lost_result_fails_with_the_code(app: Holdfast, url: str) -> None:
    @app.task
    def make() -> str:
        return large()

    @app.task(max_attempts=1)
    def take(ctx: Context) -> int:
        return len(ctx.blocker_results)

    made = make.enqueue()
    drain(app)
    lose(url)
    job = take.using(after=made).enqueue()
    drain(app, raise_errors=False)
    assert job.refresh().error_code == "RESOURCE:BLOB_MISSING"


def test_sending_the_same_payload_again_restores_the_file(app: Holdfast, harm: Harm) -> None:
    inbox = app.queue("inbox")
    first = inbox.send(large())
    harm[0]()
    inbox.send(large())
    assert app.jobs.get(first).args == large()


# --- names that were written by hand ---


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_no_path_comes_from_the_database(app: Holdfast, url: str, name: Any) -> None:
    """Who can write to the database cannot reach other files by the names of blobs."""

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
    collect(app)
    assert Path("/etc/passwd").exists() and missing(app) == []


def test_the_raw_payload_of_a_lost_file_is_the_reference_to_it(app: Holdfast, url: str) -> None:
    sent = app.queue("inbox").send(large())
    whole = app.jobs.get(sent).raw_args
    lose(url)
    reference = app.jobs.get(sent).raw_args
    assert 0 < len(reference) < 1000 < len(whole)
