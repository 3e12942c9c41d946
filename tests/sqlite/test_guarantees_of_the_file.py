"""The guarantees G8, G9 and G11 where they are about one file on one machine: full disks, damage, restarts."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import CorruptDatabase, DiskFull, NotADatabase
from holdfast.testing import FakeClock
from support.backend import Backend, set_pragma
from support.disks import SENDS, Send
from support.locking import result_after

# --- G9: on a full or corrupt disk a typed error, never a success ---


@pytest.fixture(params=SENDS.values(), ids=SENDS.keys())
def send(request: pytest.FixtureRequest) -> Send:
    found: Send = request.param
    return found


def test_g9_a_full_disk_is_told(app: Holdfast, send: Send) -> None:
    set_pragma(app, "max_page_count = 1")  # as many as there are
    with pytest.raises(DiskFull, match="full"):
        for _ in range(50):
            send(app)
    stored = app.queue("inbox").stats().total
    with pytest.raises(DiskFull):
        send(app)
    assert app.queue("inbox").stats().total == stored


def test_g9_after_a_full_disk_has_room_again_all_goes_on(app: Holdfast, send: Send) -> None:
    set_pragma(app, "max_page_count = 1")
    with pytest.raises(DiskFull):
        for _ in range(50):
            send(app)
    set_pragma(app, "max_page_count = 1000000")
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
        app.store.file.checkpoint()
    scribble(url, start)
    with pytest.raises((CorruptDatabase, NotADatabase)):
        send(open_app())


def test_g9_once_damage_was_found_nothing_more_is_written(open_app: Callable[..., Holdfast], url: str) -> None:
    with open_app() as app:
        app.queue("inbox").send("x")
        app.store.file.checkpoint()
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


def test_g11_a_checkpoint_waits_for_the_lock_of_others(app: Holdfast, backend: Backend) -> None:
    with backend.hold_write_lock() as lock:
        assert not isinstance(result_after(lock, app.store.file.checkpoint), Exception)


def test_g11_opening_waits_for_the_lock_of_others(backend: Backend) -> None:
    Path(backend.url).touch()
    with backend.hold_write_lock() as lock:
        assert type(result_after(lock, backend.open)) is Holdfast


# --- G8: wall-clock jumps neither expire nor extend a lease, but a restart of the machine ends it ---


def test_g8_after_a_restart_of_the_machine_all_leases_have_ended(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast]
) -> None:
    app.queue("inbox").send("x")
    app.queue("inbox").receive(visibility=10_000)
    app.close()
    clock.reboot()
    message = open_app(clock=clock).queue("inbox").receive()
    assert message is not None and message.attempt == 2


def test_g8_leases_taken_after_the_restart_hold(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast]
) -> None:
    app.queue("inbox").send("x")
    app.close()
    clock.reboot()
    first = open_app(clock=clock)
    first.queue("inbox").receive(visibility=30)
    clock.advance(29)
    assert open_app(clock=clock).queue("inbox").receive() is None
    clock.advance(1)
    assert first.queue("inbox").receive() is not None
