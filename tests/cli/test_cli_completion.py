"""Tab completion: names from the database, and no output on errors."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]


def question(*line: str) -> dict[str, str]:
    """As bash asks what could be at the end of the line."""
    return {
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["holdfast", *line]),
        "COMP_CWORD": str(len(line)),
    }


def answer(printed: str) -> list[str]:
    return [offer.partition(",")[2] for offer in printed.splitlines() if offer]


@pytest.fixture
def offered(run: Run) -> Callable[..., list[str]]:
    def words(*line: str, **environment: str) -> list[str]:
        result = run(env=question(*line) | environment)
        assert (result.exit_code, result.stderr) == (0, "")
        return answer(result.stdout)

    return words


def test_completion_runs_in_its_own_process(start: Any) -> None:
    ended = start(env=os.environ | question("queues", "p"))
    assert (ended.returncode, ended.stderr, answer(ended.stdout)) == (0, "", ["pause", "purge"])


def test_commands_and_options_are_offered(offered: Callable[..., list[str]]) -> None:
    assert offered("re") == ["retry"]
    assert offered("queues", "p") == ["pause", "purge"]
    assert "--error-code" in offered("jobs", "--e")
    assert offered("jobs", "--status", "s") == ["scheduled", "succeeded"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_names_and_ids_come_from_the_database(
    app: Holdfast, jobs: dict[str, int], offered: Callable[..., list[str]], url: str
) -> None:
    app.schedules.add("nightly", "0 2 * * *", app.task(name="report")(lambda: None))
    known = {"HOLDFAST_URL": url}
    assert offered("send", "", **known) == ["inbox", "mail"]
    assert offered("queues", "pause", "m", **known) == ["mail"]
    assert offered("jobs", "--task", "", **known) == ["send_mail"]
    assert offered("retry", "", **known) == [str(jobs["cancelled"]), str(jobs["failed"])]
    assert offered("cancel", "", **known) == [str(jobs[name]) for name in ("ready", "scheduled", "running")]
    assert offered("run-now", "", **known) == [str(jobs["scheduled"])]
    assert len(offered("show", "", **known)) == len(jobs)
    assert offered("cron", "pause", "n", **known) == ["nightly"]
    assert offered("jobs", "--db", url, "--queue", "") == ["inbox", "mail"]
    assert offered("queues", "--db", url, "pause", "") == ["inbox", "mail"]


def test_completion_without_a_database_offers_nothing_silently(
    offered: Callable[..., list[str]], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"x" * 5000)
    assert offered("show", "") == []
    for place in (tmp_path / "missing.db", damaged, tmp_path, "mysql://u:p@h/d"):
        assert offered("show", "", HOLDFAST_URL=str(place)) == []
    assert offered("jobs", "--app", "no.such.module:app", "--queue", "") == []
    assert [file.name for file in tmp_path.iterdir()] == ["damaged.db"]


def test_unprintable_names_are_not_offered(app: Holdfast, offered: Callable[..., list[str]], url: str) -> None:
    app.queue("good").send(1)
    with app.transaction() as tx:
        tx.execute("INSERT INTO holdfast_jobs (queue) VALUES (?)", ("evil\nplain,also\x1b[2J",))
    assert offered("send", "", HOLDFAST_URL=url) == ["good"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_holdfast(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_valid_shell_code(run: Run, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(run("completion", shell).stdout)
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode == 0


def test_an_unknown_shell_exits_with_2(run: Run) -> None:
    assert run("completion", "tcsh").exit_code == 2
