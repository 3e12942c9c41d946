"""Exit codes and error messages."""

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from holdfast import Holdfast, __version__, errors
from holdfast.cli import main
from holdfast.cli.main import exit_code
from holdfast.cli.options import DatabaseOption
from support.child_processes import command
from support.running_worker import PATIENCE_SECONDS

Run = Callable[..., Result]

READ_OR_OPERATE = [
    ["jobs"],
    ["show", "1"],
    ["explain", "1"],
    ["complete", "1"],
    ["fail", "1", "REJECTED"],
    ["retry", "1"],
    ["cancel", "1"],
    ["run-now", "1"],
    ["delete", "1"],
    ["queues"],
    ["queues", "pause", "q"],
    ["queues", "resume", "q"],
    ["queues", "requeue", "q"],
    ["queues", "purge", "q", "-y"],
    ["cron"],
    ["cron", "pause", "s"],
    ["cron", "resume", "s"],
    ["cron", "remove", "s"],
    ["send", "q", "1"],
    ["health"],
    ["migrate"],
]


def one_line(result: Result) -> str:
    """The only thing on stderr, without its prefix."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("args", READ_OR_OPERATE, ids=" ".join)
def test_no_command_creates_a_missing_file(run: Run, tmp_path: Path, args: list[str]) -> None:
    path = tmp_path / "typo.db"
    result = run(*args, "--db", path)
    assert result.exit_code == 3
    assert one_line(result).startswith(f"{path} does not exist: check the path, or create it with 'holdfast migrate")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", READ_OR_OPERATE, ids=" ".join)
def test_a_file_that_is_not_a_database_exits_with_3(run: Run, tmp_path: Path, args: list[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"Shopping: bread, milk\n" * 100)
    result = run(*args, "--db", path)
    assert result.exit_code == 3 and "is not an SQLite database" in one_line(result)
    assert path.read_bytes() == b"Shopping: bread, milk\n" * 100


def test_a_damaged_database_exits_with_3(app: Holdfast, run: Run, url: str) -> None:
    app.queue("inbox").send_many(range(500))
    app.store.file.checkpoint()
    app.close()
    data = bytearray(Path(url).read_bytes())
    data[1024:] = b"\xff" * (len(data) - 1024)
    Path(url).write_bytes(data)
    result = run("jobs", "--db", url)
    assert result.exit_code == 3 and "damaged" in one_line(result)


def test_a_database_of_another_program_is_not_migrated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "it's mine.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    line = one_line(run("jobs", "--db", path))
    assert "found 0 migrations" in line
    command = line.split("run '")[1].split("', or")[0]
    assert command == f"""holdfast migrate --db '{tmp_path}/it'"'"'s mine.db'"""
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]
    connection.close()


def test_migrate_creates_the_tables_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    sqlite3.connect(path).close()
    path.touch()
    assert run("migrate", "--db", path).stdout == "Tables updated.\n"
    assert run("migrate", "--db", path).stdout == "The tables are already up to date.\n"
    assert run("migrate", "--db", path, "--json").stdout == '{"migrated":false}\n'
    assert run("migrate", "--db", tmp_path / "new.db", "--create", "--json").stdout == '{"migrated":true}\n'


def test_tables_with_another_prefix_are_reached_by_name(run: Run, url: str) -> None:
    with Holdfast(url, prefix="jobs_") as app:
        app.queue("inbox").send(1)
    assert run("jobs", "--db", url, "--prefix", "jobs_").exit_code == 0
    assert "--prefix other_" in one_line(run("jobs", "--db", url, "--prefix", "other_"))
    assert run("jobs", "--db", url, "--prefix", "1; --").exit_code == 2


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("{folder}", 3, "is a folder"),
        ("{folder}/none/app.db", 3, "does not exist: create it first"),
        (":memory:", 2, "the database must be a file, got ':memory:'"),
        ("mysql://u:secret@h/d", 2, "mysql:// is not supported"),
        ("postgresql://u:secret@127.0.0.1:1/d", 3, "cannot connect to postgresql://127.0.0.1:1/d"),
    ],
)
def test_paths_that_are_not_databases(run: Run, tmp_path: Path, place: str, code: int, complaint: str) -> None:
    result = run("jobs", "--db", place.format(folder=tmp_path))
    assert result.exit_code == code
    line = one_line(result)
    assert complaint in line and "secret" not in line


def test_a_command_without_a_database_explains_the_options(run: Run) -> None:
    for empty in ({}, {"HOLDFAST_URL": ""}):
        result = run("jobs", env=empty)
        assert result.exit_code == 2
        assert "no database given: pass --db app.db or set HOLDFAST_URL" in result.stderr


def test_the_environment_names_the_database_unless_an_option_does(app: Holdfast, run: Run, url: str) -> None:
    assert run("jobs", env={"HOLDFAST_URL": url}).exit_code == 0
    assert run("jobs", "--db", url, env={"HOLDFAST_URL": "/nowhere/at/all"}).exit_code == 0


def test_db_and_app_exclude_each_other(run: Run, url: str) -> None:
    assert "both name a database" in run("jobs", "--db", url, "--app", "tasks:app").stderr
    assert "its own prefix" in run("jobs", "--prefix", "x_", "--app", "tasks:app").stderr


def test_the_app_names_its_database(app: Holdfast, run: Run, module: Any, url: str) -> None:
    app.queue("inbox").send(1)
    module("shop.py", f"from holdfast import Holdfast\napp = Holdfast({url!r})\n")
    assert "inbox" in run("jobs", "--app", "shop:app").stdout


def test_an_error_in_the_users_module_is_shown_with_its_own_traceback(run: Run, module: Any) -> None:
    module("broken.py", "def setup():\n    raise RuntimeError('no \\x1b[2J settings')\nsetup()\n")
    result = run("jobs", "--app", "broken:app")
    assert result.exit_code == 2 and "\x1b" not in result.stderr
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 3' in lines[1], "nothing of Holdfast or importlib stands above it"
    assert lines[-1] == "Error: broken could not be imported: it raised RuntimeError: no \\x1b[2J settings"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("x"), 2),
        (errors.PayloadTooLarge("x"), 2),
        (errors.InvalidTask("x"), 2),
        (errors.CannotLoadApp("x"), 2),
        (errors.JobNotFound("x"), 4),
        (errors.ScheduleNotFound("x"), 4),
        (errors.BatchNotFound("x"), 4),
        (errors.BatchEnded("x"), 1),
        (errors.HasWaitingJobs(1, (2,)), 1),
        (errors.PartOfChain("x"), 1),
        (errors.CircularWait("x"), 2),
        (errors.StoreBusy("x"), 3),
        (errors.DiskFull("x"), 3),
        (errors.DatabaseMissing("x"), 3),
        (errors.WaitTimeout("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: errors.HoldfastError, code: int) -> None:
    assert exit_code(error) == code


# --- interruptions ---


def test_an_interrupt_exits_with_130(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(DatabaseOption, "open", interrupted)
    result = run("jobs", "--db", url)
    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")


def test_an_interrupt_while_waiting_for_a_lock_exits_with_130(app: Holdfast, url: str) -> None:
    app.queue("inbox").send(1)
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_jobs SET priority = 1")
        process = subprocess.Popen(command("cancel", "1", "--db", url), stderr=subprocess.PIPE, text=True)
        while "-wal" not in _open_files(process.pid):  # it has the database open, so it is about to wait
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, said) == (130, "Interrupted\n")


def _open_files(pid: int) -> str:
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except OSError:  # closed meanwhile
            continue
    return " ".join(links)


def test_a_closed_pipe_is_not_an_error(app: Holdfast, url: str) -> None:
    app.queue("q" * 200).send_many(range(1000))
    process = subprocess.Popen(
        command("jobs", "--limit", "1000", "--db", url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # with it, Python itself forgets what could not be written
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE_SECONDS) == 141


# --- help ---


def every_command(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        one = group.get_command(ctx, name)
        found.append((*path, name))
        if isinstance(one, click.Group):
            found += every_command(one, (*path, name))
    return found


@pytest.mark.parametrize("path", [(), *every_command()], ids=" ".join)
def test_every_command_has_help_with_an_example(run: Run, path: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        result = run(*path, option)
        assert result.exit_code == 0
        examples = result.stdout.partition("  Example")[2]
        assert "    holdfast " in examples or "holdfast" in examples
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_version(run: Run) -> None:
    assert run("--version").stdout == f"holdfast, version {__version__}\n"


def test_an_unknown_command_exits_with_2(run: Run) -> None:
    result = run("job")
    assert result.exit_code == 2 and "unknown command 'job'; did you mean 'jobs'?" in result.stderr


def test_holdfast_itself_is_imported_without_click_and_rich() -> None:
    code = "import sys, holdfast; print(sorted({'click', 'rich', 'holdfast.cli'} & set(sys.modules)))"
    import sys

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
