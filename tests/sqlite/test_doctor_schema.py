"""The findings of the doctor about reading the file, its settings and its tables, each caused by such a file."""

import shlex
from pathlib import Path

import msgspec
import pytest

import holdfast.store.sqlite.diagnose as diagnose_module
from holdfast import Holdfast
from support.child_processes import bystander, sqlite
from support.doctor import check, diagnosis_of, files, finding, run_sql, severities

# --- whether it can be read -----------------------------------------------------------------------


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"Shopping: bread, milk\n" * 100)
    assert finding(path, "NOT_A_DATABASE", "error").fix == f"file {path}"
    assert path.read_bytes() == b"Shopping: bread, milk\n" * 100


def test_a_file_with_a_damaged_schema(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:1024] = b"\xff" * 924
    path.write_bytes(data)
    one = finding(path, "CORRUPT", "error")
    assert one.fix is not None and ".recover" in one.fix
    assert files(path)["app.db"] == bytes(data)


def test_a_file_with_a_damaged_page(path: Path) -> None:
    with Holdfast(path) as app:
        app.queue("inbox").send_many(["x" * 200] * 1000)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 1024 * 1024
    data[middle : middle + 8 * 1024] = b"\xff" * 8 * 1024
    path.write_bytes(data)
    assert finding(path, "CORRUPT", "error")
    refused = check(path, repair=True)
    assert refused.of("NOT_REPAIRED") is not None and refused.repaired == []
    assert path.read_bytes() == bytes(data)


def test_a_database_that_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose_module, "BUSY_SECONDS", 0.05)
    statements = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "DELETE FROM holdfast_tags")
    with bystander(sqlite(path, *statements)) as other:
        one = finding(path, "LOCKED", "error")
        assert one.fix == f"kill {other.pid}" and f"process {other.pid} (" in one.meaning


def test_a_log_that_sqlite_cannot_open(path: Path) -> None:
    Path(f"{path}-wal").mkdir()
    assert finding(path, "CANNOT_READ", "error").fix == f"ls -l {path}"


def test_an_unusable_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.engine.connection.MIN_SQLITE", (99, 0, 0))
    assert "3.35 or newer" in finding(path, "SQLITE_UNUSABLE", "error").meaning


# --- how it is set --------------------------------------------------------------------------------


def test_another_journal_mode(path: Path) -> None:
    with bystander(sqlite(path, "PRAGMA journal_mode = DELETE", "SELECT 1 FROM sqlite_master")):
        one = finding(path, "JOURNAL_MODE", "error")
        assert one.fix == f"sqlite3 {path} 'PRAGMA journal_mode = WAL'"


def test_another_encoding(tmp_path: Path) -> None:
    run_sql(tmp_path / "app.db", "PRAGMA encoding = 'UTF-16'", "CREATE TABLE orders (id)")
    assert "UTF-16" in finding(tmp_path / "app.db", "ENCODING", "error").meaning


def test_a_sqlite_without_foreign_keys(path: Path) -> None:
    settings = diagnosis_of(path).settings
    assert settings is not None
    without = diagnosis_of(path, settings=msgspec.structs.replace(settings, foreign_keys=False))
    assert severities(without)["FOREIGN_KEYS_OFF"] == "error"


