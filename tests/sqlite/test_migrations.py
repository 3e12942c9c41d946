"""Migrations: numbered, each in a transaction, recorded by name and time, refused where they are unknown."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidInput, MigrationFailed, SchemaOutdated, SchemaTooNew
from holdfast.store.sqlite.migrate import FOLDER, Migrations
from holdfast.store.sqlite.patience import Patience
from holdfast.testing import FakeClock


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "bare.db", isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Migrations of a test's own."""
    made = tmp_path / "migrations"
    made.mkdir()
    (made / "0001_first.sql").write_text("CREATE TABLE {p}things (id INTEGER);")
    return made


def apply(connection: sqlite3.Connection, folder: Path, now: int = 0) -> list[str]:
    return Migrations(connection, "p_", folder).apply(FakeClock(now), Patience(Random(1), 1))


def tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()}


def test_a_new_database_gets_all_of_them_recorded_by_name_and_time(app: Holdfast, url: str, clock: FakeClock) -> None:
    with closing(sqlite3.connect(url)) as connection:
        recorded = connection.execute("SELECT name, applied_at FROM holdfast_migrations ORDER BY name").fetchall()
    assert recorded == [(file.stem, clock.now()) for file in sorted(FOLDER.glob("*.sql"))]


def test_they_are_numbered_without_gaps() -> None:
    numbers = [int(file.name[:4]) for file in sorted(FOLDER.glob("*.sql"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_they_are_applied_in_order_and_once(conn: sqlite3.Connection, folder: Path) -> None:
    (folder / "0002_second.sql").write_text("ALTER TABLE {p}things ADD COLUMN name TEXT;")
    assert apply(conn, folder) == ["0001_first", "0002_second"]
    assert apply(conn, folder) == []


def test_a_later_one_is_applied_to_what_is_there(conn: sqlite3.Connection, folder: Path) -> None:
    apply(conn, folder)
    conn.execute("INSERT INTO p_things (id) VALUES (7)")
    (folder / "0002_second.sql").write_text("ALTER TABLE {p}things ADD COLUMN name TEXT DEFAULT 'kelp';")
    assert apply(conn, folder) == ["0002_second"]
    assert conn.execute("SELECT id, name FROM p_things").fetchall() == [(7, "kelp")]


def test_triggers_with_several_statements_are_kept_whole(conn: sqlite3.Connection, folder: Path) -> None:
    (folder / "0002_trigger.sql").write_text(
        """-- a comment; with a semicolon
CREATE TRIGGER {p}twice AFTER INSERT ON {p}things WHEN NEW.id < 10
BEGIN
    INSERT INTO {p}things VALUES (NEW.id + 10);
    INSERT INTO {p}things VALUES (NEW.id + 20);
END;
CREATE INDEX {p}by_id ON {p}things (id);
"""
    )
    apply(conn, folder)
    conn.execute("INSERT INTO p_things VALUES (1)")
    assert conn.execute("SELECT id FROM p_things ORDER BY id").fetchall() == [(1,), (11,), (21,)]


def test_a_failure_leaves_the_old_version_whole(conn: sqlite3.Connection, folder: Path) -> None:
    apply(conn, folder)
    (folder / "0002_bad.sql").write_text("CREATE TABLE {p}more (id INTEGER);\nCREATE TABLE {p}things (id INTEGER);")
    with pytest.raises(MigrationFailed, match="0002_bad failed and was undone"):
        apply(conn, folder)
    assert not conn.in_transaction
    assert tables(conn) == {"p_things", "p_migrations"}
    assert conn.execute("SELECT name FROM p_migrations").fetchall() == [("0001_first",)]


def test_after_a_failure_the_mended_one_is_applied(conn: sqlite3.Connection, folder: Path) -> None:
    (folder / "0002_bad.sql").write_text("CREATE NONSENSE;")
    with pytest.raises(MigrationFailed):
        apply(conn, folder)
    (folder / "0002_bad.sql").write_text("CREATE TABLE {p}more (id INTEGER);")
    apply(conn, folder)
    assert "p_more" in tables(conn)


def test_the_first_ones_stay_when_a_later_one_fails(conn: sqlite3.Connection, folder: Path) -> None:
    (folder / "0002_bad.sql").write_text("CREATE NONSENSE;")
    with pytest.raises(MigrationFailed):
        apply(conn, folder)
    assert "p_things" in tables(conn)


def test_a_database_by_a_newer_holdfast_is_reported_and_refused(
    app: Holdfast, url: str, open_app: Callable[..., Holdfast]
) -> None:
    app.close()
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute("INSERT INTO holdfast_migrations VALUES ('9999_from_the_future', 0)")
    for migrate in (True, False):
        with pytest.raises(SchemaTooNew, match=r"9999_from_the_future.*upgrade"):
            open_app(migrate=migrate)


def test_a_database_that_is_refused_is_left_as_it_was(
    app: Holdfast, url: str, open_app: Callable[..., Holdfast]
) -> None:
    app.queue("inbox").send("x")
    app.close()
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute("INSERT INTO holdfast_migrations VALUES ('9999_from_the_future', 0)")
        before = list(connection.iterdump())
    with pytest.raises(SchemaTooNew):
        open_app(clock=FakeClock(boot_id="another"))
    with closing(sqlite3.connect(url)) as connection:
        assert list(connection.iterdump()) == before


def test_without_leave_to_migrate_an_older_database_is_refused(url: str, open_app: Callable[..., Holdfast]) -> None:
    with pytest.raises(SchemaOutdated, match="need"):
        open_app(migrate=False)


def test_without_leave_to_migrate_a_current_database_is_opened(
    app: Holdfast, open_app: Callable[..., Holdfast]
) -> None:
    open_app(migrate=False).queue("inbox").send("x")


def test_each_prefix_is_a_world_of_its_own(open_app: Callable[..., Holdfast], url: str) -> None:
    ours, theirs = open_app(prefix="ours_"), open_app(prefix="theirs_")
    ours.queue("inbox").send("ours")
    theirs.queue("inbox").send("theirs", key="k")
    assert [message.body for message in ours.queue("inbox").receive_many(10)] == ["ours"]
    assert [message.body for message in theirs.queue("inbox").receive_many(10)] == ["theirs"]
    with closing(sqlite3.connect(url)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()]
    assert [name for name in names if not name.startswith(("ours_", "theirs_", "sqlite_"))] == []


@pytest.mark.parametrize("prefix", ["", "1x", "Upper_", "a-b", "a b", "x" * 32, 'x"; DROP TABLE t; --', "ü", "x\n"])
def test_a_bad_prefix_is_refused(open_app: Callable[..., Holdfast], prefix: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        open_app(prefix=prefix)


def test_holdfast_moves_into_a_database_that_is_there(url: str, open_app: Callable[..., Holdfast]) -> None:
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
    open_app().queue("inbox").send("x")
    with closing(sqlite3.connect(url)) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]


def test_processes_that_migrate_at_once_do_not_fail(url: str, open_app: Callable[..., Holdfast]) -> None:
    script = """
import sys
from holdfast import Holdfast
sys.stdin.readline()
with Holdfast(sys.argv[1]) as app:
    app.queue("inbox").send("x")
"""
    command = [sys.executable, "-c", script, url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, "".join(errors)
    assert open_app().queue("inbox").stats().ready == 6
