"""The guarantees G9 and G11: a disk that fails is told by a typed error, a lock of others is not told at all."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CorruptDatabase, DiskFull, NotADatabase, ReadOnlyDatabase, StoreBusy, StoreError
from holdfast.testing import FakeClock

# --- G9: on a full, read-only or corrupt disk a typed error, never a success ---


def pragma(app: Holdfast, setting: str) -> None:
    """Set it on the connection that writes."""
    app.store._engine.writer._connection.execute(f"PRAGMA {setting}").fetchall()  # type: ignore[attr-defined]


SENDS: dict[str, Callable[[Holdfast], Any]] = {
    "send": lambda app: app.queue("inbox").send("x" * 5000),
    "send with key": lambda app: app.queue("inbox").send("x" * 5000, key="k"),
    "send_many": lambda app: app.queue("inbox").send_many(["x" * 5000] * 3),
}


@pytest.fixture(params=SENDS.values(), ids=SENDS.keys())
def send(request: pytest.FixtureRequest) -> Callable[[Holdfast], Any]:
    found: Callable[[Holdfast], Any] = request.param
    return found


Send = Callable[[Holdfast], Any]


def test_g9_a_full_disk_is_told(app: Holdfast, send: Send) -> None:
    pragma(app, "max_page_count = 1")  # as many as there are
    with pytest.raises(DiskFull, match="full"):
        for _ in range(50):
            send(app)
    stored = app.queue("inbox").stats().total
    with pytest.raises(DiskFull):
        send(app)
    assert app.queue("inbox").stats().total == stored


def test_g9_after_a_full_disk_has_room_again_all_goes_on(app: Holdfast, send: Send) -> None:
    pragma(app, "max_page_count = 1")
    with pytest.raises(DiskFull):
        for _ in range(50):
            send(app)
    pragma(app, "max_page_count = 1000000")
    send(app)


def test_g9_below_the_reserve_nothing_is_enqueued_but_work_settles(
    open_app: Callable[..., Holdfast], send: Send
) -> None:
    with open_app() as plenty:
        plenty.queue("inbox").send("running")
    app = open_app(min_free_bytes=2**62)
    message = app.queue("inbox").receive()
    with pytest.raises(DiskFull, match="reserve"):
        send(app)
    assert message is not None and message.ack() is True
    assert app.queue("inbox").stats().total == 0


def test_g9_a_read_only_disk_is_told(app: Holdfast, send: Send) -> None:
    pragma(app, "query_only = ON")
    with pytest.raises(ReadOnlyDatabase, match="cannot be written"):
        send(app)
    assert app.queue("inbox").stats().total == 0


def test_g9_a_settle_on_a_read_only_disk_is_told(app: Holdfast) -> None:
    app.queue("inbox").send("x")
    message = app.queue("inbox").receive()
    assert message is not None
    pragma(app, "query_only = ON")
    for settle in (message.ack, message.release, lambda: message.extend(5)):
        with pytest.raises(ReadOnlyDatabase):
            settle()


def scribble(url: str, start: int, end: int | None = None) -> None:
    """Write rubbish over a part of the file; from another process, since closing it here would drop our locks."""
    script = """
import os, sys
path, start = sys.argv[1], int(sys.argv[2])
end = int(sys.argv[3]) if len(sys.argv) > 3 else os.path.getsize(path)
with open(path, "r+b") as file:
    file.seek(start)
    file.write(b"\\xa5" * (end - start))
