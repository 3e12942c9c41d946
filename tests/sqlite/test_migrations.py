"""Migrations: each in one transaction, recorded by name and time, safe with several processes."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import (
    CannotOpen,
    DatabaseMissing,
    MigrationFailed,
    SchemaOutdated,
    SchemaTooNew,
    SchemaUnsupported,
)
from holdfast.store.sqlite.engine.connection import connect
from holdfast.store.sqlite.engine.errors import BusyRetry
from holdfast.store.sqlite.migrate import FOLDER, Migrations
from holdfast.testing import FakeClock
from support.refusals import told
from support.running_worker import PATIENCE_SECONDS


@pytest.fixture
def connection(url: str) -> Iterator[sqlite3.Connection]:
    """To an empty database, as the store makes it."""
    Path(url).touch()
    one = connect(Path(url), "NORMAL")
    yield one
    one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of migrations of our own."""
    (tmp_path / "migrations").mkdir()
    write(tmp_path / "migrations", "0001_first", "CREATE TABLE {p}one (x);\nINSERT INTO {p}one VALUES (1);")
    return tmp_path / "migrations"


def write(folder: Path, name: str, script: str) -> None:
    (folder / f"{name}.sql").write_text(script)


def apply(
    connection: sqlite3.Connection, folder: Path, prefix: str = "t_", clock: FakeClock | None = None
) -> list[str]:
    return Migrations(connection, prefix, folder=folder).apply(clock or FakeClock(), BusyRetry(Random(1), 1))


def dump(connection: sqlite3.Connection) -> list[str]:
    return list(connection.iterdump())


def recorded(connection: sqlite3.Connection, prefix: str) -> dict[str, int]:
    return dict(connection.execute(f"SELECT name, applied_at FROM {prefix}migrations").fetchall())  # noqa: S608


def test_a_new_database_gets_all_migrations_recorded_by_name_and_time(url: str, clock: FakeClock) -> None:
    Holdfast(url, clock=clock).close()
    names = sorted(file.stem for file in FOLDER.glob("*.sql"))
    assert names and names[0].startswith("0001_")
    other = sqlite3.connect(url)
    assert recorded(other, "holdfast_") == dict.fromkeys(names, clock.now())
    other.close()


def test_opening_again_changes_nothing(open_app: Callable[..., Holdfast], url: str, clock: FakeClock) -> None:
    open_app(clock=clock).close()
    other = sqlite3.connect(url)
    before = dump(other)
    clock.advance(1000)
    open_app(clock=clock).close()
    assert dump(other) == before
    other.close()


def test_migrations_are_applied_in_order_and_once(connection: sqlite3.Connection, folder: Path) -> None:
    clock = FakeClock()
    assert apply(connection, folder, clock=clock) == ["0001_first"]
    clock.advance(60)
    write(folder, "0002_second", "ALTER TABLE {p}one ADD COLUMN y;")
    write(folder, "0010_third", "UPDATE {p}one SET y = x + 1;")
    assert apply(connection, folder, clock=clock) == ["0002_second", "0010_third"]
    assert apply(connection, folder, clock=clock) == []
    assert connection.execute("SELECT x, y FROM t_one").fetchall() == [(1, 2)]
    times = recorded(connection, "t_")
    assert list(times) == ["0001_first", "0002_second", "0010_third"]
    assert times["0002_second"] - times["0001_first"] == 60_000_000


FAILING: dict[str, str] = {
    "at its first statement": "SELECT * FROM nowhere;",
    "at its last statement": "CREATE TABLE {p}two (y);\nDROP TABLE {p}one;\nINSERT INTO {p}missing VALUES (1);",
    "of a syntax error": "CREATE TABLE {p}two (y);\nCREATE GARBAGE;",
    "of a broken rule": "CREATE TABLE {p}two (y UNIQUE);\nINSERT INTO {p}two VALUES (1), (1);",
    "of an unfinished statement": "CREATE TABLE {p}two (y);\nCREATE TABLE {p}three (",
    "of two statements in a line": "CREATE TABLE {p}two (y); DROP TABLE {p}one; -- both\nCREATE TABLE {p}three (z);",
}


@pytest.mark.parametrize("why", FAILING)
def test_a_failed_migration_leaves_the_old_version_intact(
    connection: sqlite3.Connection, folder: Path, why: str
) -> None:
    apply(connection, folder)
    before = dump(connection)
    write(folder, "0002_bad", FAILING[why])
    with pytest.raises(MigrationFailed, match=r"0002_bad.*the database is unchanged"):
        apply(connection, folder)
    assert not connection.in_transaction
    assert dump(connection) == before
    write(folder, "0002_bad", "CREATE TABLE {p}two (y);")
    assert apply(connection, folder) == ["0002_bad"]


