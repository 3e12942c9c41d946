"""Standard streams that are closed, as under cron and daemons, or on a full disk."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from support.child_processes import command
from support.running_worker import PATIENCE_SECONDS

FULL = "Error: cannot write to standard output: No space left on device\n"

Done = subprocess.CompletedProcess[str]
Shell = Callable[..., Done]

# Each prints something on standard output, and each way to do so is among them.
TELLING = [["stats"], ["events"], ["doctor"], ["health"], ["jobs", "--json"], ["prune", "--dry-run"]]
WITHOUT_DATABASE = [["jobs", "-h"], ["--version"], ["completion", "bash"]]

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")


@pytest.fixture
def shell() -> Shell:
    """Run a command with shell redirections; none of its streams is a terminal."""

    def one(redirected: str, *args: Any, **environment: str) -> Done:
        return subprocess.run(
            ["sh", "-c", f'"$@" {redirected}', "sh", *command(*args)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=os.environ | {"PYTHONUNBUFFERED": ""} | environment,
        )

    return one


@pytest.fixture
def filled(jobs: dict[str, int], app: Holdfast, url: str) -> str:
    return url


@pytest.mark.parametrize("args", TELLING, ids=" ".join)
def test_a_full_disk_exits_with_3_and_one_line(shell: Shell, filled: str, args: list[str]) -> None:
    done = shell(">/dev/full", *args, "--db", filled)
    assert (done.returncode, done.stderr) == (3, FULL)


@pytest.mark.parametrize("args", WITHOUT_DATABASE, ids=" ".join)
def test_help_and_scripts_on_a_full_disk(shell: Shell, args: list[str]) -> None:
    done = shell(">/dev/full", *args)
    assert (done.returncode, done.stderr) == (3, FULL)


@pytest.mark.parametrize("environment", [{"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii"}], ids=repr)
def test_a_full_disk_is_reported_for_every_output_mode(
    shell: Shell, filled: str, environment: dict[str, str]
) -> None:
    done = shell(">/dev/full", "health", "--db", filled, **environment)
    assert (done.returncode, done.stderr) == (3, FULL)


def test_the_exit_code_is_right_without_any_output(shell: Shell, filled: str, tmp_path: Path) -> None:
    assert shell(">/dev/full 2>&1", "health", "--db", filled).returncode == 3
    assert shell("2>/dev/full", "health", "--db", tmp_path / "typo.db").returncode == 3
    assert shell("2>/dev/full", "show", "999", "--db", filled).returncode == 4


def test_the_action_is_done_though_the_output_fails(
    shell: Shell, filled: str, app: Holdfast, jobs: dict[str, int]
) -> None:
    assert shell(">/dev/full", "cancel", jobs["ready"], "--db", filled).returncode == 3
    assert app.jobs.get(jobs["ready"]).status == "cancelled"


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("args", TELLING, ids=" ".join)
def test_a_closed_stdout_is_ignored(shell: Shell, filled: str, args: list[str], streams: str) -> None:
    told = shell("", *args, "--db", filled)
    done = shell(streams, *args, "--db", filled)
    assert (done.returncode, done.stdout) == (told.returncode, "")
    assert done.stderr == ("" if "2>" in streams else told.stderr) and "Traceback" not in done.stderr


def test_top_refuses_a_closed_stdout(shell: Shell, filled: str) -> None:
    done = shell(">&-", "top", "--db", filled)
    assert (
        done.returncode == 2 and "standard output is not a terminal" in done.stderr and "Traceback" not in done.stderr
    )


def test_a_closed_stdin_does_not_confirm(shell: Shell, filled: str, app: Holdfast, jobs: dict[str, int]) -> None:
    done = shell("<&-", "delete", "--status", "failed", "--db", filled)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert app.jobs.get(jobs["failed"]).status == "failed"


def test_a_worker_with_closed_streams_works(shell: Shell, module: Any, url: str) -> None:
    module(
        "quiet.py",
        f"""
        import sys
        from holdfast import Holdfast
        app = Holdfast({url!r})
        @app.task
        def talk():
            print("hello")
            sys.stdout.flush()
            return "done"
        """.replace("\n        ", "\n"),
    )
    with Holdfast(url) as app:
        talk = app.task(name="talk")(lambda: None)
        job = talk.enqueue()
        for extra in ([], ["--processes", "2"]):
            done = shell(">&- <&-", "worker", "quiet:app", "--until-idle", *extra)
            assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
            assert app.jobs.get(job.id).result == "done"
            job = talk.enqueue()
