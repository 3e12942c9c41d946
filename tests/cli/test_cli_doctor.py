"""`holdfast doctor`: output, exit codes, and databases that no other command can open."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]


def codes(result: Result) -> dict[str, str]:
    """The severity of each code, with --json."""
    return {one["code"]: one["severity"] for one in json.loads(result.stdout)["findings"]}


def test_a_healthy_database_exits_with_0_and_a_summary(app: Holdfast, on: Run) -> None:
    result = on("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "checks passed. " in result.stdout.splitlines()[-1]
    assert "FILE_SYSTEM" not in result.stdout and "FILE_SYSTEM" in on("doctor", "--verbose").stdout


def test_a_warning_exits_with_1_and_suggests_a_fix(app: Holdfast, on: Run, url: str) -> None:
    Path(url).chmod(0o640)
    result = on("doctor")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = lines.index("warning  FILE_PERMISSIONS")
    assert "mode 640" in lines[at + 1] and lines[at + 2].startswith("Fix: chmod 600 ")
    assert lines[-1].startswith("1 warning")


def test_an_error_exits_with_3_and_comes_first(app: Holdfast, on: Run, url: str) -> None:
    Path(url).chmod(0o640)
    with sqlite3.connect(url) as connection:
        connection.execute("DROP INDEX holdfast_jobs_ready")
    connection.close()
    result = on("doctor")
    assert result.exit_code == 3 and result.stdout.startswith("error  SCHEMA_PARTS_MISSING\n")


def test_json_has_all_checks(app: Holdfast, on: Run) -> None:
    result = on("doctor", "--json", "--deep")
    found = json.loads(result.stdout)
    assert list(found) == ["severity", "summary", "seconds", "repaired", "findings"]
    assert list(found["findings"][0]) == ["severity", "code", "meaning", "fix", "detail"]
    assert found["severity"] in ("ok", "note") and codes(result)["INTEGRITY"] == "ok"


def test_repair_fixes_and_reports(app: Holdfast, on: Run, url: str) -> None:
    app.queue("inbox").send(1)
    app.close()
    with sqlite3.connect(url) as connection:
        connection.execute("INSERT INTO holdfast_counts VALUES ('inbox', '', 'failed', 7)")
    connection.close()
    before = on("doctor")
    assert before.exit_code == 1 and "Fix: holdfast doctor --repair --db" in before.stdout
    mended = on("doctor", "--repair", "--actor", "kim", "--reason", "it was off")
    assert mended.exit_code == 0 and mended.stdout.startswith("Corrected 1 count.\n")
    logged = on("events", "--limit", 1).stdout
    assert "repaired" in logged and "what=counts, count=1, reason=it was off" in logged and "by kim" in logged
    refused = on("doctor", "--reason", "it is off")
    assert refused.exit_code == 2 and "require --repair" in refused.stderr


def test_nothing_is_written_without_repair(app: Holdfast, on: Run, url: str, tmp_path: Path) -> None:
    app.close()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert on("doctor", "--deep").exit_code == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("repair", [[], ["--repair"]], ids=["check", "repair"])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing.db", "DATABASE_MISSING"),
        ("none/app.db", "NOT_A_FILE"),
        ("notes.txt", "NOT_A_DATABASE"),
        ("damaged.db", "CORRUPT"),
        ("theirs.db", "NO_TABLES"),
        ("empty.db", "NO_TABLES"),
        ("unreleased.db", "SCHEMA_UNSUPPORTED"),
    ],
)
def test_a_database_that_cannot_be_opened_is_a_finding(
    run: Run, tmp_path: Path, name: str, code: str, repair: list[str]
) -> None:
    make_broken(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    result = run("doctor", "--db", tmp_path / name, "--json", *repair)
    assert (result.exit_code, result.stderr) == (3, "")
    assert codes(result)[code] == "error"
    assert ("NOT_REPAIRED" in codes(result)) == bool(repair)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("repair", [[], ["--repair"]], ids=["check", "repair"])
def test_a_database_of_an_older_version_is_a_finding(
    app: Holdfast, newer_version: None, on: Run, repair: list[str]
) -> None:
    app.close()
    result = on("doctor", "--json", *repair)
    assert (result.exit_code, result.stderr) == (3, "")
    assert codes(result)["SCHEMA_OUTDATED"] == "error"
    assert ("NOT_REPAIRED" in codes(result)) == bool(repair)


def make_broken(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"Shopping: bread, milk\n" * 100)
    (folder / "empty.db").touch()
    with Holdfast(folder / "unreleased.db") as app:
        app.queue("inbox").send_many(range(500))
    (folder / "damaged.db").write_bytes((folder / "unreleased.db").read_bytes()[:4096] + b"\xff" * 100_000)
    for path, statement in (
        ("theirs.db", "CREATE TABLE orders (id)"),
        ("unreleased.db", "UPDATE holdfast_migrations SET name = '0001_initial'"),
    ):
        connection = sqlite3.connect(folder / path)
        connection.execute(statement)
        connection.commit()
        connection.close()


def test_an_app_is_checked_with_its_own_settings(run: Run, module: Callable[..., Any], tmp_path: Path) -> None:
    module("tasks.py", f"from holdfast import Holdfast\napp = Holdfast({str(tmp_path / 'a.db')!r}, prefix='jobs_')\n")
    result = run("doctor", "--app", "tasks:app", "--json")
    assert result.exit_code == 0 and codes(result)["SCHEMA"] == "ok"


def test_another_prefix_is_named_in_the_commands(run: Run, url: str) -> None:
    with Holdfast(url, prefix="jobs_") as app:
        app.queue("slow").pause()
    assert (
        f"holdfast queues resume slow --db {url} --prefix jobs_"
        in run("doctor", "--db", url, "--prefix", "jobs_").stdout
    )
    assert "NO_TABLES" in run("doctor", "--db", url, "--prefix", "other_").stdout


@pytest.mark.parametrize("args", [["--prefix", "1; --"], ["--db", ":memory:"], []])
def test_wrong_usage_exits_with_2(run: Run, url: str, args: list[str]) -> None:
    named = args if not args or "--db" in args else [*args, "--db", url]
    assert run("doctor", *named).exit_code == 2


def test_stored_control_characters_are_escaped(app: Holdfast, on: Run, url: str) -> None:
    with sqlite3.connect(url) as connection:
        connection.execute("INSERT INTO holdfast_queues (name, paused_at) VALUES (?, 1)", ("\x1b[31mred",))
        connection.execute('CREATE TABLE "holdfast_\x1b" (id)')
    connection.close()
    result = on("doctor", "--verbose")
    assert "\x1b" not in result.stdout and "\\x1b[31mred" in result.stdout and "holdfast_\\x1b" in result.stdout


def test_terminal_output_is_coloured_and_fits(
    app: Holdfast, url: str, terminal: Callable[..., tuple[str, int]]
) -> None:
    Path(url).chmod(0o640)
    seen, code = terminal("doctor", "--db", url, columns=60)
    assert code == 1 and "\x1b[33mwarning" in seen
