"""Fixtures that run a command: in this process, in a process of its own, and on a terminal of a given width."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.clock import SECOND
from support.child_processes import command
from support.running_worker import PATIENCE_SECONDS
from support.terminal_windows import set_size, start_on_terminal
from support.transitions import claim_tasks, fail, succeed

Run = Callable[..., Result]

QUESTION = b"[y/N]"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def run() -> Run:
    """Runs a command in this process, with stdout and stderr into pipes."""

    def one(*args: Any, **options: Any) -> Result:
        return CliRunner().invoke(main, [str(arg) for arg in args], prog_name="holdfast", **options)

    return one


@pytest.fixture
def on(run: Run, url: str) -> Run:
    """Runs a command on the database of the test."""

    def one(*args: Any, **options: Any) -> Result:
        return run(*args, "--db", url, **options)

    return one


@pytest.fixture
def data(on: Run) -> Callable[..., Any]:
    """What a command that succeeds prints with --json."""

    def one(*args: Any, **options: Any) -> Any:
        result = on(*args, "--json", **options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return one


@pytest.fixture
def start() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a command in a process of its own."""

    def one(*args: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command(*args), capture_output=True, text=True, timeout=PATIENCE_SECONDS, **options)

    return one


@pytest.fixture
def terminal() -> Callable[..., tuple[str, int]]:
    """Runs a command on a terminal, types the answer to its question, and gives what is seen and the exit code."""

    def one(*args: Any, columns: int = 80, typed: str = "", **environment: str) -> tuple[str, int]:
        ours, theirs = pty.openpty()
        set_size(theirs, columns, 40)
        process = start_on_terminal(command(*args), theirs, environment)
        os.close(theirs)
        seen = b""
        for read in _until_it_hangs_up(ours):
            seen += read
            # Python forgets a Ctrl-C between the question and its reading, so it is typed until it is heard.
            if QUESTION in seen and (not read or read.endswith(b": ")):
                os.write(ours, typed.encode())
        os.close(ours)
        return seen.decode().replace("\r\n", "\n"), process.wait(PATIENCE_SECONDS)

    return one


def _until_it_hangs_up(terminal: int) -> Iterator[bytes]:
    """What is read; nothing whenever a second has passed."""
    silent = 0
    while silent < PATIENCE_SECONDS:
        ready, _, _ = select.select([terminal], [], [], 1)
        silent = 0 if ready else silent + 1
        try:
            yield os.read(terminal, 65536) if ready else b""
        except OSError:  # Linux's way to say that the other side was closed
            return
    pytest.fail("the command says nothing and does not end")


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """On the system's clock, as the commands are."""
    return open_app()


@pytest.fixture
def jobs(app: Holdfast) -> dict[str, int]:
    """A job in each state, by the name of the state."""

    @app.task(queue="mail", max_attempts=3)
    def send_mail(to: str, subject: str = "") -> str:
        return to

    letter = send_mail.using(key="welcome-ada", tags=["eu", "vip"], priority=5)
    ids = {"succeeded": letter.enqueue("ada@example.org", subject="hi").id}
    settle_mail(app, lambda lease: succeed(app.store, lease, '"done"'))
    ids["failed"] = send_mail.enqueue("bob@example.org").id
    try:
        int("not a number")
    except ValueError as error:
        failure = app.error_table.failure(error)
    settle_mail(app, lambda lease: fail(app.store, lease, failure))
    ids["running"] = send_mail.enqueue("eve@example.org").id
    settle_mail(app, lambda lease: True)
    ids["cancelled"] = send_mail.enqueue("joe@example.org").id
    app.jobs.cancel(ids["cancelled"], reason="sent by hand", actor="joe")
    ids["scheduled"] = send_mail.using(delay=3600).enqueue("kim@example.org").id
    ids["ready"] = app.queue("inbox").send({"text": "hello"})
    return ids


def settle_mail(app: Holdfast, settle: Callable[[Any], bool]) -> None:
    (claimed,) = claim_tasks(app.store, ["mail"], ["send_mail"], 1, 300 * SECOND, "worker-1")
    assert settle(claimed.lease)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module that can be imported, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)

    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path
