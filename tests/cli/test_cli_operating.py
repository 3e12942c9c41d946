"""`holdfast retry`, `cancel`, `run-now` and `delete`."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.cli import bulk
from holdfast.store import listing

Run = Callable[..., Result]
Data = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]


@pytest.mark.parametrize(
    ("command", "before", "after", "sentence"),
    [
        ("retry", "failed", "ready", "1 job retried.\n"),
        ("retry", "cancelled", "ready", "1 job retried.\n"),
        ("cancel", "ready", "cancelled", "1 job cancelled.\n"),
        ("cancel", "running", "cancelled", "1 job cancelled.\n"),
        ("run-now", "scheduled", "ready", "1 job made ready.\n"),
    ],
)
def test_actions_by_id(
    app: Holdfast, jobs: dict[str, int], on: Run, command: str, before: str, after: str, sentence: str
) -> None:
    result = on(command, jobs[before], "--actor", "kim")
    assert (result.exit_code, result.stdout, result.stderr) == (0, sentence, "")
    assert app.jobs.get(jobs[before]).status == after
    assert app.jobs.history(jobs[before])[-1].actor == "kim"


def test_delete_by_id(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    assert on("delete", jobs["succeeded"], jobs["ready"]).stdout == "2 jobs deleted.\n"
    assert {job.id for job in app.jobs.list()} == set(jobs.values()) - {jobs["succeeded"], jobs["ready"]}


@pytest.mark.parametrize(
    ("command", "state", "complaint"),
    [
        ("retry", "running", "it is running, and only failed or cancelled jobs can be retried"),
        (
            "cancel",
            "succeeded",
            "it is succeeded, and only blocked, scheduled, ready or running jobs can be cancelled",
        ),
        ("run-now", "ready", "it is ready, and only scheduled jobs can be made ready"),
        ("delete", "running", "is unchanged: it is running; cancel that first"),
    ],
)
def test_a_wrong_state_exits_with_1(
    app: Holdfast, jobs: dict[str, int], on: Run, command: str, state: str, complaint: str
) -> None:
    for more in ([], ["--dry-run"]):
        result = on(command, jobs[state], *more)
        assert result.exit_code == 1 and complaint in result.stderr
    assert app.jobs.get(jobs[state]).status == state


def test_each_of_several_ids_is_done_or_refused(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    result = on("retry", jobs["failed"], jobs["running"], 99, jobs["failed"], "--json")
    assert result.exit_code == 4
    assert result.stdout == (
        '{"action":"retry","dry_run":false,"matched":1,"matched_all":true,"done":1,'
        '"refused":[{"id":3,"status":"running"}],"not_found":[99]}\n'
    )
    assert len(result.stderr.splitlines()) == 2


def test_a_job_whose_key_is_taken_cannot_be_retried(app: Holdfast, on: Run) -> None:
    inbox = app.queue("inbox")
    first = inbox.send(1, key="k")
    app.jobs.cancel(first)
    inbox.send(2, key="k")
    result = on("retry", first)
    assert result.exit_code == 1 and "an unfinished job has its key" in result.stderr


def test_retry_adds_attempts_and_a_delay(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    assert on("retry", jobs["failed"], "--attempts", "7", "--delay", "2h").exit_code == 0
    job = app.jobs.get(jobs["failed"])
    assert (job.status, job.attempt, job.max_attempts) == ("scheduled", 1, 8)


def test_cancel_keeps_the_reason(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    on("cancel", jobs["ready"], "--reason", "not wanted")
    assert app.jobs.get(jobs["ready"]).error_detail == "not wanted"


def test_filters_require_yes_without_a_terminal(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    result = on("retry", "--queue", "mail")
    assert (
        result.exit_code == 2
        and "Retry 1 job? Standard input is not a terminal: pass --yes to confirm" in result.stderr
    )
    assert app.jobs.get(jobs["failed"]).status == "failed"
    assert on("retry", "--queue", "mail", "--yes").stdout == "1 job retried.\n"


def test_retry_by_filters_selects_failed_jobs_by_default(app: Holdfast, jobs: dict[str, int], data: Data) -> None:
    assert data("retry", "--queue", "mail", "-y")["done"] == 1
    assert app.jobs.get(jobs["cancelled"]).status == "cancelled"
    assert data("retry", "--queue", "mail", "--status", "cancelled", "-y")["done"] == 1
    assert app.jobs.get(jobs["cancelled"]).status == "ready"


def test_cancel_by_filters_selects_unfinished_jobs(app: Holdfast, jobs: dict[str, int], data: Data) -> None:
    done = data("cancel", "--queue", "mail", "-y")
    assert (done["matched"], done["done"]) == (2, 2)
    assert app.jobs.get(jobs["succeeded"]).status == "succeeded"


def test_a_dry_run_only_counts(app: Holdfast, jobs: dict[str, int], on: Run, data: Data) -> None:
    before = [job.status for job in app.jobs.list()]
    assert on("cancel", "--queue", "mail", "-n").stdout == "2 jobs would be cancelled.\n"
    assert data("delete", "--since", "1h", "-n") == {
        "action": "delete", "dry_run": True, "matched": 5, "matched_all": True, "done": 0, "refused": [],
        "not_found": [],
    }  # fmt: skip
    assert on("retry", jobs["failed"], "-n").stdout == "1 job would be retried.\n"
    assert [job.status for job in app.jobs.list()] == before


def test_a_count_that_stops_early_is_a_lower_bound(
    app: Holdfast, on: Run, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "STEP", 10)
    monkeypatch.setattr(bulk, "MAX_SCANNED", 30)
    app.queue("inbox").send_many(range(100))
    assert on("cancel", "--since", "1h", "-n").stdout == "At least 30 jobs would be cancelled.\n"
    counted = data("delete", "--since", "1h", "-n")
    assert (counted["matched"], counted["matched_all"]) == (30, False)
    assert on("cancel", "--queue", "inbox", "-n").stdout == "100 jobs would be cancelled.\n", "that is known"
    assert "Cancel at least 30 jobs?" in on("cancel", "--since", "1h").stderr
    assert on("cancel", "--since", "1h", "--yes").stdout == "100 jobs cancelled.\n"


def test_filters_without_a_match_exit_with_1(jobs: dict[str, int], on: Run) -> None:
    result = on("cancel", "--queue", "nowhere", "-y")
    assert (result.exit_code, result.stdout) == (1, "0 jobs cancelled.\n")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["retry"], "no jobs to retry"),
        (["delete", "--yes"], "no jobs to delete"),
        (["retry", "1", "--queue", "mail"], "ids or filters, not both"),
        (["retry", "--status", "succeeded", "-y"], "only failed or cancelled jobs can be retried"),
        (["cancel", "x"], "a job id must be a positive integer, got 'x'"),
        (["cancel", "0"], "a job id must be a positive integer, got '0'"),
        (["retry", "1", "--attempts", "0"], "attempts must be 1 to 1000"),
        (
            ["retry", "1", "--delay", "soon"],
            "must be a duration such as 90, 500ms, 10s, 5m, 2h, 1d or 1h30m, got 'soon'",
        ),
    ],
)
def test_wrong_usage_exits_with_2(jobs: dict[str, int], on: Run, args: list[str], complaint: str) -> None:
    result = on(*args)
    assert result.exit_code == 2 and complaint in result.stderr


def test_the_confirmation_shows_the_count(app: Holdfast, jobs: dict[str, int], url: str, terminal: Terminal) -> None:
    seen, code = terminal("cancel", "--queue", "mail", "--db", url, typed="n\n")
    assert "Cancel 2 jobs? [y/N]" in seen and "Nothing was changed." in seen
    assert code == 1
    assert app.jobs.get(jobs["running"]).status == "running"
    seen, code = terminal("cancel", "--queue", "mail", "--db", url, typed="y\n")
    assert "2 jobs cancelled." in seen and code == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_an_interrupted_confirmation_exits_with_130(
    jobs: dict[str, int], url: str, terminal: Terminal, key: str
) -> None:
    seen, code = terminal("delete", "--queue", "mail", "--db", url, typed=key)
    assert code == 130
    assert "Interrupted" in seen and "deleted" not in seen and "Traceback" not in seen
