"""`holdfast events`: the end of the log, from a cursor on, and what comes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result
from launching import command

from holdfast import Holdfast
from shift import eventually

Run = Callable[..., Result]

PATIENCE_SECONDS = 60


def parsed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_line_tells_what_happened_to_whom_and_by_whom(jobs: dict[str, int], on: Run) -> None:
    lines = on("events").stdout.splitlines()
    assert len(lines) == 12
    words = [line.split()[2:] for line in lines]
    assert words[0][:3] == ["1", "send_mail", "enqueued"]
    assert words[1] == ["1", "send_mail", "claimed", "attempt", "1", "by", "worker-1"]
    failed = next(line for line in lines if " failed " in line)
    assert failed.split()[2:] == ["2", "send_mail", "failed", "INVALID_INPUT:VALUE", "by", "worker-1"]
    cancelled = next(line for line in lines if " cancelled " in line)
    assert cancelled.endswith("by joe")
    assert "message on inbox" in lines[-1]
    scheduled = next(line for line in lines if " 5  send_mail" in line)
    assert "due 20" in scheduled or scheduled.split()[4] == "enqueued"


def test_json_is_one_object_for_each_line(jobs: dict[str, int], on: Run) -> None:
    found = parsed(on("events", "--json"))
    assert [list(one) for one in found] == [
        ["id", "at", "job_id", "queue", "task", "event", "attempt", "actor", "detail"]
    ] * 12
    assert [one["id"] for one in found] == sorted(one["id"] for one in found)
    assert found[-1]["task"] is None and found[-1]["queue"] == "inbox"


def test_the_last_twenty_are_shown_or_as_many_as_you_like(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send_many(range(50))
    assert [one["job_id"] for one in parsed(on("events", "--json"))] == list(range(31, 51))
    assert [one["job_id"] for one in parsed(on("events", "--limit", 3, "--json"))] == [48, 49, 50]


def test_a_cursor_goes_on_where_another_look_ended(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send_many(range(1200))
    first = on("events", "--after", 0, "--limit", 2)
    assert first.stderr == "Go on from here: --after 2\n"
    rest = parsed(on("events", "--after", 2, "--json"))
    assert [one["id"] for one in rest] == list(range(3, 1201))
    result = on("events", "--after", 1200)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No events.\n")


def test_the_log_of_one_job(jobs: dict[str, int], on: Run) -> None:
    found = parsed(on("events", "--job", jobs["failed"], "--json"))
    assert [one["event"] for one in found] == ["enqueued", "claimed", "failed"]
    assert found[-1]["detail"]["error_code"] == "INVALID_INPUT:VALUE"
    missing = on("events", "--job", 99)
    assert missing.exit_code == 4 and "there is no job 99" in missing.stderr


def test_moments_in_a_detail_are_readable(jobs: dict[str, int], on: Run, app: Holdfast) -> None:
    app.jobs.retry(jobs["failed"], delay=3600)
    (last,) = parsed(on("events", "--limit", 1, "--json"))
    assert last["event"] == "requeued" and last["detail"]["run_at"].endswith("Z")
    assert ", due 20" in on("events", "--limit", 1).stdout


def test_what_was_deleted_is_in_the_log_without_its_name(app: Holdfast, on: Run) -> None:
    id = app.queue("inbox").send(1)
    app.jobs.delete(id)
    found = parsed(on("events", "--json"))
    assert found[-1]["event"] == "deleted" and found[-1]["job_id"] is None and found[-1]["task"] is None


def test_no_payload_is_in_the_log(jobs: dict[str, int], on: Run) -> None:
    for options in ([], ["--json"]):
        assert "example.org" not in on("events", *options).output


# --- following ---


@contextmanager
def following(url: str, *args: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command("events", "--follow", "--db", url, *args),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def test_following_prints_what_comes_as_it_comes_until_ctrl_c(app: Holdfast, url: str) -> None:
    app.queue("inbox").send(1)
    with following(url, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["job_id"] == 1
        for number in range(2, 6):
            app.queue("inbox").send(number)
            assert json.loads(process.stdout.readline())["job_id"] == number
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 130 and notes == "Interrupted\n"


def test_following_one_job_tells_only_of_it(app: Holdfast, url: str) -> None:
    inbox = app.queue("inbox")
    first, second = inbox.send_many([1, 2])
    with following(url, "--json", "--job", str(second)) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "enqueued"
        app.jobs.cancel(first)
        app.jobs.cancel(second)
        assert json.loads(process.stdout.readline())["job_id"] == second


def test_following_goes_on_from_a_cursor_without_a_gap(app: Holdfast, url: str) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(range(700))
    with following(url, "--json", "--after", "100") as process:
        assert process.stdout is not None
        inbox.send_many(range(700))
        ids = [json.loads(process.stdout.readline())["id"] for _ in range(1300)]
        assert ids == list(range(101, 1401))


@pytest.mark.parametrize("something_happens", [True, False], ids=["at the next event", "at once, if nothing happens"])
def test_it_ends_quietly_when_the_reader_goes_away(app: Holdfast, url: str, something_happens: bool) -> None:
    app.queue("inbox").send(1)
    with following(url) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        if something_happens:
            app.queue("inbox").send(2)
        eventually(lambda: process.poll() is not None, "it ends")
        assert process.returncode == 141 and process.stderr.read() == ""
        process.stdout = None  # it is closed: nothing to read at the end


def test_following_sleeps_while_nothing_happens(app: Holdfast, url: str) -> None:
    app.queue("inbox").send(1)
    with following(url, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = _cpu_seconds(process.pid)
        eventually(lambda: _age(process.pid) > 3, "three seconds")
        assert _cpu_seconds(process.pid) - before < 0.2


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _age(pid: int) -> float:
    """Seconds since the process began."""
    with open("/proc/uptime") as file:
        up = float(file.read().split()[0])
    return up - int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