def test_a_file_that_was_not_made_by_holdfast(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    run_sql(path, "PRAGMA page_size = 4096", "CREATE TABLE orders (id)")
    Holdfast(path).close()
    vacuum = finding(path, "AUTO_VACUUM", "note")
    assert vacuum.fix == f"holdfast vacuum --full --db {path}"
    assert "4,096" in finding(path, "PAGE_SIZE", "note").meaning


def test_a_file_that_is_mostly_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_sqlite.WASTED_BYTES", 1000)
    with Holdfast(path) as app:
        app.queue("inbox").send_many(["x" * 2000] * 200)
        app.queue("inbox").purge()
    assert finding(path, "FREE_PAGES", "note").fix == f"holdfast vacuum --db {path}"


# --- the tables -----------------------------------------------------------------------------------


def test_tables_of_an_older_version(path: Path, newer_version: None) -> None:
    one = finding(path, "SCHEMA_OUTDATED", "error")
    assert one.fix == f"holdfast migrate --db {path}"
    assert check(path, repair=True).of("NOT_REPAIRED") is not None


def test_tables_of_a_version_that_was_never_released(path: Path) -> None:
    run_sql(path, "UPDATE holdfast_migrations SET name = '0001_initial' WHERE name = '0001_schema'")
    one = finding(path, "SCHEMA_UNSUPPORTED", "error")
    assert "cannot be migrated" in one.meaning
    assert check(path).of("SCHEMA_TOO_NEW") is None
    assert check(path, repair=True).of("NOT_REPAIRED") is not None


def test_tables_of_a_newer_version(path: Path) -> None:
    run_sql(path, "INSERT INTO holdfast_migrations VALUES ('9999_later', 0)")
    assert finding(path, "SCHEMA_TOO_NEW", "error").fix == "pip install --upgrade holdfast"


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "it's mine.db"
    run_sql(path, "CREATE TABLE orders (id)")
    one = finding(path, "NO_TABLES", "error")
    assert one.fix == f"holdfast migrate --db {shlex.quote(str(path))}"


def test_a_missing_table(path: Path) -> None:
    run_sql(path, "DROP TABLE holdfast_minutes")
    one = finding(path, "TABLES_MISSING", "error")
    assert "holdfast_minutes" in one.meaning
    assert check(path, repair=True).of("NOT_REPAIRED") is not None


def test_missing_indexes_and_triggers_are_made_again(path: Path) -> None:
    run_sql(path, "DROP INDEX holdfast_jobs_ready", "DROP TRIGGER holdfast_jobs_changed")
    one = finding(path, "SCHEMA_PARTS_MISSING", "error")
    assert one.detail["names"] == ["holdfast_jobs_ready", "holdfast_jobs_changed"]
    repaired = check(path, repair=True)
    assert any("holdfast_jobs_ready" in sentence for sentence in repaired.repaired)
    assert finding(path, "SCHEMA", "ok")


def test_a_trigger_that_was_changed(path: Path) -> None:
    run_sql(
        path,
        "DROP TRIGGER holdfast_jobs_noted",
        "CREATE TRIGGER holdfast_jobs_noted AFTER INSERT ON holdfast_jobs BEGIN SELECT 1; END",
    )
    one = finding(path, "SCHEMA_CHANGED", "error")
    assert one.fix is not None and one.fix.startswith(
        f"sqlite3 {path} 'DROP TRIGGER holdfast_jobs_noted' && holdfast"
    )
    run_sql(path, "DROP TRIGGER holdfast_jobs_noted")
    assert check(path, repair=True).of("SCHEMA") is not None


def test_a_definition_that_is_stored_as_bytes(path: Path) -> None:
    """As after one flipped bit. SQLite reads it as text."""
    to_bytes = "UPDATE sqlite_schema SET sql = CAST(sql AS BLOB) WHERE name = 'holdfast_jobs_ready'"
    run_sql(path, "PRAGMA writable_schema = ON", to_bytes)
    assert check(path, deep=True).of("SCHEMA") is not None


def test_a_table_that_was_changed(path: Path) -> None:
    run_sql(path, "ALTER TABLE holdfast_tags ADD COLUMN mine")
    one = finding(path, "SCHEMA_CHANGED", "error")
    assert one.detail["names"] == ["holdfast_tags"] and one.fix is None


def test_added_indexes_tables_and_triggers(path: Path) -> None:
    run_sql(
        path,
        "CREATE INDEX mine ON holdfast_jobs (args)",
        "CREATE TABLE holdfast_extra (id)",
        "CREATE TRIGGER noisy AFTER INSERT ON holdfast_jobs BEGIN SELECT 1; END",
    )
    added = [finding for finding in check(path).findings if finding.code == "SCHEMA_ADDED"]
    assert [(finding.severity, finding.detail["names"]) for finding in added] == [
        ("note", ["mine"]), ("note", ["holdfast_extra"]),
    ]  # fmt: skip
    assert [finding.fix for finding in added] == [f"sqlite3 {path} 'DROP INDEX mine'", None]
    one = finding(path, "TRIGGERS_ADDED", "warning")
    assert one.fix == f"sqlite3 {path} 'DROP TRIGGER noisy'"


def test_a_query_that_takes_too_long_is_left_to_the_deep_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Holdfast(path) as app:
        app.queue("inbox").send_many(range(20_000))
    monkeypatch.setattr("holdfast.store.sqlite.diagnose.SECONDS_PER_QUERY", -1)
    monkeypatch.setattr("holdfast.store.sqlite.diagnose.INSTRUCTIONS_PER_TICK", 1000)
    one = finding(path, "NOT_CHECKED", "note")
    assert "took too long" in one.meaning and one.fix == f"holdfast doctor --deep --db {path}"
    assert check(path, deep=True).of("NOT_CHECKED") is None


def test_a_large_file_is_read_completely_only_by_the_deep_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.diagnose.LARGEST_CHECKED_BYTES", 0)
    assert "integrity" in finding(path, "NOT_CHECKED", "note").meaning
    assert "every index" in finding(path, "INTEGRITY", "ok", deep=True).meaning
