"""Blobs that no job refers to are deleted, and no others, also with concurrent senders."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store import blobs
from holdfast.store.blobs import CheckedBlobs, FileBlobs
from support.blob_stores import LARGE, MemoryBlobs, blob_files, collect, large, missing, name_of, orphaned
from support.running_worker import PATIENCE_SECONDS, eventually
from support.transitions import claim_tasks

HOUR = 3600


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def orphan(url: str, letter: str = "o", hours: float = 2) -> Path:
    """What a process put there and did not live to refer to."""
    blobs = FileBlobs(Path(f"{url}-blobs"))
    blobs.put(name_of(large(letter=letter)), f'"{large(letter=letter)}"'.encode())
    path = blobs._path(name_of(large(letter=letter)))
    age(path, hours * HOUR)
    return path


def test_only_unreferenced_blobs_are_deleted(app: Holdfast, url: str) -> None:
    inbox = app.queue("inbox")
    first, second, other = inbox.send(large()), inbox.send(large()), inbox.send(large(letter="y"))
    app.jobs.delete(first)
    assert collect(app) == 0 and len(blob_files(url)) == 2
    app.jobs.delete(second)
    assert collect(app) == 1
    assert app.jobs.get(other).args == large(letter="y")
    assert collect(app) == 0


@pytest.mark.parametrize("how", ["delete", "purge", "ack without history", "by hand"])
def test_the_blobs_of_a_deleted_job_are_deleted(app: Holdfast, url: str, how: str) -> None:
    inbox = app.queue("inbox", history=how != "ack without history")
    id = inbox.send(large())
    if how == "delete":
        app.jobs.delete(id)
    elif how == "purge":
        inbox.purge()
    elif how == "by hand":
        with closing(sqlite3.connect(url)) as conn, conn:
            conn.execute("DELETE FROM holdfast_jobs")
    else:
        message = inbox.receive()
        assert message is not None and message.ack()
    assert collect(app) == 1 and blob_files(url) == []


def test_the_blob_of_a_late_result_is_deleted(app: Holdfast, url: str) -> None:
    from holdfast.clock import SECOND
    from holdfast.model.job import Settlement

    job = app.task(name="work")(lambda: None).enqueue()
    (claimed,) = claim_tasks(app.store, None, ["work"], 1, 30 * SECOND, "w")
    kept = app.store.jobs.offload(Settlement(claimed.lease, "succeed", 1, 2, f'"{large()}"'))
    app.jobs.cancel(job.id)
    assert app.store.jobs.settle_and_claim([kept], []).lost == [kept]
    assert len(blob_files(url)) == 1 and collect(app) == 1 and blob_files(url) == []


def test_blobs_orphaned_by_a_crash_are_deleted_after_an_hour(app: Holdfast, url: str) -> None:
    app.queue("inbox").send(large())
    old, new = orphan(url, "o", 1.1), orphan(url, "n", 0.9)
    assert orphaned(app) == 1
    assert collect(app) == 1
    assert not old.exists() and new.exists() and orphaned(app) == 0


def test_an_old_blob_in_use_is_not_an_orphan(app: Holdfast, url: str) -> None:
    id = app.queue("inbox").send(large())
    (file,) = blob_files(url)
    age(file, 1000 * HOUR)
    assert orphaned(app) == 0 and collect(app) == 0
    assert app.jobs.get(id).args == large()


def test_other_files_in_the_folder_are_left_alone(app: Holdfast, url: str) -> None:
    app.queue("inbox").send(large())
    (file,) = blob_files(url)
    stranger = file.with_name("README")
    stranger.write_text("not ours")
    age(stranger, 1000 * HOUR)
    collect(app)
    assert stranger.exists() and orphaned(app) == 0


def test_a_missing_blob_is_reported_with_its_job(app: Holdfast, url: str) -> None:
    ids = [app.queue("inbox").send(large(letter=letter)) for letter in "abc"]
    job = app.external("approval")
    app.jobs.complete(job.id, large(letter="r"))
    assert missing(app) == []
    for path in blob_files(url):
        if path.name != name_of(large(letter="b")):
            path.unlink()
    found = {(id, what) for id, what, _ in missing(app)}
    assert found == {(ids[0], "payload"), (ids[2], "payload"), (job.id, "result")}


def test_collection_stops_at_the_limit_and_continues_next_time(app: Holdfast, url: str) -> None:
    inbox = app.queue("inbox")
    inbox.send_many([large(LARGE + n) for n in range(1, 26)])
    inbox.purge()
    assert [collect(app, 10) for _ in range(4)] == [10, 10, 5, 0]
    assert blob_files(url) == []


def test_the_write_lock_is_held_only_briefly(open_app: Callable[..., Holdfast], monkeypatch: Any) -> None:
    """A blob store far away takes long to delete: others write in between."""
    monkeypatch.setattr(blobs, "MAX_LOCK_SECONDS", -1)
    app = open_app(blobs=MemoryBlobs())
    app.queue("inbox").send_many([large(LARGE + n) for n in range(1, 6)])
    app.queue("inbox").purge()
    transactions: list[int] = []
    collector = app.store.pruning._blobs  # type: ignore[attr-defined]
    delete_some = collector._delete_some

    def count(connection: sqlite3.Connection, most: int) -> Any:
        transactions.append(most)
        return delete_some(connection, most)

    monkeypatch.setattr(collector, "_delete_some", count)
    assert collect(app) == 5 and len(transactions) == 6


def test_a_blob_is_deleted_only_after_a_durable_commit_that_it_is_unused(app: Holdfast, monkeypatch: Any) -> None:
    """A power cut must not bring back a job whose payload is gone."""
    app.queue("inbox").send(large())
    app.queue("inbox").purge()
    steps: list[str] = []
    run, delete = app.store.database.run, CheckedBlobs.delete  # type: ignore[attr-defined]

    def watch(work: Any, **how: Any) -> Any:
        done = run(work, **how)
        steps.append("flushed" if how.get("durable") else "written")
        return done

    monkeypatch.setattr(app.store.database, "run", watch)  # type: ignore[attr-defined]
    monkeypatch.setattr(CheckedBlobs, "delete", lambda self, name: (steps.append("deleted"), delete(self, name)))
    collect(app)
    assert steps[:3] == ["flushed", "deleted", "written"]


@pytest.mark.parametrize("how", ["send", "send with a key", "send in a transaction"])
def test_a_payload_sent_during_its_deletion_is_not_lost(
    app: Holdfast, open_app: Callable[..., Holdfast], url: str, monkeypatch: Any, how: str
) -> None:
    """It is put, and found there already; then the other process deletes it; then the row comes."""
    collector = open_app()
    app.queue("old").send(large())
    app.queue("old").purge()
    put, times = FileBlobs.put, list[int]()

    def put_then_lose(self: FileBlobs, name: str, data: bytes) -> None:
        put(self, name, data)
        times.append(1)
        if len(times) == 1:
            collect(collector)

    monkeypatch.setattr(FileBlobs, "put", put_then_lose)
    inbox = app.queue("inbox")
    if how == "send":
        id = inbox.send(large())
    elif how == "send with a key":
        id = inbox.send(large(), key="k")
    else:
        with closing(sqlite3.connect(url)) as conn, conn:
            id = inbox.send(large(), conn=conn)
    assert app.jobs.get(id).args == large() and len(times) == 2
    assert collect(collector) == 0


def test_payloads_sent_in_bulk_during_a_deletion_are_all_stored_or_none(
    app: Holdfast, open_app: Callable[..., Holdfast], monkeypatch: Any
) -> None:
    collector = open_app()
    app.queue("old").send(large())
    app.queue("old").purge()
    put = FileBlobs.put
    monkeypatch.setattr(FileBlobs, "put", lambda *given: (put(*given), collect(collector)))
    from holdfast.errors import StoreError

    with pytest.raises(StoreError, match="try again"):
        app.queue("inbox").send_many(["small", large()])
    assert app.queue("inbox").stats().total == 0
    monkeypatch.undo()
    ids = app.queue("inbox").send_many(["small", large()])
    assert app.jobs.get(ids[1]).args == large()


def test_a_result_put_during_its_deletion_is_computed_again(
    app: Holdfast, open_app: Callable[..., Holdfast], monkeypatch: Any
) -> None:
    from holdfast.testing import drain

    collector = open_app()
    app.queue("old").send(large())
    app.queue("old").purge()

    @app.task
    def work() -> str:
        return large()

    put, times = FileBlobs.put, list[int]()

    def put_then_lose(*given: Any) -> None:
        put(*given)
        times.append(1)
        if len(times) == 1:
            collect(collector)

    monkeypatch.setattr(FileBlobs, "put", put_then_lose)
    job = work.enqueue()
    drain(app)
    assert job.refresh().result == large() and job.attempt == 2


def test_concurrent_senders_and_collector_lose_nothing(open_app: Callable[..., Holdfast], url: str) -> None:
    """The same few contents over and over, each sent, received and deleted by several, while one collects."""
    app, collector = open_app(min_free_bytes=0), open_app()
    trouble: list[object] = []
    stop = threading.Event()

    def keep_collecting() -> None:
        while not stop.is_set():
            collect(collector)

    def send(letter: str) -> None:
        queue = app.queue(letter, history=False)
        try:
            for n in range(25):
                queue.send(large(LARGE + 10, "ab"[n % 2]))
                message = queue.receive()
                if message is None or not message.ack():
                    trouble.append([job.error_code for job in queue.dead_letters()])
        except Exception as error:  # noqa: BLE001  told below
            trouble.append(error)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in "xyz"]
    background = threading.Thread(target=keep_collecting)
    for thread in [background, *threads]:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    stop.set()
    background.join(PATIENCE_SECONDS)
    assert trouble == []
    collect(app)
    eventually(lambda: blob_files(url) == [])


def test_names_of_deleted_blobs_are_forgotten_after_a_week(app: Holdfast, clock: Any, url: str) -> None:
    def names() -> int:
        with closing(sqlite3.connect(url)) as conn:
            return int(conn.execute("SELECT count(*) FROM holdfast_unused_blobs").fetchone()[0])

    app.queue("inbox").send(large())
    app.queue("inbox").purge()
    collect(app)
    assert names() == 1
    clock.advance(8 * 24 * HOUR)
    collect(app)
    assert names() == 0


def test_pruning_deletes_blobs_and_archives_their_content(app: Holdfast, clock: Any, url: str) -> None:
    import gzip
    import json

    from holdfast.testing import drain

    @app.task
    def double(text: str) -> str:
        return text + text

    double.enqueue(large())
    drain(app)
    clock.advance(100 * 24 * HOUR)
    archive = Path(url).with_name("old.jsonl.gz")
    report = app.prune(archive=archive)
    assert (report.succeeded, report.blobs) == (1, 2) and blob_files(url) == []
    (job,) = map(json.loads, gzip.decompress(archive.read_bytes()).splitlines())
    assert job["args"] == {"text": large()} and job["result"] == large() + large()


def test_references_are_looked_up_by_index(app: Holdfast, url: str) -> None:
    with closing(sqlite3.connect(url)) as conn:
        for name in (
            "set_args_blob",
            "set_result_blob",
            "reuse_blob",
            "is_unused_blob",
            "is_blob_in_use",
            "mark_orphans_unused",
            "unreferenced_blobs",
            "unused_blobs",
            "note_unused_blobs",
            "any_unused_blob",
            "forget_gone_blobs",
            "args_blobs_after",
            "result_blobs_after",
        ):
            statement = getattr(app.store.database.sql, name)  # type: ignore[attr-defined]
            several = statement.count("?") - statement.count("?1") // 2
            values: Any = {"names": "[]", "now": 1, "limit": 1} if ":" in statement else [1] * several
            plan = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
            assert not [
                line
                for line in plan
                if line.startswith("SCAN")
                and "json_each" not in line
                and "found" not in line
                and "CONSTANT" not in line
                and "USING" not in line
            ], (name, plan)
