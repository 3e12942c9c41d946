"""`holdfast failures`."""

import re
from collections.abc import Callable
from typing import Any

from click.testing import Result

from holdfast import Fail, Holdfast
from support.running_worker import drain
from support.transitions import fold_all

Run = Callable[..., Result]
Data = Callable[..., Any]


def fail_often(app: Holdfast) -> None:
    """Three times one way, once another."""

    @app.task(queue="mail", max_attempts=3, retry=0)
    def send_mail() -> None:
        raise ConnectionError("refused")

    @app.task
    def crop() -> Fail:
        return Fail("INVALID_INPUT:SIZE", "too large")

    send_mail.enqueue()
    crop.enqueue()
    drain(app)


def test_the_most_frequent_comes_first(app: Holdfast, on: Run) -> None:
    fail_often(app)
    header, first, second = on("failures").stdout.splitlines()
    columns = re.split(r" {2,}", header)
    assert columns == ["ERROR", "COUNT", "TASK", "QUEUE", "FIRST SEEN", "LAST SEEN", "LAST JOB", "FINGERPRINT"]
    assert first.split()[:4] == ["DEPENDENCY:CONNECTION", "3", "send_mail", "mail"]
    assert second.split()[:4] == ["INVALID_INPUT:SIZE", "1", "crop", "default"]


def test_json_has_tracebacks_only_on_request(app: Holdfast, data: Data) -> None:
    fail_often(app)
    plain, full = data("failures")["failures"], data("failures", "--traceback")["failures"]
    assert set(plain[0]) == {
        "error_code", "task", "queue", "count", "first_seen", "last_seen", "last_job_id", "fingerprint",
    }  # fmt: skip
    assert (plain[0]["count"], plain[0]["last_job_id"]) == (3, 1) and plain[0]["first_seen"] <= plain[0]["last_seen"]
    assert "ConnectionError: refused" in full[0]["traceback"] and full[1]["traceback"] is None


def test_tracebacks_follow_their_failure(app: Holdfast, on: Run) -> None:
    fail_often(app)
    text = on("failures", "--traceback").stdout
    assert text.index("DEPENDENCY:CONNECTION") < text.index("    ConnectionError: refused")
    assert text.index("INVALID_INPUT:SIZE") < text.index("    No traceback stored.")
    assert "No traceback" not in on("failures", "--traceback", "--limit", 1).stdout


def test_filter_by_task_or_queue(app: Holdfast, on: Run, data: Data) -> None:
    fail_often(app)

    def tasks(*options: str) -> list[str]:
        return [one["task"] for one in data("failures", *options)["failures"]]

    assert tasks("--queue", "mail") == tasks("--task", "send_mail") == ["send_mail"]
    assert tasks("--queue", "default") == ["crop"]
    assert tasks("--queue", "mail", "--task", "crop") == []
    assert on("failures", "--queue", "nowhere").stderr == "No matching failures.\n"


def test_since_leaves_out_older_failures(app: Holdfast, on: Run, data: Data) -> None:
    fail_often(app)
    fold_all(app)
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_failure_minutes SET minute = minute - 120 WHERE n = 3")
    assert [one["count"] for one in data("failures", "--since", "1h")["failures"]] == [1]
    assert [one["count"] for one in data("failures", "--since", "3h")["failures"]] == [3, 1]


def test_no_failures(app: Holdfast, on: Run, data: Data) -> None:
    result = on("failures")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No failures.\n")
    assert data("failures") == {"failures": []}
