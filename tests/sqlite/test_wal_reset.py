"""SQLite's WAL-reset bug, which loses commits that were flushed to disk, and Holdfast's guard against it.

A checkpointer reads the header of the WAL index and is paused there. Another process has checkpointed the whole WAL,
so a writer resets it. The checkpointer continues with the old header, and marks frames as copied that were written
after the reset. The next writer that resets the WAL overwrites them.
"""

import json
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.store.sqlite.engine import errors
from support.child_processes import Crew, Member, compile_shim
from support.running_worker import eventually

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the shim reads /proc and needs LD_PRELOAD"
)


def is_affected(version: tuple[int, int, int]) -> bool:
    """Return whether the version has the bug: since 3.7.0, fixed in 3.51.3, 3.44.6 and 3.50.7."""
    fixed = (3, 44, 6) <= version < (3, 45, 0) or (3, 50, 7) <= version < (3, 51, 0)
    return (3, 7, 0) <= version < (3, 51, 3) and not fixed


@pytest.fixture
def shim(tmp_path: Path) -> str:
    return compile_shim("wal_reset_shim.c", tmp_path)


class Scene:
    """A database, a process that writes to it, and a checkpointer that is paused in the critical window."""

    def __init__(self, database: Path, crew: Crew, shim: str, kind: str) -> None:
        self.database, self.app = database, Holdfast(database, busy_timeout=60)
        self.queue = self.app.queue("acknowledged")
        self.sent: set[int] = set()
        self.app.store.file.checkpoint()  # so that the database has some pages
        self.bare = None if kind == "guarded" else sqlite3.connect(database, isolation_level=None)
        self.checkpointer: Member = crew.start("checkpointer", kind, LD_PRELOAD=shim)
        assert self.checkpointer.hear() == "ready", crew.complaints()

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent.add(self.queue.send("x" * 300))

    def checkpoint(self, mode: str = "PASSIVE") -> None:
        if self.bare is None:
            self.app.store.file.checkpoint()
        else:
            self.bare.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def pause(self) -> None:
        """Let the checkpointer begin, and wait until it is paused in the window."""
        self.checkpointer.say("begin")
        assert self.checkpointer.hear() == "paused", "it never reached the window, so the test proves nothing"

    def go_on(self) -> None:
        self.checkpointer.say("go on")
        assert self.checkpointer.hear() == "checkpointed"

    def close(self) -> set[int]:
        """Close everything. Return the acknowledged ids that are missing."""
        self.checkpointer.say("end")
        self.checkpointer.process.wait()
        self.app.close()
        if self.bare is not None:
            self.bare.close()
        return self.sent - readable(self.database, self.sent)


def readable(database: Path, ids: set[int]) -> set[int]:
    """Return the ids that can be read. Reads one by one, because the file may be damaged too."""
    connection, found = sqlite3.connect(database), set()
    for id in ids:
        try:
            rows = connection.execute("SELECT id FROM holdfast_jobs NOT INDEXED WHERE id = ?", (id,)).fetchall()
        except sqlite3.DatabaseError:
            continue
        found |= {row[0] for row in rows}
    connection.close()
    return found


def test_without_the_guard_an_affected_sqlite_loses_commits(tmp_path: Path, shim: str) -> None:
    with Crew(tmp_path, tmp_path / "app.db") as crew:
        scene = Scene(tmp_path / "app.db", crew, shim, "bare")
        scene.send(200)
        scene.checkpoint()
        scene.pause()
        scene.send(3)
        scene.go_on()
        try:
            scene.send(120)
            scene.checkpoint()
            scene.send(30)
            scene.checkpoint("TRUNCATE")
        except StoreError as error:
            print(f"\nHoldfast noticed: {error}")
        lost = scene.close()
    print(f"\nSQLite {sqlite3.sqlite_version}, no guard: {len(scene.sent)} acknowledged, {len(lost)} lost")
    if is_affected(sqlite3.sqlite_version_info):
        assert lost, "the control lost nothing, so the other test proves nothing"
    else:
        assert not lost, "this version should have the fix"


def count_pauses(patch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that grows with each pause of this process while the database is locked."""
    pauses, sleep = list[float](), time.sleep

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    patch.setattr(errors, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    return pauses


def test_with_the_guard_nothing_is_lost_while_other_processes_write(
    tmp_path: Path, shim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "app.db"
    with Crew(tmp_path, database) as crew:
        scene = Scene(database, crew, shim, "guarded")
        writers = [crew.start("writer") for _ in range(2)]
        assert [writer.hear() for writer in writers] == ["ready", "ready"], crew.complaints()
        scene.send(200)
        scene.checkpoint()
        scene.pause()
        for writer in writers:
            writer.say("go")
        sending = threading.Thread(target=scene.send, args=(3,))
        with monkeypatch.context() as patch:
            tries = count_pauses(patch)
            sending.start()
            eventually(lambda: len(tries) > 50 or not sending.is_alive(), "it waits for the lock")
        assert len(scene.sent) == 200, "a process wrote while the checkpointer was in the window"
        assert [writer.lines() for writer in writers] == [[], []]
        scene.go_on()
        sending.join()
        scene.send(120)
        scene.checkpoint()
        scene.send(30)
        scene.checkpoint()
        for writer in writers:
            writer.say("stop")
        reports = [json.loads(writer.hear()) for writer in writers]
        lost = scene.close()
        complaints = crew.complaints()

    assert complaints == []
    written = {int(id) for writer in writers for _, id in writer.lines()}
    assert len(written) == sum(report["sent"] for report in reports) > 0
    total = len(scene.sent) + len(written)
    print(f"\nSQLite {sqlite3.sqlite_version}, guarded: {total} acknowledged by 3 processes, {len(lost)} lost")
    assert not lost
    assert readable(database, written) == written
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