"""
    command = [sys.executable, "-c", script, url, str(start)]
    subprocess.run(command if end is None else [*command, str(end)], check=True)


@pytest.mark.parametrize("start", [0, 100])
def test_g9_a_corrupt_file_is_told(open_app: Callable[..., Holdfast], url: str, send: Send, start: int) -> None:
    with open_app() as app:
        app.queue("inbox").send("x")
        app.store.checkpoint()
    scribble(url, start)
    with pytest.raises((CorruptDatabase, NotADatabase)):
        send(open_app())


def test_g9_once_damage_was_found_nothing_more_is_written(open_app: Callable[..., Holdfast], url: str) -> None:
    with open_app() as app:
        app.queue("inbox").send("x")
        app.store.checkpoint()
    with closing(sqlite3.connect(url)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'holdfast_tracebacks'")
    app = open_app()
    scribble(url, (page - 1) * size, page * size)
    with pytest.raises(CorruptDatabase):
        app.jobs.traceback("f00d")
    with pytest.raises(CorruptDatabase):
        app.queue("inbox").send("y")


# --- G11: "database is locked" never reaches a user ---


@pytest.fixture
def foreigner(app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection, which holds the write lock."""
    with closing(sqlite3.connect(url, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("BEGIN IMMEDIATE")
        yield connection


CALLS: dict[str, Callable[[Holdfast], Any]] = {
    **SENDS,
    "receive": lambda app: app.queue("seeded").receive(),
    "cancel": lambda app: app.jobs.cancel(queue="seeded"),
    "delete": lambda app: app.jobs.delete(queue="seeded"),
    "pause": lambda app: app.queue("seeded").pause(),
    "purge": lambda app: app.queue("seeded").purge(),
    "recover": lambda app: app.store.recover(),
    "promote": lambda app: app.store.promote(),
    "checkpoint": lambda app: app.store.checkpoint(),
    "extend": lambda app: app.queue("held").extend(2, 1, 30),
    "ack": lambda app: app.queue("held").ack(2, 1),
    "release": lambda app: app.queue("held").release(2, 1),
}


@pytest.fixture
def seeded(open_app: Callable[..., Holdfast], clock: FakeClock) -> None:
    with open_app(clock=clock) as app:
        assert app.queue("seeded").send("x") == 1
        app.queue("held").send("x")
        app.queue("held").receive()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_g11_a_write_waits_for_the_lock_of_others(
    seeded: None, app: Holdfast, foreigner: sqlite3.Connection, call: Callable[[Holdfast], Any]
) -> None:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call(app))
        except Exception as error:  # noqa: BLE001  shown below
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.05)
    early = list(outcome)
    foreigner.execute("ROLLBACK")
    thread.join(20)
    assert outcome and not isinstance(outcome[0], Exception)
    assert early == [], "it did not wait"


def test_g11_opening_waits_for_the_lock_of_others(url: str, open_app: Callable[..., Holdfast]) -> None:
    Path(url).touch()
    opened: list[Any] = []

    def run() -> None:
        try:
            opened.append(open_app())
        except Exception as error:  # noqa: BLE001  shown below
            opened.append(error)

    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.05)
        connection.execute("ROLLBACK")
        thread.join(20)
    assert [type(one) for one in opened] == [Holdfast]


def test_g11_reading_does_not_wait(seeded: None, app: Holdfast, foreigner: sqlite3.Connection) -> None:
    assert app.jobs.get(1).args == "x"
    assert app.queue("seeded").stats().ready == 1
    assert len(app.jobs.list()) == 2


def test_g11_a_lock_without_end_is_an_error_that_says_what_to_do(
    open_app: Callable[..., Holdfast], clock: FakeClock, foreigner: sqlite3.Connection, send: Send
) -> None:
    app = open_app(busy_timeout=0.05, clock=clock)
    with pytest.raises(StoreBusy, match="write lock") as caught:
        send(app)
    assert "database is locked" not in str(caught.value)
    assert isinstance(caught.value, StoreError)


def test_g11_after_such_an_error_all_goes_on(
    open_app: Callable[..., Holdfast], clock: FakeClock, foreigner: sqlite3.Connection, send: Send
) -> None:
    app = open_app(busy_timeout=0.05, clock=clock)
    with pytest.raises(StoreBusy):
        send(app)
    foreigner.execute("ROLLBACK")
    send(app)
    assert app.queue("inbox").stats().total in (1, 3)
