"""`holdfast jobs` and `holdfast show`."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.store import listing, listing_plan

Run = Callable[..., Result]
Data = Callable[..., Any]

FIELDS = [
    "id", "task", "queue", "status", "priority", "attempt", "max_attempts", "created_at", "run_at", "started_at",
    "finished_at", "timeout", "expires_at", "key", "tags", "worker", "error_code", "error_detail", "progress",
    "progress_text",
]  # fmt: skip
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def test_the_list_has_one_line_per_job_newest_first(jobs: dict[str, int], on: Run) -> None:
    header, *lines = on("jobs").stdout.splitlines()
    assert header.split() == ["ID", "TASK", "QUEUE", "STATUS", "ATTEMPT", "AGE", "RUN", "AT", "ERROR"]
    assert [int(line.split()[0]) for line in lines] == sorted(jobs.values(), reverse=True)
    by_id = {int(line.split()[0]): line for line in lines}
    assert by_id[jobs["failed"]].split() == ["2", "send_mail", "mail", "failed", "1/3", "0s", "INVALID_INPUT:VALUE"]
    assert by_id[jobs["ready"]].split() == ["6", "message", "inbox", "ready", "0/5", "0s"]
    assert "in 1h" in by_id[jobs["scheduled"]] or "in 59m" in by_id[jobs["scheduled"]]


def test_json_has_the_same_keys_for_every_job(jobs: dict[str, int], data: Data) -> None:
    listed = data("jobs")
    assert list(listed) == ["jobs", "next", "previous", "scanned"]
    assert {tuple(job) for job in listed["jobs"]} == {tuple(FIELDS)}
    first = next(job for job in listed["jobs"] if job["id"] == jobs["succeeded"])
    assert ISO.fullmatch(first["created_at"]) and ISO.fullmatch(first["finished_at"])
    assert (first["key"], first["tags"], first["priority"]) == ("welcome-ada", ["eu", "vip"], 5)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--status", "failed"], ["failed"]),
        (["--status", "failed", "--status", "cancelled"], ["cancelled", "failed"]),
        (["-q", "inbox"], ["ready"]),
        (["--task", "send_mail", "--status", "running"], ["running"]),
        (["--tag", "vip"], ["succeeded"]),
        (["--key", "welcome-ada"], ["succeeded"]),
        (["--error-code", "INVALID_INPUT:VALUE"], ["failed"]),
        (["--since", "1h", "-q", "inbox"], ["ready"]),
        (["--queue", "nowhere"], []),
    ],
)
def test_filters_select_jobs(jobs: dict[str, int], data: Data, options: list[str], found: list[str]) -> None:
    assert [job["id"] for job in data("jobs", *options)["jobs"]] == [jobs[name] for name in found]


def test_an_empty_list_is_reported_on_stderr(app: Holdfast, on: Run) -> None:
    result = on("jobs")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No jobs.\n")


def test_cursors_lead_from_page_to_page(app: Holdfast, on: Run, data: Data) -> None:
    app.queue("inbox").send_many(range(5))
    first = on("jobs", "--limit", "2")
    cursor = first.stderr.split()[-1]
    assert len(first.stdout.splitlines()) == 3 and "older" in first.stderr
    second = data("jobs", "--limit", "2", "--cursor", cursor)
    assert [job["id"] for job in second["jobs"]] == [3, 2]
    last = data("jobs", "--limit", "2", "--cursor", second["next"])
    assert [job["id"] for job in last["jobs"]] == [1] and last["next"] is None
    assert [job["id"] for job in data("jobs", "--cursor", last["previous"])["jobs"]] == [5, 4, 3, 2]


def test_a_stopped_search_reports_how_far_it_went(
    app: Holdfast, on: Run, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (listing_plan, "SMALL"),
        (listing_plan, "MAX_SORTED"),
        (listing, "SHORT_SCAN"),
        (listing_plan, "MAX_UNFOLDED"),
    ):
        monkeypatch.setattr(module, name, -1)
    monkeypatch.setattr(listing, "LONG_SCAN", 3)
    inbox = app.queue("inbox")
    inbox.send_many(range(9))
    for message in inbox.receive_many(2):
        message.ack()
    first = on("jobs", "--status", "succeeded", "--limit", "1")
    assert (first.exit_code, first.stdout) == (0, "")
    assert first.stderr == ("No matching job yet. Scanned 7 jobs, down to id 3; continue with --cursor older-3\n")
    second = data("jobs", "--status", "succeeded", "--limit", "1", "--cursor", "older-3")
    assert [job["id"] for job in second["jobs"]] == [2]
    back = on("jobs", "--status", "scheduled", "--limit", "1", "--cursor", "newer-1")
    assert "Scanned 7 jobs, up to id 8; continue with --cursor newer-8" in back.stderr
    assert data("jobs", "--status", "scheduled", "--limit", "1")["scanned"] == 7


def test_payloads_and_results_are_private_by_default(jobs: dict[str, int], on: Run) -> None:
    commands = [["jobs"], ["jobs", "--json"]]
    commands += [["show", str(id), *more] for id in jobs.values() for more in ([], ["--json"], ["--traceback"])]
    for command in commands:
        output = on(*command).output
        assert "example.org" not in output and "hello" not in output and "done" not in output, command


def test_payloads_are_shown_on_request(jobs: dict[str, int], on: Run, data: Data) -> None:
    assert '{"to":"ada@example.org","subject":"hi"}' in on("jobs", "--args").stdout
    shown = data("show", jobs["succeeded"], "--args", "--result")
    assert (shown["args"], shown["result"]) == ({"to": "ada@example.org", "subject": "hi"}, "done")
    text = on("show", jobs["succeeded"], "--args", "--result").stdout
    assert '"to":"ada@example.org"' in text and '"done"' in text


def test_a_job_with_an_unreadable_payload_is_still_shown(app: Holdfast, on: Run, data: Data) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO holdfast_jobs (args) VALUES ('{not json')")
    assert "cannot be decoded" in on("jobs", "--args").stdout
    shown = data("show", 1, "--args")
    assert shown["args"] is None and "cannot be decoded" in shown["args_error"]


def test_show_prints_fields_and_history(jobs: dict[str, int], on: Run) -> None:
    text = on("show", jobs["failed"]).stdout
    fields = dict(line.split(None, 1) for line in text.partition("\n\n")[0].splitlines())
    assert (fields["task"], fields["queue"], fields["status"]) == ("send_mail", "mail", "failed")
    assert (fields["attempt"], fields["worker"]) == ("1 of 3", "worker-1")
    assert fields["error"].startswith("INVALID_INPUT:VALUE: ValueError: invalid literal")
    header, *lines = text.partition("\n\n")[2].splitlines()
    assert header.split() == ["AT", "(UTC)", "EVENT", "WAIT", "RUN", "BY", "DETAIL"]
    assert [line[25:].split("  ")[0] for line in lines] == ["enqueued", "attempt 1", "failed"]


def test_the_history_as_json_has_wait_and_run_times(jobs: dict[str, int], data: Data) -> None:
    history = data("show", jobs["failed"])["history"]
    assert [entry["name"] for entry in history] == ["enqueued", "claimed", "failed", "failed"]
    assert [entry["kind"] for entry in history] == ["event", "event", "attempt", "event"]
    attempt = history[2]
    assert attempt["wait_seconds"] >= 0 and attempt["run_seconds"] >= 0
    assert ISO.fullmatch(attempt["at"]) and ISO.fullmatch(attempt["detail"]["finished_at"])
    assert "wait_seconds" not in history[0]


def test_the_traceback_is_shown_on_request(jobs: dict[str, int], on: Run, data: Data) -> None:
    assert "Traceback" not in on("show", jobs["failed"]).stdout
    shown = on("show", jobs["failed"], "--traceback").stdout
    assert "Traceback (most recent call last)" in shown and 'int("not a number")' in shown
    assert data("show", jobs["failed"], "--traceback")["traceback"].endswith("'not a number'\n")
    assert "No traceback stored." in on("show", jobs["ready"], "--traceback").stdout
    assert data("show", jobs["ready"], "--traceback")["traceback"] is None


def test_a_cancelled_job_has_a_reason_and_a_scheduled_one_a_time(jobs: dict[str, int], on: Run) -> None:
    assert re.search(r"^reason +sent by hand$", on("show", jobs["cancelled"]).stdout, re.MULTILINE)
    assert re.search(r"^run at +\d{4}-.* UTC, in ", on("show", jobs["scheduled"]).stdout, re.MULTILINE)


def test_progress_is_shown(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send(1)
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_jobs SET progress = 0.5, progress_text = 'half way'")
    assert re.search(r"^progress +50% half way$", on("show", 1).stdout, re.MULTILINE)


def test_a_missing_job_exits_with_4(app: Holdfast, on: Run) -> None:
    result = on("show", 99)
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "Error: there is no job 99: it never existed, or it was deleted\n"


def test_a_pipe_gets_every_value_in_full(app: Holdfast, on: Run) -> None:
    app.queue("q" * 200).send(1)
    result = on("jobs")
    assert "q" * 200 in result.stdout and "…" not in result.stdout


def test_json_is_one_line_in_a_pipe(jobs: dict[str, int], on: Run) -> None:
    for command in (["jobs"], ["show", "1"], ["queues"]):
        (line,) = on(*command, "--json").stdout.splitlines()
        json.loads(line)


def test_the_inbox_lists_what_waits_for_a_decision(app: Holdfast, on: Run, data: Data) -> None:
    assert "Nothing waits for a decision" in on("inbox").stderr
    job = app.external("approve", {"amount": 7}, queue="people")
    app.external("approve", {"amount": 8})
    text = on("inbox").stdout
    assert all(word in text for word in ("approve", "people", '{"amount":7}', '{"amount":8}'))
    first = on("inbox", "--limit", "1")
    assert '{"amount":7}' not in first.stdout and "--cursor" in first.stderr
    app.jobs.complete(job.id, True)
    (waiting,) = data("inbox")["jobs"]
    assert (waiting["args"], waiting["timeout_at"]) == ({"amount": 8}, None)
