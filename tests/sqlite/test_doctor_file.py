"""The findings of the doctor about the file and the processes that have it open, each caused by such a file."""

import itertools
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import holdfast.store.sqlite.engine.file_users as file_users
from holdfast import Holdfast
from holdfast.cli.commands.doctor import check_database
from holdfast.upkeep.doctor.checks_sqlite import has_wal_reset_bug
from holdfast.upkeep.doctor.doctor import diagnose
from support.child_processes import bystander, sqlite
from support.doctor import MIB, check, diagnosis_of, files, finding, run_sql, severities
from support.running_worker import PATIENCE_SECONDS, drain

# --- no problems, and no changes -----------------------------------------------------


def test_a_sound_database_has_notes_at_most(path: Path) -> None:
    found = check(path)
    problems = [one for one in found.findings if one.severity not in ("ok", "note") and one.code != "NO_WORKERS"]
    assert problems == []


@pytest.mark.parametrize("deep", [False, True])
def test_a_check_changes_no_file(path: Path, deep: bool) -> None:
    before = files(path)
    check(path, deep=deep)
    assert files(path) == before


def test_a_check_leaves_the_log_of_a_crashed_process(path: Path) -> None:
    code = f"import os\nfrom holdfast import Holdfast\nHoldfast({str(path)!r}).queue('inbox').send(1)\nos._exit(9)"
    subprocess.run([os.sys.executable, "-c", code], check=False)  # type: ignore[attr-defined]
    before = {name: data for name, data in files(path).items() if not name.endswith("-shm")}
    assert before["app.db-wal"]
    check(path)
    assert {name: data for name, data in files(path).items() if not name.endswith("-shm")} == before


def test_a_database_is_checked_while_it_is_written(path: Path) -> None:
    with Holdfast(path) as app, app.transaction() as tx:
        app.queue("inbox").send("x", conn=tx)
        found = check(path)
    assert {one.code for one in found.findings if one.severity == "error"} == set()


def test_another_prefix_in_the_same_file_is_no_drift(path: Path) -> None:
    with Holdfast(path, prefix="holdfast_two_"):
        pass
    assert check(path).of("SCHEMA_ADDED") is None
    assert check_database(str(path), prefix="holdfast_two_").of("SCHEMA") is not None


