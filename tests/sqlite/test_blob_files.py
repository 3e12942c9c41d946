"""Large payloads as files beside the database: private, durable before the row, deleted when unused."""

import errno
import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import BlobError, DiskFull, ReadOnlyDatabase
from holdfast.store import blobs as module
from holdfast.store.blobs import FileBlobs
from holdfast.store.sqlite.engine import database_file
from holdfast.testing import drain
from support.blob_stores import blob_files, collect, large, orphaned
from support.running_worker import drain as at_work

HOUR = 3600


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177])
def test_only_the_owner_can_read_the_files(app: Holdfast, url: str, mask: int) -> None:
    before = os.umask(mask)
    try:
        app.queue("inbox").send(large())
    finally:
        os.umask(before)
    (file,) = blob_files(url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, file.parent.parent)] == [0o700] * 2
    assert file == Path(f"{url}-blobs") / file.name[:2] / file.name


def test_the_folder_is_created_with_the_first_blob(app: Holdfast, url: str) -> None:
    app.queue("inbox").send("small")
    assert not Path(f"{url}-blobs").exists()


def test_a_worker_does_not_list_a_missing_folder(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Any] = []
    monkeypatch.setattr(FileBlobs, "older_than", lambda self, seconds, place: iter(listed.append(place) or ()))
    app.task(name="job")(lambda: None).enqueue()
    at_work(app)
    assert listed == []
    app.queue("inbox").send(large())
    at_work(app)
    assert listed == list(range(256))


def test_the_file_is_on_the_disk_before_the_row(app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def seen() -> int:
        with closing(sqlite3.connect(url)) as conn:
            return int(conn.execute("SELECT count(*) FROM holdfast_jobs").fetchone()[0])

    def fsync(file: int, real: Callable[[int], None] = os.fsync) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{file}")).relative_to(Path(url).parent)
        name = place.name if place.name.startswith("app.db") else "folder" if len(place.name) <= 2 else "file"
        done.append(f"flush {name or 'place'} ({seen()} rows)")
        real(file)

    def replace(old: Any, new: Any, real: Callable[[Any, Any], None] = os.replace) -> None:
        done.append("rename")
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    app.queue("inbox").send(large())
    assert done == [
        "flush folder (0 rows)",  # where the database is: it has the folder now
        "flush app.db-blobs (0 rows)",  # it has the folder in it now
        "flush file (0 rows)",
        "rename",
        "flush folder (0 rows)",
    ]
    assert seen() == 1
    done.clear()
    app.queue("inbox").send(large())
    assert done == ["flush folder (1 rows)"], "another process may have renamed it a moment ago"


def test_a_file_is_complete_or_absent(app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(BlobError, match="Input/output error"):
            app.queue("inbox").send(large())
    assert blob_files(url) == [] and app.queue("inbox").stats().total == 0


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EROFS, ReadOnlyDatabase), (errno.EACCES, ReadOnlyDatabase)]
)
def test_disk_errors_become_typed_errors(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "write", fail)
        with pytest.raises(error, match="large payload"):
            app.queue("inbox").send(large())
    assert blob_files(url) == []
    app.queue("inbox").send(large())


def test_large_payloads_count_for_the_free_space(open_app: Callable[..., Holdfast], monkeypatch: Any) -> None:
    class Usage:
        f_bavail, f_frsize = 20 * 1024, 1024

    app = open_app(min_free_bytes=16 * 1024 * 1024)
    monkeypatch.setattr(database_file.os, "statvfs", lambda _: Usage)
    app.queue("inbox").send(large(3 * 1024 * 1024))
    for send in (app.queue("inbox").send, lambda body: app.queue("inbox").send_many([body])):
        with pytest.raises(DiskFull, match="reserve"):
            send(large(5 * 1024 * 1024, "y"))
    assert app.queue("inbox").stats().total == 1


def test_a_result_may_use_the_reserve(open_app: Callable[..., Holdfast], monkeypatch: Any) -> None:
    class Usage:
        f_bavail, f_frsize = 1024, 1024

    app = open_app()
    job = app.external("approval")
    monkeypatch.setattr(database_file.os, "statvfs", lambda _: Usage)
    assert app.jobs.complete(job.id, large()) is True


def test_a_result_that_does_not_fit_on_the_disk_is_not_lost(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @app.task
    def work() -> str:
        return large()

    job = work.enqueue()
    monkeypatch.setattr(module.os, "write", fail)
    drain(app)
    assert (job.refresh().result, job.attempt) == (large(), 1) and blob_files(url) == []


@pytest.mark.parametrize("when", ["before the file", "after the file"])
def test_a_process_killed_between_file_and_row_leaves_only_an_orphan(url: str, when: str) -> None:
    Holdfast(url).close()
    child = os.fork()
    if child == 0:
        try:
            app = Holdfast(url)
            put = FileBlobs.put

            def put_and_die(self: FileBlobs, name: str, data: bytes) -> None:
                if when == "after the file":
                    put(self, name, data)
                else:
                    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
                    put(self, name, data)
                os.kill(os.getpid(), signal.SIGKILL)

            FileBlobs.put = put_and_die  # type: ignore[method-assign]
            app.queue("inbox").send(large())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with Holdfast(url) as app:
        assert app.queue("inbox").stats().total == 0
        (left,) = blob_files(url)
        assert orphaned(app) == 0 and collect(app) == 0, "its row may still come"
        age(left, 25 * HOUR)
        collect(app)
        assert blob_files(url) == []
