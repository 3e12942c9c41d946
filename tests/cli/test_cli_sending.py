"""`holdfast send`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]


def test_a_message_is_sent_and_its_id_printed(app: Holdfast, on: Run) -> None:
    result = on("send", "inbox", '{"text": "hello"}')
    assert (result.exit_code, result.stderr) == (0, "")
    message = app.queue("inbox").receive()
    assert message is not None
    assert result.stdout == f"{message.id}\n"
    assert message.body == {"text": "hello"}


@pytest.mark.parametrize("text", ["1", '"x"', "[1, 2.5, null]", "true", "null", '{"é": "日本"}', " 1 "])
def test_any_json_can_be_sent(app: Holdfast, on: Run, text: str) -> None:
    assert on("send", "inbox", text).exit_code == 0
    message = app.queue("inbox").receive()
    assert message is not None and message.body == json.loads(text)


def test_a_dash_reads_standard_input(app: Holdfast, on: Run) -> None:
    assert on("send", "inbox", "-", input='{"from": "stdin"}\n').exit_code == 0
    message = app.queue("inbox").receive()
    assert message is not None and message.body == {"from": "stdin"}


def test_the_options_reach_the_job(app: Holdfast, data: Callable[..., Any]) -> None:
    options = ("--delay", "1h", "--priority", "7", "--key", "k", "--max-attempts", "9")
    sent = data("send", "inbox", "1", *options)
    assert sent == {"id": sent["id"], "deduplicated": False}
    job = app.jobs.get(sent["id"])
    assert (job.status, job.priority, job.key, job.max_attempts) == ("scheduled", 7, "k", 9)
    assert 3590 < (job.run_at - job.created_at).total_seconds() <= 3600


def test_a_message_and_a_job_have_five_attempts(app: Holdfast, data: Callable[..., Any]) -> None:
    message, job = data("send", "q", "{}")["id"], data("send", "q", "{}", "--task", "work")["id"]
    assert app.jobs.get(message).max_attempts == 5
    assert app.jobs.get(job).max_attempts == 5
    assert (app.jobs.get(job).task, app.jobs.get(job).queue) == ("work", "q")


def test_a_taken_key_stores_nothing_and_says_so(app: Holdfast, on: Run) -> None:
    first, second = on("send", "inbox", "1", "--key", "k"), on("send", "inbox", "2", "--key", "k")
    assert first.stdout == second.stdout
    assert "Nothing stored" in second.stderr and "'k'" in second.stderr
    assert len(app.jobs.list()) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hello", """A JSON string needs its own quotes, such as '"hello"'"""),
        ("", "invalid JSON"),
        ("NaN", "invalid JSON"),
        ("[1e999]", "out of range"),
        ("{'a': 1}", "invalid JSON"),
        ('{"a": 1', "invalid JSON"),
        ("[" * 65 + "]" * 65, "64 levels"),
        ('"' + "x" * 64 * 1024 * 1024 + '"', "at most 67,108,864"),
    ],
)
def test_invalid_json_is_refused_with_a_reason(app: Holdfast, on: Run, text: str, complaint: str) -> None:
    result = on("send", "inbox", "-", input=text)
    assert result.exit_code == 2
    assert complaint in result.stderr and len(result.stderr.splitlines()) == 1
    assert len(app.jobs.list()) == 0


def test_invalid_utf_8_is_refused(app: Holdfast, on: Run) -> None:
    result = on("send", "inbox", "-", input=b'"\xff\xfe"')
    assert result.exit_code == 2 and "UTF-8" in result.stderr


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "null", "true"])
def test_task_arguments_must_be_an_object(app: Holdfast, on: Run, text: str) -> None:
    result = on("send", "mail", text, "--task", "send_mail")
    assert result.exit_code == 2 and "JSON object" in result.stderr
    assert len(app.jobs.list()) == 0


@pytest.mark.parametrize(
    "wrong", [("", "1"), ("q" * 201, "1"), ("q", "1", "--max-attempts", "0"), ("q", "1", "--priority", str(2**40))]
)
def test_values_the_library_refuses_are_refused(app: Holdfast, on: Run, wrong: tuple[str, ...]) -> None:
    result = on("send", *wrong)
    assert result.exit_code == 2 and result.stderr.startswith("Error: ")


def test_a_missing_database_is_created_only_on_request(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    result = run("send", "inbox", "1", "--db", path)
    assert result.exit_code == 3 and "does not exist" in result.stderr
    assert not path.exists()
    assert run("send", "inbox", "1", "--db", path, "--create").stdout == "1\n"


APP = """
from holdfast import Holdfast
app = Holdfast("app.db")

@app.task(max_attempts=8, priority=3, timeout=20)
def send_mail(to: str, count: int = 1): ...
"""


def test_the_app_checks_arguments_and_provides_defaults(run: Run, module: Any, tmp_path: Path) -> None:
    module("mailer.py", APP)
    assert run("send", "mail", '{"to": "ada"}', "--task", "send_mail", "--app", "mailer:app").stdout == "1\n"
    for wrong in ('{"to": 1}', "{}", '{"to": "ada", "cc": "bob"}'):
        result = run("send", "mail", wrong, "--task", "send_mail", "--app", "mailer")
        assert result.exit_code == 2 and "send_mail" in result.stderr, result.output
    result = run("send", "mail", "{}", "--task", "send_male", "--app", "mailer")
    assert result.exit_code == 2 and "did you mean 'send_mail'?" in result.stderr
    with Holdfast(tmp_path / "app.db") as app:
        (job,) = app.jobs.list()
        assert (job.max_attempts, job.priority, job.timeout) == (8, 3, 20)
