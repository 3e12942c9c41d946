"""`holdfast queues` and its subcommands."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]
Data = Callable[..., Any]


def test_the_overview_counts_tasks_and_messages(jobs: dict[str, int], app: Holdfast, on: Run, data: Data) -> None:
    app.queue("slow").pause()
    app.external("approve", queue="mail")
    assert on("queues").stdout.splitlines() == [
        "QUEUE  READY  SCHEDULED  BLOCKED  RUNNING  FAILED  OLDEST READY  STATE",
        "inbox      1          0        0        0       0            0s",
        "mail       0          1        1        1       1",
        "slow       0          0        0        0       0                paused",
    ]
    inbox, mail, slow = data("queues")["queues"]
    assert list(inbox) == [
        "name", "ready", "scheduled", "blocked", "running", "failed", "oldest_ready_age", "paused",
        "paused_at", "paused_by", "pause_reason",
    ]  # fmt: skip
    assert inbox["oldest_ready_age"] >= 0 and mail["oldest_ready_age"] is None
    assert (inbox["paused"], slow["paused"]) == (False, True)


def test_no_queues_is_not_an_error(app: Holdfast, on: Run, data: Data) -> None:
    result = on("queues")
    assert (result.exit_code, result.stdout) == (0, "") and "No queues" in result.stderr
    assert data("queues") == {"queues": []}


def test_pause_and_resume(app: Holdfast, on: Run) -> None:
    app.queue("mail").send(1)
    assert on("queues", "pause", "mail", "--actor", "kim").stdout == "mail paused.\n"
    assert app.queue("mail").receive() is None
    again = on("queues", "pause", "mail")
    assert (again.exit_code, again.stdout) == (1, "mail was already paused: nothing changed.\n")
    assert on("queues", "resume", "mail").stdout == "mail resumed.\n"
    again = on("queues", "resume", "mail", "--json")
    assert (again.exit_code, again.stdout) == (1, '{"queue":"mail","paused":false,"changed":false}\n')
    assert app.queue("mail").receive() is not None


def test_database_options_may_precede_the_subcommand(app: Holdfast, run: Run, url: str) -> None:
    assert run("queues", "--db", url, "pause", "mail").exit_code == 0
    other = run("queues", "--db", url + "-missing", "pause", "mail", "--db", url)
    assert other.exit_code == 1, "the one beside the verb holds"


def test_requeue_delivers_dead_letters_again(app: Holdfast, on: Run, data: Data) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    inbox.send_many([1, 2])
    for message in inbox.receive_many(2):
        message.fail("TEST")
    assert data("queues", "requeue", "inbox", "--attempts", "4") == {"queue": "inbox", "requeued": 2}
    assert {job.max_attempts for job in app.jobs.list()} == {5}
    assert on("queues", "requeue", "inbox").exit_code == 1


def test_purge_requires_confirmation(app: Holdfast, on: Run) -> None:
    inbox = app.queue("inbox", max_attempts=1)
    inbox.send_many([1, 2, 3])
    message = inbox.receive()
    assert message is not None and message.fail("TEST")
    refused = on("queues", "purge", "inbox")
    assert refused.exit_code == 2 and "Delete 3 messages of inbox?" in refused.stderr
    assert on("queues", "purge", "inbox", "--dead-only", "-y").stdout == "1 message deleted.\n"
    assert on("queues", "purge", "inbox", "-y", "--json").stdout == '{"queue":"inbox","purged":2}\n'
    assert on("queues", "purge", "inbox").exit_code == 1, "there is nothing to ask about"


@pytest.mark.parametrize("verb", ["pause", "resume", "requeue", "purge"])
def test_an_invalid_queue_name_exits_with_2(app: Holdfast, on: Run, verb: str) -> None:
    assert on("queues", verb, "").exit_code == 2
    assert on("queues", verb).exit_code == 2
