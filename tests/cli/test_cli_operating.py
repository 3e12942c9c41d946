"""`holdfast retry`, `cancel`, `run-now` and `delete`."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.cli import bulk
from holdfast.store.sqlite import listing

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
def test_by_id(
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
        ("retry", "running", "is running: only failed or cancelled ones can be retried"),
        ("cancel", "succeeded", "is succeeded: only blocked, scheduled, ready or running ones can be cancelled"),
        ("run-now", "ready", "is ready: only scheduled ones can be made ready"),
        ("delete", "running", "is left: it is running: cancel that first"),
    ],
)
def test_a_state_that_does_not_allow_it_is_code_1(
    app: Holdfast, jobs: dict[str, int], on: Run, command: str, state: str, complaint: str
) -> None:
    for more in ([], ["--dry-run"]):
        result = on(command, jobs[state], *more)
        assert result.exit_code == 1 and complaint in result.stderr
    assert app.jobs.get(jobs[state]).status == state


def test_several_ids_are_each_done_or_explained(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    result = on("retry", jobs["failed"], jobs["running"], 99, jobs["failed"], "--json")
    assert result.exit_code == 4
    assert result.stdout == (
        '{"action":"retry","dry_run":false,"matched":1,"matched_all":true,"done":1,'
        '"refused":[{"id":3,"status":"running"}],"not_found":[99]}\n'
    )
    assert len(result.stderr.splitlines()) == 2


def test_a_job_whose_key_is_taken_cannot_come_back(app: Holdfast, on: Run) -> None:
    inbox = app.queue("inbox")
    first = inbox.send(1, key="k")
    app.jobs.cancel(first)
    inbox.send(2, key="k")
    result = on("retry", first)
    assert result.exit_code == 1 and "another job that has not ended has its key" in result.stderr


def test_retry_gives_attempts_and_a_delay(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    assert on("retry", jobs["failed"], "--attempts", "7", "--delay", "2h").exit_code == 0
    job = app.jobs.get(jobs["failed"])
    assert (job.status, job.attempt, job.max_attempts) == ("scheduled", 1, 8)


def test_cancel_keeps_the_reason(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    on("cancel", jobs["ready"], "--reason", "not wanted")
    assert app.jobs.get(jobs["ready"]).error_detail == "not wanted"


def test_filters_need_a_yes_where_nobody_can_be_asked(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    result = on("retry", "--queue", "mail")
    assert result.exit_code == 2 and "Retry 1 job? Nobody is there to answer: pass --yes" in result.stderr
    assert app.jobs.get(jobs["failed"]).status == "failed"
    assert on("retry", "--queue", "mail", "--yes").stdout == "1 job retried.\n"


def test_retry_by_filters_takes_the_failed_ones_unless_told_otherwise(
    app: Holdfast, jobs: dict[str, int], data: Data
) -> None:
    assert data("retry", "--queue", "mail", "-y")["done"] == 1
    assert app.jobs.get(jobs["cancelled"]).status == "cancelled"
    assert data("retry", "--queue", "mail", "--status", "cancelled", "-y")["done"] == 1
    assert app.jobs.get(jobs["cancelled"]).status == "ready"


def test_cancel_by_filters_takes_whatever_has_not_ended(app: Holdfast, jobs: dict[str, int], data: Data) -> None:
    done = data("cancel", "--queue", "mail", "-y")
    assert (done["matched"], done["done"]) == (2, 2)
    assert app.jobs.get(jobs["succeeded"]).status == "succeeded"


def test_a_dry_run_counts_and_does_nothing(app: Holdfast, jobs: dict[str, int], on: Run, data: Data) -> None:
    before = [job.status for job in app.jobs.list()]
    assert on("cancel", "--queue", "mail", "-n").stdout == "2 jobs would be cancelled.\n"
    assert data("delete", "--since", "1h", "-n") == {
        "action": "delete", "dry_run": True, "matched": 5, "matched_all": True, "done": 0, "refused": [],
        "not_found": [],
    }  # fmt: skip
    assert on("retry", jobs["failed"], "-n").stdout == "1 job would be retried.\n"
    assert [job.status for job in app.jobs.list()] == before


def test_a_count_that_would_take_long_is_a_lower_bound(
    app: Holdfast, on: Run, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "STEP", 10)
    monkeypatch.setattr(bulk, "MOST_LOOKED_AT", 30)
    app.queue("inbox").send_many(range(100))
    assert on("cancel", "--since", "1h", "-n").stdout == "At least 30 jobs would be cancelled.\n"
    counted = data("delete", "--since", "1h", "-n")
    assert (counted["matched"], counted["matched_all"]) == (30, False)
    assert on("cancel", "--queue", "inbox", "-n").stdout == "100 jobs would be cancelled.\n", "that is known"
    assert "Cancel at least 30 jobs?" in on("cancel", "--since", "1h").stderr
    assert on("cancel", "--since", "1h", "--yes").stdout == "100 jobs cancelled.\n"


def test_filters_that_fit_nothing_are_code_1(jobs: dict[str, int], on: Run) -> None:
    result = on("cancel", "--queue", "nowhere", "-y")
    assert (result.exit_code, result.stdout) == (1, "0 jobs cancelled.\n")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["retry"], "say which jobs to retry"),
        (["delete", "--yes"], "say which jobs to delete"),
        (["retry", "1", "--queue", "mail"], "ids or filters, not both"),
        (["retry", "--status", "succeeded", "-y"], "only jobs that are failed or cancelled can be retried"),
        (["cancel", "x"], "'x' is not a job id"),
        (["cancel", "0"], "'0' is not a job id"),
        (["retry", "1", "--attempts", "0"], "attempts must be 1 to 1000"),
        (["retry", "1", "--delay", "soon"], "'soon' is not a duration"),
    ],
)
def test_wrong_usage_is_code_2(jobs: dict[str, int], on: Run, args: list[str], complaint: str) -> None:
    result = on(*args)
    assert result.exit_code == 2 and complaint in result.stderr


def test_a_person_is_asked_with_the_count(app: Holdfast, jobs: dict[str, int], url: str, terminal: Terminal) -> None:
    seen, code = terminal("cancel", "--queue", "mail", "--db", url, typed="n\n")
    assert "Cancel 2 jobs? [y/N]" in seen and "Nothing was done." in seen
    assert code == 1
    assert app.jobs.get(jobs["running"]).status == "running"
    seen, code = terminal("cancel", "--queue", "mail", "--db", url, typed="y\n")
    assert "2 jobs cancelled." in seen and code == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_no_answer_is_code_130(jobs: dict[str, int], url: str, terminal: Terminal, key: str) -> None:
    seen, code = terminal("delete", "--queue", "mail", "--db", url, typed=key)
    assert code == 130
    assert "Interrupted" in seen and "deleted" not in seen and "Traceback" not in seen