def test_migrations_before_a_failed_one_are_kept(connection: sqlite3.Connection, folder: Path) -> None:
    write(folder, "0002_good", "CREATE TABLE {p}two (y);")
    write(folder, "0003_bad", "CREATE GARBAGE;")
    with told(MigrationFailed, "0003_bad"):
        apply(connection, folder)
    assert list(recorded(connection, "t_")) == ["0001_first", "0002_good"]


def test_a_trigger_is_one_statement(connection: sqlite3.Connection, folder: Path) -> None:
    write(
        folder,
        "0002_trigger",
        "-- a comment; with a semicolon\n"
        "CREATE TRIGGER {p}copy AFTER INSERT ON {p}one\nBEGIN\n    UPDATE {p}one SET x = x + 1;\n"
        "    INSERT INTO {p}log VALUES (';');  -- inside\nEND;\nCREATE TABLE {p}log (text);",
    )
    apply(connection, folder)
    connection.execute("INSERT INTO t_one VALUES (5)")
    assert connection.execute("SELECT x FROM t_one").fetchall() == [(2,), (6,)]
    assert connection.execute("SELECT text FROM t_log").fetchall() == [(";",)]


def test_a_database_by_a_newer_holdfast_is_refused_and_not_changed(url: str) -> None:
    Holdfast(url).close()
    other = sqlite3.connect(url)
    other.execute("INSERT INTO holdfast_migrations VALUES ('9999_from_the_future', 1)")
    other.execute("DELETE FROM holdfast_migrations WHERE name LIKE '0001%'")
    other.commit()
    before = dump(other)
    for migrate in (True, False):
        with told(SchemaTooNew, "9999_from_the_future", "newer", "upgrade"):
            Holdfast(url, migrate=migrate)
    assert dump(other) == before
    other.close()


def test_a_database_of_a_version_that_was_never_released_is_refused_and_not_changed(url: str) -> None:
    """As those versions made it: seven migrations, and other tables."""
    other = sqlite3.connect(url)
    other.execute("CREATE TABLE holdfast_jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)")
    other.execute("CREATE TABLE holdfast_migrations (name TEXT PRIMARY KEY, applied_at INTEGER) WITHOUT ROWID")
    names = ["0001_initial", "0002_workers", "0003_schedules", "0004_graphs", "0005_observe", "0006_upkeep"]
    other.executemany("INSERT INTO holdfast_migrations VALUES (?, 1)", [(name,) for name in names])
    other.commit()
    before = dump(other)
    for migrate in (True, False):
        with told(SchemaUnsupported, "development version", "cannot be migrated", "new one", "prefix"):
            Holdfast(url, migrate=migrate)
    assert dump(other) == before
    with Holdfast(url, prefix="other_") as app:
        app.queue("inbox").send("x")
    other.close()


def test_an_app_of_a_newer_version_migrates_existing_data(url: str, request: pytest.FixtureRequest) -> None:
    with Holdfast(url) as app:
        app.queue("inbox").send("x")
    other = sqlite3.connect(url)
    applied = list(recorded(other, "holdfast_"))
    request.getfixturevalue("newer_version")
    with told(SchemaOutdated, f"found {len(applied)}", f"need {len(applied) + 1}", "holdfast migrate"):
        Holdfast(url, migrate=False)
    with Holdfast(url) as app:
        assert app.queue("inbox").stats().total == 1
    assert list(recorded(other, "holdfast_")) == [*applied, "9000_later"]
    assert other.execute("SELECT count(*) FROM holdfast_later").fetchone() == (0,)
    other.close()


def test_an_empty_database_is_not_migrated_with_migrate_false(url: str) -> None:
    sqlite3.connect(url).close()
    with told(SchemaOutdated, "found 0", "need", "migrate"):
        Holdfast(url, migrate=False)
    other = sqlite3.connect(url)
    assert dump(other) == ["BEGIN TRANSACTION;", "COMMIT;"]
    other.close()


def test_a_missing_database_is_not_created_with_migrate_false(tmp_path: Path) -> None:
    with told(DatabaseMissing, "does not exist", "migrate"):
        Holdfast(tmp_path / "app.db", migrate=False)
    assert [file.name for file in tmp_path.iterdir() if file.stat().st_size] == []


def test_an_older_database_is_not_migrated_with_migrate_false(connection: sqlite3.Connection, folder: Path) -> None:
    apply(connection, folder)
    Migrations(connection, "t_", folder=folder).require_current()
    write(folder, "0002_second", "CREATE TABLE {p}two (y);")
    with told(SchemaOutdated, "found 1", "need 2", "migrate"):
        Migrations(connection, "t_", folder=folder).require_current()
    assert list(recorded(connection, "t_")) == ["0001_first"]


def test_a_current_database_is_opened_without_migrating(url: str) -> None:
    Holdfast(url).close()
    with Holdfast(url, migrate=False) as app:
        app.queue("inbox").send("x")


