"""Vacuum: after pruning the file shrinks, in small steps or as a whole. A log that cannot shrink is reported."""

import itertools
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CannotVacuum
from holdfast.store.sqlite import store as sqlite_store
from holdfast.store.sqlite.engine import checkpoint, database_file
from holdfast.testing import FakeClock
from holdfast.upkeep import prune, vacuum
from holdfast.upkeep.doctor import checks_sqlite
from support.finished_jobs import DAY, Ended
from support.running_worker import RunningWorker, eventually


@pytest.fixture
def full(app: Holdfast, clock: FakeClock, url: str) -> Path:
    """A file with expired jobs, and some others."""
    ended = Ended(app)
    ended.many(300, payload="x" * 3000)
    clock.advance(31 * DAY)
    for _ in range(10):
        ended.job("succeeded")
    app.store.file.checkpoint()
    return Path(url)


def test_the_file_shrinks_during_pruning(app: Holdfast, full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "SLACK_PAGES", 50)
    monkeypatch.setattr(vacuum, "STEPS_BETWEEN", 1)
    monkeypatch.setattr(prune, "FIRST_ROWS", 100)
    monkeypatch.setattr(prune, "MAX_ROWS", 100)
    before, free = full.stat().st_size, [0]
    app.prune(progress=lambda _: free.append(app.store.file.pages().free))
    app.store.file.checkpoint()
    assert full.stat().st_size < before / 2
    assert max(free) < 300, "about 900 pages were freed"
    assert sound(full)


def sound(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as connection:
        keys = connection.execute("PRAGMA foreign_key_check").fetchall()
        return keys == [] and connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("whole", [False, True])
def test_after_pruning_and_vacuum_the_file_has_shrunk_and_is_sound(app: Holdfast, full: Path, whole: bool) -> None:
    before = full.stat().st_size
    assert app.prune().succeeded == 300
    app.store.file.checkpoint()
    assert full.stat().st_size == before
    report = app.vacuum(full=whole, actor="ada", reason="room")
    assert full.stat().st_size == report.after_bytes < before / 3
    assert report.free_bytes == 0
    assert sound(full)
    assert len(app.jobs.list().items) == 10
    event = app.observe.last_events(limit=1)[0]
    assert (event.event, event.actor, event.detail["reason"]) == ("vacuumed", "ada", "room")


def test_other_processes_can_write_between_the_steps_of_a_vacuum(
    app: Holdfast, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fake clock on which each page takes a microsecond, so that a step is 50 pages on any machine."""
    del full
    app.prune()
    moments = itertools.count()
    monkeypatch.setattr(sqlite_store, "perf_counter", lambda: next(moments) / 1_000_000)
    monkeypatch.setattr(vacuum, "LOCK_SECONDS", 50 / 1_000_000)
    inbox = app.queue("inbox")
    seen: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> None:
        seen.append((done, of))
        inbox.send("hello")

    app.vacuum(progress=progress)
    assert len(seen) > 3 and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert inbox.stats().ready == len(seen)


def test_a_file_without_incremental_vacuum_needs_a_full_one_first(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER PRIMARY KEY)")
        connection.commit()
    with Holdfast(file, clock=clock) as app:
        with pytest.raises(CannotVacuum, match="--full"):
            app.vacuum()
        app.vacuum(full=True)
        assert app.store.file.pages().auto_vacuum == 2
        app.vacuum()
    assert sound(file)


def test_a_full_vacuum_is_refused_while_a_worker_runs(app: Holdfast, full: Path) -> None:
    del full
    with RunningWorker(app):
        eventually(lambda: any(one.is_present for one in app.store.workers.list()))
        with pytest.raises(CannotVacuum, match="1 worker is running"):
            app.vacuum(full=True)
    app.vacuum(full=True)


def test_a_full_vacuum_is_refused_without_free_space(
    app: Holdfast, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        f_bavail, f_frsize = 100, 1024

    monkeypatch.setattr(database_file.os, "statvfs", lambda _: Usage)
    before = full.stat().st_size
    with pytest.raises(CannotVacuum, match="free space"):
        app.vacuum(full=True)
    assert full.stat().st_size == before


def test_an_interrupted_full_vacuum_changes_nothing(
    app: Holdfast, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "VACUUM_STEPS", 100)
    app.prune()

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.vacuum(full=True, progress=stop)
    assert sound(full)
    assert len(app.jobs.list().items) == 10
    assert app.vacuum(full=True).free_bytes == 0


def test_a_full_vacuum_loses_no_committed_rows(app: Holdfast, full: Path, url: str) -> None:
    """The log is emptied by our checkpoint, not by VACUUM."""
    ids = app.queue("inbox").send_many(range(500))
    app.vacuum(full=True)
    with closing(sqlite3.connect(url)) as connection:
        rows = connection.execute("SELECT id FROM holdfast_jobs WHERE queue = 'inbox'").fetchall()
    assert {row[0] for row in rows} == set(ids)
    assert sound(full)


@pytest.mark.parametrize("whole", [True, False], ids=["full", "in steps"])
def test_the_report_names_the_bytes_that_a_reader_holds_back(
    app: Holdfast, full: Path, url: str, whole: bool
) -> None:
    app.prune()
    app.store.file.checkpoint()
    before = full.stat().st_size
    with closing(sqlite3.connect(url, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM holdfast_jobs").fetchall()
        report = app.vacuum(full=whole)
        assert report.after_bytes == full.stat().st_size == before and report.held_bytes > before / 2
        reader.execute("ROLLBACK")
    app.store.file.checkpoint()
    assert abs(full.stat().st_size - (before - report.held_bytes)) < 5000  # the event may have needed a page
    assert app.vacuum(full=whole).held_bytes == 0


# --- the write-ahead log ---


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "ALARM_BYTES", 200_000)
    monkeypatch.setattr(checks_sqlite, "LARGE_LOG_BYTES", 200_000)
    monkeypatch.setattr(checkpoint, "CHANGES_PER_CHECKPOINT", 200)


def test_a_log_that_cannot_shrink_is_reported_with_the_reader(
    open_app: Callable[..., Holdfast], url: str, small_cap: None, caplog: pytest.LogCaptureFixture, process: Any
) -> None:
    app = open_app()
    inbox = app.queue("inbox")
    inbox.send_many(range(10))
    with caplog.at_level(logging.INFO, "holdfast.store"):
        reader = process(url)
        for _ in range(20):
            inbox.send_many(["x" * 500] * 50)
        finding = app.check().of("WAL_LARGE")
        assert finding is not None and finding.detail["readers"] == [reader.pid]
        (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        assert "cannot shrink" in warning and f"in process {reader.pid} (" in warning and " or in " not in warning
        reader.communicate("end")
        app.store.file.checkpoint()
        assert "can shrink again" in caplog.text


@pytest.fixture
def process() -> Any:
    """A process that holds a read transaction open until it is told to end."""
    import subprocess
    import sys

    started: list[Any] = []

    def start(url: str) -> Any:
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN'); "
            "c.execute('SELECT count(*) FROM holdfast_jobs').fetchall(); print('reads', flush=True); sys.stdin.read()"
        )
        one = subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(one)
        assert one.stdout is not None and one.stdout.readline() == "reads\n"
        return one

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()
        for pipe in (one.stdin, one.stdout):
            pipe.close()