def test_tables_with_another_prefix_are_named(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Holdfast(path, prefix="jobs_"):
        pass
    one = finding(path, "NO_TABLES", "error")
    assert "There are tables with jobs_." in one.meaning and one.detail == {"prefixes": ["jobs_"]}
    assert one.fix == f"holdfast doctor --db {path} --prefix jobs_"
    assert check_database(str(path), prefix="jobs_").ok


# --- the path and the disk ----------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    one = finding(tmp_path / "typo.db", "DATABASE_MISSING", "error")
    assert one.fix == f"holdfast migrate --create --db {tmp_path}/typo.db"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"), [("", "is a folder"), ("none/app.db", "does not exist"), ("pipe", "not a regular file")]
)
def test_a_path_that_leads_to_no_file(tmp_path: Path, name: str, words: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert words in finding(tmp_path / name, "NOT_A_FILE", "error").meaning


def test_a_remote_file_system(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_users, "file_system_type", lambda _: 0x6969)
    one = finding(path, "UNSAFE_FILE_SYSTEM", "error")
    assert "NFS" in one.meaning and one.fix is not None and "VACUUM INTO" in one.fix
    assert check(path).of("SCHEMA") is None, "it was not opened"


def test_the_free_space_on_the_disk(path: Path) -> None:
    free = diagnosis_of(path).file.free_bytes
    assert severities(diagnosis_of(path, 2 * free))["DISK_FULL"] == "error"
    assert severities(diagnosis_of(path, free // 2))["DISK_LOW"] == "warning"
    assert severities(diagnosis_of(path, 0))["DISK_SPACE"] == "ok"


def test_a_file_that_others_can_read(path: Path) -> None:
    path.chmod(0o644)
    one = finding(path, "FILE_PERMISSIONS", "warning")
    assert "mode 644" in one.meaning and one.fix == f"chmod 600 {path}"
    path.chmod(0o600)
    assert finding(path, "FILE_PERMISSIONS", "ok").fix is None


def test_a_file_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_users.os, "access", lambda file, mode: Path(file) != path)
    one = finding(path, "READ_ONLY", "error")
    assert str(path) in one.meaning and one.fix == f"ls -ld {path}"
    assert finding(path, "SCHEMA", "ok"), "it can still be read"


def test_a_database_on_a_read_only_disk_is_checked(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("a real disk needs the right to mount")
    try:
        Holdfast(place / "app.db").close()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert finding(place / "app.db", "READ_ONLY", "error")
        assert finding(place / "app.db", "SCHEMA", "ok")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


# --- processes that have it open ------------------------------------------------------------------------------


def test_a_process_that_is_no_worker_is_named_on_an_affected_sqlite(path: Path) -> None:
    with bystander(sqlite(path)) as other:
        found = diagnosis_of(path)
        affected = msgspec.structs.replace(found, sqlite_version="3.40.1", sqlite_version_info=(3, 40, 1))
        (one,) = [one for one in diagnose(affected) if one.code == "FOREIGN_CONNECTIONS"]
        assert one.severity == "warning" and f"process {other.pid} (" in one.meaning
        assert one.fix is not None and "wal_autocheckpoint = 0" in one.fix
        assert "does not seem to use Holdfast" in one.meaning
        fixed = msgspec.structs.replace(found, sqlite_version="3.51.3", sqlite_version_info=(3, 51, 3))
        assert "FOREIGN_CONNECTIONS" not in severities(fixed)


def test_a_process_with_holdfast_in_it_is_a_note(path: Path) -> None:
    with bystander(f"import holdfast\napp = holdfast.Holdfast({str(path)!r})"):
        found = diagnosis_of(path)
        affected = msgspec.structs.replace(found, sqlite_version="3.40.1", sqlite_version_info=(3, 40, 1))
        assert severities(affected)["FOREIGN_CONNECTIONS"] == "note"


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.6.23", False), ("3.7.0", True), ("3.40.1", True), ("3.44.5", True), ("3.44.6", False), ("3.45.0", True),
        ("3.50.6", True), ("3.50.7", False), ("3.51.0", True), ("3.51.2", True), ("3.51.3", False), ("3.52.0", False),
    ],
)  # fmt: skip
def test_the_versions_with_the_wal_reset_bug(path: Path, version: str, affected: bool) -> None:
    numbers = tuple(map(int, version.split(".")))
    assert has_wal_reset_bug(numbers) == affected
    found = severities(diagnosis_of(path, sqlite_version=version, sqlite_version_info=numbers))
    assert found.get("WAL_RESET_RISK") == ("note" if affected else None)
    assert found.get("SQLITE_VERSION") == (None if affected else "ok")


def test_a_process_that_has_a_file_open_which_was_replaced(path: Path) -> None:
    with bystander(sqlite(path)) as other:
        copy = sqlite3.connect(path.parent / "copy.db")
        original = sqlite3.connect(path)
        original.backup(copy)
        original.close()
        copy.close()
        (path.parent / "copy.db").rename(path)
        one = finding(path, "FILE_REPLACED", "error")
        assert one.fix == f"kill {other.pid}" and one.detail == {"pids": [other.pid]}
    assert check(path).of("FILE_REPLACED") is None


def fill_log(path: Path, size: int) -> None:
    """Fill the log, which only grows during a read transaction."""
    with Holdfast(path, blob_bytes=None) as app:
        while os.stat(f"{path}-wal").st_size <= size:
            app.queue("inbox").send("x" * 1_000_000)


def test_a_large_log_and_the_reader_that_keeps_it_from_shrinking(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_sqlite.LARGE_LOG_BYTES", 4 * MIB)
    with bystander(sqlite(path, "BEGIN", "SELECT count(*) FROM holdfast_jobs")) as other:
        fill_log(path, 4 * MIB)
        one = finding(path, "WAL_LARGE", "warning")
        assert f"process {other.pid}" in one.meaning and "read transaction" in one.meaning
        assert one.fix == f"kill {other.pid}" and one.detail["readers"] == [other.pid]


def test_a_process_that_reads_for_a_moment_only_is_not_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two observations in a row may both see the same short transaction."""
    keeps, passes, writes = {124}, {125}, {file_users.WRITE_LOCK, 126}
    seen = [{7: keeps, 8: passes, 9: writes}, {7: keeps, 8: passes, 9: writes}, {7: keeps, 9: {126}}]
    monkeypatch.setattr(file_users, "locks_on", lambda _: seen.pop(0) if len(seen) > 1 else seen[0])
    moments = itertools.count(step=0.01)
    clock = SimpleNamespace(monotonic=lambda: next(moments), sleep=lambda _: None)
    monkeypatch.setattr(file_users, "time", clock)
    locks = file_users.LockObserver(path)
    locks.observe_for(0.05)
    assert (locks.readers, locks.writers) == ([7, 9], [])


def test_a_long_write_transaction_and_the_log_behind_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_sqlite.LARGE_LOG_BYTES", 0)
    with Holdfast(path) as app:
        app.queue("inbox").send(1)
        with bystander(sqlite(path, "BEGIN IMMEDIATE", "DELETE FROM holdfast_jobs")) as other:
            one = finding(path, "WAL_LARGE", "warning")
            assert f"process {other.pid} (" in one.meaning and "transaction" in one.meaning
            assert one.fix == f"kill {other.pid}"
            assert finding(path, "WRITE_LOCK_HELD", "warning").detail == {"pids": [other.pid]}


def test_a_large_log_without_a_transaction_is_reset_by_the_repair(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_sqlite.LARGE_LOG_BYTES", 100_000)
    with bystander(sqlite(path)):
        fill_log(path, 200_000)
        one = finding(path, "WAL_LARGE", "warning")
        assert one.fix is not None and one.fix.startswith("holdfast doctor --repair")
        repaired = check(path, repair=True).repaired
    assert any("write-ahead log" in sentence for sentence in repaired)


def test_large_payloads_that_are_missing_or_orphaned(path: Path) -> None:
    with Holdfast(path) as app:
        app.task(name="large")(lambda text: None).enqueue("x" * 100_000)
        kept = app.task(name="kept")(lambda text: None).enqueue("y" * 100_000)
    assert finding(path, "BLOBS", "ok")
    (blob,) = (file for file in Path(f"{path}-blobs").rglob("*") if file.is_file() and b"xxx" in file.read_bytes())
    orphan = blob.with_name(f"{blob.name[:2]}{'0' * 62}")
    blob.rename(orphan)
    one = finding(path, "BLOBS_MISSING", "error")
    assert f"missing from {path}-blobs: 1, of 1 job ({kept.id - 1})." in one.meaning
    retry = f"holdfast retry --error-code RESOURCE:BLOB_MISSING --db {path}"
    assert one.fix == f"cp -au /a/backup/{path.name}-blobs/. {path}-blobs && {retry}"
    assert check(path).of("BLOBS_ORPHANED") is None, "a job may be about to refer to it"
    os.utime(orphan, (0, 0))
    assert finding(path, "BLOBS_ORPHANED", "note").detail == {"files": 1}
    assert "Deleted 1 file that no job refers to." in check(path, repair=True).repaired
    assert not orphan.exists() and check(path).of("BLOBS_ORPHANED") is None


def test_the_suggested_fix_restores_missing_payloads(path: Path, tmp_path: Path) -> None:
    blobs, backup = Path(f"{path}-blobs"), tmp_path / "a backup"
    with Holdfast(path) as app:
        work = app.task(name="work", max_attempts=1)(lambda text: len(text))
        lost, kept = work.enqueue("x" * 100_000), work.enqueue("y" * 100_000)
        shutil.copytree(blobs, backup / blobs.name)
        shutil.rmtree(blobs)
        drain(app)
        assert lost.refresh().error_code == kept.refresh().error_code == "RESOURCE:BLOB_MISSING"
        mend = finding(path, "BLOBS_MISSING", "error").fix
        assert mend is not None
        for one in mend.replace("/a/backup", shlex.quote(str(backup))).split(" && "):
            words = shlex.split(one)
            run = [sys.executable, "-m", "holdfast", *words[1:], "--yes"] if words[0] == "holdfast" else words
            subprocess.run(run, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        assert finding(path, "BLOBS", "ok")
        drain(app)
        assert lost.refresh().result == kept.refresh().result == 100_000


def test_payloads_in_another_blob_store_are_checked_only_with_the_app(path: Path) -> None:
    run_sql(path, "INSERT INTO holdfast_meta VALUES ('blob_store', 'Bucket')")
    assert "pass --app" in finding(path, "NOT_CHECKED", "note").meaning


def test_a_new_file_passes_the_checks_of_files(path: Path) -> None:
    passed = {one.code for one in check(path).findings if one.severity == "ok"}
    assert {"WRITABLE", "WAL_SIZE", "FOREIGN_KEYS"} <= passed


@pytest.mark.parametrize(
    "told",
    [
        "postgresql://ada:hunter2@db.example.org/app",
        "--db=postgresql://ada:hun@ter2@db/app",
        "host=db password=hunter2 dbname=app",
        "postgresql://db/app?user=ada&password=hunter2",
    ],
)
def test_the_command_of_a_process_is_shown_without_passwords(told: str) -> None:
    """`holdfast move app.db postgresql://…` has the file open, and the doctor names it."""
    waiting = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", told]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line is there
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        shown = file_users.SECRET.sub("", words.replace("\0", " "))
        short = file_users.command_of(process.pid)
    assert "hunter2" not in shown and "ter2" not in shown and "ter2" not in short
    assert "db" in shown and "app" in shown
