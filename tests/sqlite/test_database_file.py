"""The database as a file: how it is made, how its connections are set, and what happens when it is damaged."""

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import CorruptDatabase, HoldfastError, NotADatabase
from holdfast.testing import FakeClock
from support.refusals import told


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_file_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        app = Holdfast(tmp_path / "app.db")
        app.queue("inbox").send("x")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        app.close()
    finally:
        os.umask(before)
    assert modes == {"app.db": 0o600, "app.db-wal": 0o600, "app.db-shm": 0o600}


def test_a_new_database_can_be_vacuumed_bit_by_bit_and_has_a_write_ahead_log(url: str, app: Holdfast) -> None:
    other = sqlite3.connect(url)
    assert pragma(other, "auto_vacuum") == 2
    assert pragma(other, "journal_mode") == "wal"
    assert pragma(other, "encoding") == "UTF-8"
    other.close()


def test_every_connection_of_ours_is_set_as_the_rules_say(url: str) -> None:
    for durability, level in (("full", 2), ("normal", 1)):
        with Holdfast(url, durability=durability) as app:  # type: ignore[arg-type]
            app.queue("inbox").send("x")
            app.queue("inbox").stats()
            engine = app.store.database._engine  # type: ignore[attr-defined]
            assert pragma(engine.writer._connection, "synchronous") == level
            with app.transaction() as tx:
                assert pragma(tx.connection, "synchronous") == level
            assert len(engine._connections) >= 4
            for connection in engine._connections:
                assert pragma(connection, "foreign_keys") == 1
                assert pragma(connection, "trusted_schema") == 0
                assert pragma(connection, "wal_autocheckpoint") == 0
                assert pragma(connection, "mmap_size") == 0
                assert 0 < int(str(pragma(connection, "journal_size_limit"))) <= 64 * 1024 * 1024
                assert pragma(connection, "busy_timeout") == 0
                assert connection.isolation_level is None


def test_a_users_connection_no_longer_checkpoints_by_itself_once_it_took_part(url: str, app: Holdfast) -> None:
    connection = sqlite3.connect(url)
    assert pragma(connection, "wal_autocheckpoint") == 1000
    app.queue("inbox").send("x", conn=connection)
    connection.commit()
    assert pragma(connection, "wal_autocheckpoint") == 0
    connection.close()


def test_a_users_connection_is_left_alone_on_request(url: str) -> None:
    with Holdfast(url, guard_connections=False) as app:
        connection = sqlite3.connect(url)
        app.queue("inbox").send("x", conn=connection)
        connection.commit()
        assert pragma(connection, "wal_autocheckpoint") == 1000
        connection.close()


# --- damage ---------------------------------------------------------------------------------------


def damaged(path: Path, first_page: int = 2) -> None:
    """A closed database of which the middle was overwritten."""
    with Holdfast(path) as app:
        app.queue("inbox").send_many([{"n": n, "text": "x" * 200} for n in range(2000)])
    content = bytearray(path.read_bytes())
    start = first_page * 1024
    content[start : len(content) - 1024] = random.Random(1).randbytes(len(content) - 1024 - start)
    path.write_bytes(content)


