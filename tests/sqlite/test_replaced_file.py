"""A database or log that is deleted or replaced while it is open: a typed error, nothing silently lost."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import DatabaseMissing, FileReplaced
from holdfast.store.sqlite.engine import database_file
from support.refusals import told
from support.running_worker import PATIENCE_SECONDS


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def restore_backup(path: Path) -> None:
    """As an operator does who has not stopped the program."""
    connection = sqlite3.connect(path)
    copy = sqlite3.connect(path.with_name("backup.db"))
    connection.backup(copy)
    connection.close()
    copy.close()
    os.replace(path.with_name("backup.db"), path)


@pytest.fixture(params=[delete_log, delete_all, move, restore_backup])
def replace(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    found: Callable[[Path], None] = request.param
    return found


@pytest.fixture
def app(path: Path) -> Holdfast:
    return Holdfast(path)


Replace = Callable[[Path], None]


def test_a_sender_gets_a_typed_error_at_once_and_ever_after(app: Holdfast, path: Path, replace: Replace) -> None:
    inbox = app.queue("inbox")
    inbox.send("before")
    replace(path)
    for _ in range(2):
        with told(FileReplaced, str(path), "deleted, moved or replaced", "start the program again"):
            inbox.send("x")
    with told(FileReplaced), app.transaction() as tx:
        inbox.send("x", conn=tx)
    with told(FileReplaced):
        app.store.file.checkpoint()
    with told(FileReplaced):
        inbox.stats()
    app.close()


def test_a_transaction_that_was_open_when_it_happened_raises(app: Holdfast, path: Path, replace: Replace) -> None:
    with told(FileReplaced), app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        replace(path)
    app.close()


def test_a_receiver_that_waits_gets_a_typed_error(app: Holdfast, path: Path, replace: Replace) -> None:
    waiting, caught = threading.Event(), list[BaseException]()

    def receive() -> None:
        try:
            waiting.set()
            app.queue("empty").receive(wait=PATIENCE_SECONDS)
        except FileReplaced as error:
            caught.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    assert waiting.wait(PATIENCE_SECONDS)
    replace(path)
    thread.join(PATIENCE_SECONDS)
    assert len(caught) == 1
    app.close()


def test_a_receiver_that_polls_gets_a_typed_error(app: Holdfast, path: Path, replace: Replace) -> None:
    replace(path)
    with told(FileReplaced):
        while True:  # it looks at most every 50 ms
            app.queue("empty").receive()
    app.close()


def test_an_idle_worker_ends_with_a_typed_error(app: Holdfast, path: Path, replace: Replace) -> None:
    caught = list[BaseException]()
    job = app.task(name="known")(lambda: None).enqueue()

    def run() -> None:
        try:
            app.worker(concurrency=1).run()
        except FileReplaced as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    job.wait(timeout=PATIENCE_SECONDS)
    replace(path)
    thread.join(PATIENCE_SECONDS)
    assert len(caught) == 1
    app.close()


def test_waiting_for_a_job_raises_a_typed_error(app: Holdfast, path: Path, replace: Replace) -> None:
    job = app.task(name="never")(lambda: None).enqueue()
    replace(path)
    with told(FileReplaced):
        job.wait(timeout=PATIENCE_SECONDS)
    app.close()


def test_a_process_that_forks_does_not_create_the_database_anew(app: Holdfast, path: Path) -> None:
    """Around a fork everything is closed, and opened again when it is needed."""
    with app.store.database.around_fork():  # type: ignore[attr-defined]
        delete_all(path)
    with told(DatabaseMissing, str(path)):
        app.queue("inbox").send("x")
    assert not path.exists()


def test_closing_does_not_touch_the_files_of_the_new_database(app: Holdfast, path: Path, tmp_path: Path) -> None:
    """Closing the last connection would delete the log by its name: the log of another database by now."""
    app.queue("inbox").send("old")
    away = tmp_path / "away"
    away.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            shutil.move(file, away)
    with Holdfast(path) as new:
        new.queue("inbox").send("new")
        size = Path(f"{path}-wal").stat().st_size
        app.close()
        assert Path(f"{path}-wal").stat().st_size == size > 0
        message = new.queue("inbox").receive()
        assert message is not None and message.body == "new"


@pytest.mark.parametrize("function", ["statx", "stat"])
def test_a_look_at_a_file_gives_what_stat_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """With statx(2) the times of the file are not asked for; without it, on other systems, they are."""
    if function == "stat":
        monkeypatch.setattr(database_file, "_statx", lambda: None)
    file = tmp_path / "näme"
    assert (database_file.file_facts(file), database_file.file_size(file)) == (None, 0)
    file.write_bytes(b"x" * 12345)
    found = file.stat()
    assert database_file.file_facts(str(file)) == (found.st_ino, found.st_dev, 12345)
    assert database_file.file_size(file) == 12345
    assert database_file.file_facts(file / "below") is None
    files = database_file.OpenFiles(file)
    assert files.check()
    file.rename(tmp_path / "moved")
    assert not files.check()
    (tmp_path / "moved").rename(file)
    assert files.check()
    Path(f"{file}-wal").touch()
    assert not files.check()