OPENS_AT_THE_SIGNAL = """
import sys
from holdfast import Holdfast
print("ready", flush=True)
sys.stdin.readline()
with Holdfast(sys.argv[1], prefix=sys.argv[2]) as app:
    app.queue("inbox").send("hello")
"""


@pytest.mark.parametrize("number", [2, 8])
def test_several_processes_can_open_a_new_file_at_the_same_time(url: str, number: int) -> None:
    command = [sys.executable, "-c", OPENS_AT_THE_SIGNAL, url]
    pipe: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    prefixes = ["holdfast_", "other_"]
    processes = [subprocess.Popen([*command, prefixes[n % 4 == 3]], **pipe) for n in range(number)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    problems = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]
    assert problems == [""] * number
    totals = []
    for prefix in prefixes:
        with Holdfast(url, prefix=prefix) as app:
            totals.append(app.queue("inbox").stats().total)
    assert totals == [number - number // 4, number // 4]


def test_two_prefixes_live_side_by_side_in_one_file(open_app: Callable[..., Holdfast], url: str) -> None:
    first, second = open_app(), open_app(prefix="other_")
    first.queue("inbox").send_many(["a", "b"])
    second.queue("inbox").send("c")
    assert (first.queue("inbox").stats().total, second.queue("inbox").stats().total) == (2, 1)
    message = second.queue("inbox").receive()
    assert message is not None and message.body == "c" and message.ack()
    assert first.queue("inbox").pause()
    assert second.queue("inbox").stats().paused is False
    other = sqlite3.connect(url)
    tables = {row[0] for row in other.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    other.close()
    assert {name.split("_")[0] for name in tables} == {"holdfast", "other"}
    assert len([name for name in tables if name.startswith("other_")]) == len(tables) / 2


@pytest.mark.parametrize(
    "setting",
    [
        "page_size = 512",
        "page_size = 65536",
        "auto_vacuum = FULL",
        "journal_mode = TRUNCATE",
    ],
)
def test_a_database_with_tables_and_settings_of_its_own_is_only_added_to(url: str, setting: str) -> None:
    other = sqlite3.connect(url)
    other.execute(f"PRAGMA {setting}")
    other.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, note TEXT)")
    other.executemany("INSERT INTO jobs (note) VALUES (?)", [("héllo",)] * 100)
    other.commit()
    name = setting.split()[0]
    before = other.execute(f"PRAGMA {name}").fetchone()
    body = {"text": "ünïcode 🙂", "n": 1}
    with Holdfast(url) as app:
        sent = app.queue("inbox").send(body)
        app.queue("inbox").send_many([body, body])
        received = app.queue("inbox").receive_many(3)
        assert [message.body for message in received] == [body] * 3
        assert app.jobs.get(sent).args == body
    assert other.execute("SELECT count(*), min(note) FROM jobs").fetchone() == (100, "héllo")
    if name != "journal_mode":
        assert other.execute(f"PRAGMA {name}").fetchone() == before
    other.close()


def test_a_conflicting_table_is_reported_and_left_alone(url: str) -> None:
    other = sqlite3.connect(url)
    other.execute("CREATE TABLE holdfast_jobs (mine TEXT)")
    other.execute("INSERT INTO holdfast_jobs VALUES ('mine')")
    other.commit()
    before = dump(other)
    with told(MigrationFailed, "holdfast_jobs", "unchanged"):
        Holdfast(url)
    assert dump(other) == before
    with Holdfast(url, prefix="other_") as app:
        app.queue("inbox").send("x")
    other.close()


def test_a_database_whose_text_is_not_utf_8_is_refused_and_left_alone(url: str) -> None:
    other = sqlite3.connect(url)
    other.execute("PRAGMA encoding = 'UTF-16le'")
    other.execute("CREATE TABLE notes (note TEXT)")
    before = dump(other)
    with pytest.raises(CannotOpen, match="UTF-8"):
        Holdfast(url)
    assert dump(other) == before
    other.close()


def test_a_foreign_migrations_table_is_reported_and_left_alone(url: str) -> None:
    other = sqlite3.connect(url)
    other.execute("CREATE TABLE holdfast_migrations (version INTEGER)")
    before = dump(other)
    with pytest.raises((MigrationFailed, SchemaTooNew), match="holdfast_migrations"):
        Holdfast(url)
    assert dump(other) == before
    other.close()


def test_a_foreign_database_is_not_changed_with_migrate_false(url: str) -> None:
    theirs = sqlite3.connect(url)
    theirs.execute("CREATE TABLE theirs (id INTEGER)")
    theirs.close()
    before = Path(url).read_bytes()
    with told(SchemaOutdated, "found 0"):
        Holdfast(url, migrate=False)
    assert Path(url).read_bytes() == before
    assert [file.name for file in Path(url).parent.iterdir()] == ["app.db"]
