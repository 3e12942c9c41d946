"""Each command of the command line once, with the URL of a server."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import COMMANDS, main
from holdfast.errors import DatabaseMoved
from support.postgres_backend import PostgresBackend, admin
from support.running_worker import eventually
from support.terminal_windows import Window

ASIDE = {
    *("worker", "web", "top"),  # they go on until they are ended: see below, and test_web.py
    *("web-user", "completion", "demo"),  # they use no database, or one of their own
    "move",  # see below
}
ALL = (
    "send inbox '{{}}'", "send --task work default '{{}}'", "jobs", "inbox", "show 1", "explain 1", "stats", "events",
    "failures", "workers", "doctor", "health --min-workers 0", "queues", "queues pause inbox", "queues resume inbox",
    "batches", "batch show {batch}", "batch retry {batch}", "cron", "cron pause tidy", "cron run tidy", "operations",
    "operation show {operation}", "operation run {operation}", "retry {failed}", "cancel {waits}",
    "run-now {scheduled}", "complete {external}", "fail {waits2} REJECTED:BUDGET",
    "delete {waits} --yes", "migrate", "prune --dry-run",
    "prune", "vacuum", "vacuum --full",
)  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.MUST_BE_ON", ())
    return lambda *args: CliRunner().invoke(main, list(args))


@pytest.fixture
def ids(backend: PostgresBackend) -> dict[str, int]:
    app = backend.open()
    work = app.task(name="work")(lambda: None)
    failed, waits, waits2, scheduled = (
        work.enqueue(),
        work.enqueue(),
        work.enqueue(),
        work.using(delay=60).enqueue(),
    )
    app.jobs.cancel(failed.id)
    app.schedules.add("tidy", "*/5 * * * *", "work")
    with app.batch() as batch:
        work.using(delay=60).enqueue()
    app.queue("inbox").send(1)
    operation = app.operations.start("cancel", queue="nothing")
    return {
        "failed": failed.id, "waits": waits.id, "waits2": waits2.id, "scheduled": scheduled.id, "batch": batch.id,
        "external": app.external("approve").id, "operation": operation.id,
    }  # fmt: skip


def test_every_command_takes_the_url_of_a_server(
    backend: PostgresBackend, run: Callable[..., Result], ids: dict[str, int]
) -> None:
    for line in ALL:
        words = shlex.split(line.format(**ids))
        result = run(*words, "--db", backend.url)
        assert result.exit_code in (0, 1), (line, result.output, result.exception)
        assert result.exit_code == 0 or words[0] in ("doctor", "batch", "operation"), (line, result.output)
        assert "sqlite" not in result.output.lower(), (line, result.output)


def test_no_command_was_left_out() -> None:
    assert {line.split()[0] for line in ALL} | ASIDE == set(COMMANDS) | {"demo"}


def test_a_schema_is_an_option_of_every_command(run: Callable[..., Result], backend: PostgresBackend) -> None:
    try:
        assert run("migrate", "--create", "--db", backend.url, "--schema", "apart").exit_code == 0
        assert run("send", "inbox", "{}", "--db", backend.url, "--schema", "apart").exit_code == 0
        found = run("doctor", "--json", "--db", backend.url, "--schema", "apart")
        assert {one["code"] for one in json.loads(found.output)["findings"]} >= {"CONNECTED", "SCHEMA"}
        assert backend.sql("SELECT count(*) FROM apart.holdfast_jobs") == [(1,)]
    finally:
        admin().execute("DROP SCHEMA IF EXISTS apart CASCADE")


TASKS = """
import os
from holdfast import Holdfast

app = Holdfast(os.environ["PLACE"])

@app.task
def double(number: int) -> int:
    return 2 * number
"""


def test_worker_on_the_command_line(backend: PostgresBackend, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    app = backend.open()

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    jobs = [double.enqueue(number) for number in range(5)]
    command = [sys.executable, "-m", "holdfast", "worker", str(tmp_path / "tasks.py"), "--until-idle", "-p", "2"]
    ended = subprocess.run(command, env=os.environ | {"PLACE": backend.url}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [job.refresh().result for job in jobs] == [0, 2, 4, 6, 8]


def test_top_on_a_terminal(backend: PostgresBackend) -> None:
    inbox = backend.open().queue("inbox")
    inbox.send(1)
    with Window("top", "--db", backend.url) as window:
        lines = window.until("quit")
        assert lines[0].startswith("holdfast top") and "1 ready" in lines[1]
        inbox.send(2)
        window.until("2 ready")


def test_a_move_shows_its_progress_on_a_terminal(backend: PostgresBackend, tmp_path: Path) -> None:
    inbox = backend.open().queue("inbox")
    inbox.send(1)
    assert inbox.receive(visibility=3600)

    def shows() -> bool:
        window.read()
        return "Waiting for running jobs ━━━" in window.display.normal

    with Window("move", backend.url, str(tmp_path / "there.db"), "--wait", "10m") as window:
        eventually(shows)
    assert inbox.send(2), "it was killed, and the source is in service"


def test_move_on_the_command_line(backend: PostgresBackend, run: Callable[..., Result], tmp_path: Path) -> None:
    app, there = backend.open(), str(tmp_path / "there.db")
    app.queue("inbox").send_many(range(3))
    assert "no tables yet" in run("move", backend.url, there, "--dry-run").output
    assert app.queue("inbox").send(4) and not Path(there).exists()
    try:
        result: Any = run("move", backend.url, there, "--wait", "0")
        assert result.exit_code == 0 and "Moved 4 jobs and 5 events" in result.output, result.output
        with pytest.raises(DatabaseMoved, match=r"there\.db"):
            app.queue("inbox").send(5)
        again = run("send", "inbox", "{}", "--db", backend.url)
        assert again.exit_code == 3 and "was moved to" in again.output
        assert json.loads(run("stats", "--json", "--db", there).output)
    finally:
        admin().execute("DROP FUNCTION IF EXISTS holdfast_moved() CASCADE")
