"""`holdfast operations`, `holdfast operation`, `--background`, and patterns in filters."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]
Data = Callable[..., Any]


@pytest.fixture
def jobs(app: Holdfast) -> list[int]:
    @app.task
    def send_mail(to: str) -> None: ...

    ids = [send_mail.enqueue(f"{name}@example.org").id for name in ("ada", "bob", "cyd")]
    for id in ids:
        app.jobs.fail(id, "DEPENDENCY:SMTP")
    return ids


def test_a_background_action_is_started_run_and_shown(jobs: list[int], app: Holdfast, on: Run, data: Data) -> None:
    started = on("retry", "--task", "send_*", "--background", "--yes", "--actor", "kim", "--reason", "back")
    assert started.stdout == "Operation 1 started: holdfast operation show 1\n"
    assert app.jobs.get(jobs[0]).status == "failed"
    shown = on("operation", "show", "1").stdout
    assert "running" in shown and "0 of 3" in shown and "kim: back" in shown
    assert on("operation", "run", "1").stdout == "Operation 1 finished: 3 jobs changed.\n"
    assert {app.jobs.get(id).status for id in jobs} == {"ready"}
    assert on("operations").stdout.splitlines()[1].split()[:6] == ["1", "retry", "finished", "3", "3", "100%"]
    assert data("operations")["operations"][0]["changed"] == 3
    assert data("operation", "show", "1")["state"] == "finished"


def test_an_operation_is_stopped(jobs: list[int], on: Run) -> None:
    assert on("delete", "--status", "failed", "--background", "--yes").exit_code == 0
    assert on("operation", "stop", "1", "--reason", "no").stdout == "Operation 1 stopped after 0 jobs.\n"
    again = on("operation", "stop", "1")
    assert (again.exit_code, again.stdout) == (1, "Operation 1 had already ended.\n")
    assert on("operation", "run", "1").stdout == "Operation 1 stopped: 0 jobs changed.\n"


def test_no_operations(app: Holdfast, on: Run) -> None:
    assert on("operations").stderr == "No operations.\n"
    missing = on("operation", "show", "7")
    assert missing.exit_code == 4 and "there is no operation 7" in missing.stderr


def test_a_dry_run_starts_nothing_and_ids_are_changed_at_once(jobs: list[int], on: Run) -> None:
    assert on("retry", "--task", "*", "--background", "--dry-run").stdout == "3 jobs would be retried.\n"
    assert on("operations").stderr == "No operations.\n"
    assert "--background requires filters" in on("retry", "1", "--background").stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--task", "send_*"], 3),
        (["--error-code", "DEP*"], 3),
        (["--queue", "d*lt", "--arg", "to=ada*"], 1),
        (["--arg", "to=bob@example.org"], 1),
        (["--task", "x*"], 0),
    ],
)
def test_patterns_choose_jobs(jobs: list[int], data: Data, options: list[str], expected: int) -> None:
    assert len(data("jobs", *options)["jobs"]) == expected


def test_a_wrong_argument_filter_is_told(jobs: list[int], on: Run) -> None:
    assert "must be NAME=VALUE" in on("jobs", "--arg", "to").stderr