def test_damage_in_the_middle_is_told_by_whatever_meets_it(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    damaged(path, first_page=100)
    with pytest.raises(CorruptDatabase) as caught, Holdfast(path) as app:
        app.jobs.list(limit=1000)
        app.queue("inbox").receive_many(1000)
    assert all(word in str(caught.value) for word in ("damaged", "copy", "backup", ".recover"))


def test_damage_near_the_beginning_is_told_when_the_database_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    damaged(path, first_page=1)
    before = path.read_bytes()
    with told(CorruptDatabase, "damaged", "backup"):
        Holdfast(path)
    assert path.read_bytes() == before


def test_nothing_more_is_written_to_a_database_once_it_is_known_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    damaged(path, first_page=200)
    with Holdfast(path) as app:
        with pytest.raises(CorruptDatabase):
            app.jobs.list(limit=1000)
        for write in (lambda: app.queue("inbox").send("x"), app.queue("other").pause, app.store.file.checkpoint):
            with told(CorruptDatabase, "damaged"):
                write()


@pytest.mark.parametrize("size", [512, 1024, 5000])
def test_a_file_cut_short_is_told(tmp_path: Path, size: int) -> None:
    path = tmp_path / "app.db"
    damaged(path, first_page=100)
    os.truncate(path, size)
    with pytest.raises((CorruptDatabase, NotADatabase)), Holdfast(path) as app:
        app.queue("inbox").receive()


def left_open(path: Path, finish: Callable[[Holdfast], None] = lambda _: None) -> None:
    """A database whose process was killed: its log is still there. finish: what the process does at last."""
    pid = os.fork()
    if pid == 0:
        clock = FakeClock(boot_id="before the power cut")
        app = Holdfast(path, clock=clock)
        app.queue("inbox").send_many([{"n": n, "text": "x" * 200} for n in range(500)])
        app.store.file.checkpoint()
        app.queue("inbox").send("in the log")
        finish(app)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert path.with_name("app.db-wal").stat().st_size > 0


def test_after_an_unclean_start_damage_is_found_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    left_open(path)
    content = bytearray(path.read_bytes())
    content[-40 * 1024 : -1024] = random.Random(1).randbytes(39 * 1024)
    path.write_bytes(content)
    log = path.with_name("app.db-wal").read_bytes()
    with told(CorruptDatabase, "damaged", "-wal", ".recover"):
        Holdfast(path, clock=FakeClock(boot_id="after the power cut"))
    assert path.read_bytes() == content, "the damaged file was written to"
    assert path.with_name("app.db-wal").read_bytes() == log, "the log that was to be kept is gone"


def test_after_an_unclean_start_a_sound_database_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    left_open(path)
    with Holdfast(path, clock=FakeClock(boot_id="after the power cut")) as app:
        assert app.queue("inbox").stats().total == 501


def test_after_an_unclean_start_rows_that_break_a_constraint_stop_nobody(tmp_path: Path) -> None:
    path = tmp_path / "app.db"

    def damage(app: Holdfast) -> None:
        running, ready = app.queue("inbox").receive(visibility=100_000), app.queue("inbox").send("damaged")
        assert running is not None
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("UPDATE holdfast_jobs SET max_attempts = 'many' WHERE id = ?", (running.id,))
            connection.execute("UPDATE holdfast_jobs SET status = x'FFFE' WHERE id = ?", (ready,))

    left_open(path, damage)
    with Holdfast(path, clock=FakeClock(boot_id="after the power cut")) as app:
        assert [job.id for job in app.jobs.list(limit=2)] == [502, 501]


def test_leases_of_before_a_restart_have_ended(tmp_path: Path) -> None:
    clock = FakeClock(boot_id="first")
    with Holdfast(tmp_path / "app.db", clock=clock) as app:
        app.queue("inbox").send("x")
        assert app.queue("inbox").receive(visibility=100_000) is not None
    clock.reboot("second")
    with Holdfast(tmp_path / "app.db", clock=clock) as app:
        message = app.queue("inbox").receive()
        assert message is not None and message.attempt == 2


def test_a_log_of_nonsense_does_not_harm_what_was_checkpointed(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Holdfast(path) as app:
        app.queue("inbox").send_many(list(range(10)))
    path.with_name("app.db-wal").write_bytes(os.urandom(10_000))
    with Holdfast(path) as app:
        assert app.queue("inbox").stats().total == 10


def test_tables_that_somebody_dropped_are_told(tmp_path: Path, url: str) -> None:
    with Holdfast(url) as app:
        other = sqlite3.connect(url)
        other.execute("DROP TABLE holdfast_queues")
        other.close()
        with pytest.raises(HoldfastError, match="holdfast_queues"):
            app.queue("inbox").stats()
