"""`holdfast events`: the last events, events after a cursor, and following."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.model.stats import Event
from holdfast.observe import Observe
from holdfast.store.read import ReadJobs
from support.child_processes import command
from support.running_worker import PATIENCE_SECONDS, eventually

Run = Callable[..., Result]


def parsed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_line_shows_job_event_and_actor(jobs: dict[str, int], on: Run) -> None:
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


def test_json_is_one_object_per_line(jobs: dict[str, int], on: Run) -> None:
    found = parsed(on("events", "--json"))
    keys = {"id", "at", "job_id", "queue", "task", "event", "attempt", "actor", "detail"}
    assert [set(one) for one in found] == [keys] * 12
    assert [one["id"] for one in found] == sorted(one["id"] for one in found)
    assert found[-1]["task"] is None and found[-1]["queue"] == "inbox"


def test_the_default_limit_is_twenty_events(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send_many(range(50))
    assert [one["job_id"] for one in parsed(on("events", "--json"))] == list(range(31, 51))
    assert [one["job_id"] for one in parsed(on("events", "--limit", 3, "--json"))] == [48, 49, 50]


def test_a_cursor_continues_where_the_last_read_ended(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send_many(range(1200))
    first = on("events", "--after", 0, "--limit", 2)
    assert first.stderr == "Continue with --after 2\n"
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


def test_times_in_a_detail_are_readable(jobs: dict[str, int], on: Run, app: Holdfast) -> None:
    app.jobs.retry(jobs["failed"], delay=3600)
    (last,) = parsed(on("events", "--limit", 1, "--json"))
    assert last["event"] == "requeued" and last["detail"]["run_at"].endswith("Z")
    assert ", due 20" in on("events", "--limit", 1).stdout


def test_deleted_jobs_stay_in_the_log_without_their_task(app: Holdfast, on: Run) -> None:
    id = app.queue("inbox").send(1)
    app.jobs.delete(id)
    found = parsed(on("events", "--json"))
    assert found[-1]["event"] == "deleted" and found[-1]["job_id"] is None and found[-1]["task"] is None


def test_no_payload_is_in_the_log(jobs: dict[str, int], on: Run) -> None:
    for options in ([], ["--json"]):
        assert "example.org" not in on("events", *options).output


# --- filters ---


def test_filter_by_event_and_actor(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    app.queue("inbox").pause(actor="kim", reason="ticket 4711")
    app.queue("inbox").resume(actor="joe")

    def found(*options: str) -> list[tuple[str, str]]:
        return [(one["event"], one["actor"]) for one in parsed(on("events", *options, "--json"))]

    assert found("--event", "failed") == [("failed", "worker-1")]
    assert found("--actor", "joe") == [("cancelled", "joe"), ("resumed", "joe")]
    assert found("--event", "paused", "--event", "resumed") == [("paused", "kim"), ("resumed", "joe")]
    assert found("--event", "paused", "--actor", "joe", "--actor", "worker-1") == []
    assert found("--actor", "joe", "--limit", "1") == [("resumed", "joe")]
    assert found("--actor", "joe", "--after", "0", "--limit", "1") == [("cancelled", "joe")]
    assert found("--event", "claimed", "--job", str(jobs["failed"])) == [("claimed", "worker-1")]
    nothing = on("events", "--actor", "nobody")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "No matching events.\n")


def test_filter_by_task_and_queue(app: Holdfast, jobs: dict[str, int], on: Run) -> None:
    of_task = parsed(on("events", "--task", "send_mail", "--json"))
    assert {one["task"] for one in of_task} == {"send_mail"}
    assert len(of_task) == len([one for one in parsed(on("events", "--json")) if one["task"] == "send_mail"])
    failed = parsed(on("events", "--task", "send_mail", "--task", "other", "--event", "failed", "--json"))
    assert [one["job_id"] for one in failed] == [jobs["failed"]]
    app.queue("inbox").pause()
    app.queue("mail").pause()
    of_queue = parsed(on("events", "--queue", "inbox", "--json"))
    assert [one["event"] for one in of_queue] == ["enqueued", "paused"]
    assert on("events", "--queue", "nowhere").stderr == "No matching events.\n"


def test_an_unknown_event_is_refused_with_a_suggestion(app: Holdfast, on: Run) -> None:
    result = on("events", "--event", "faild")
    assert (result.exit_code, result.stderr) == (2, "Error: unknown event 'faild'; did you mean 'failed'?\n")
    assert "one of enqueued, unblocked" in on("events", "--event", "xyzzy").stderr


def test_the_cursor_is_after_all_scanned_events(app: Holdfast, on: Run) -> None:
    app.queue("inbox").pause()
    app.queue("inbox").send_many(range(1200))
    app.queue("inbox").resume()
    whole = on("events", "--event", "paused", "--after", 0)
    assert len(whole.stdout.splitlines()) == 1 and whole.stderr == "Continue with --after 1202\n"
    first = on("events", "--event", "enqueued", "--after", 0, "--limit", 700)
    assert len(first.stdout.splitlines()) == 700 and first.stderr == "Continue with --after 701\n"


def test_the_backward_search_is_limited_and_says_so(app: Holdfast, on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.commands.events.MAX_SCANNED", 2000)
    app.queue("inbox").pause()
    app.queue("inbox").send_many(range(1900))
    assert len(parsed(on("events", "--event", "paused", "--json"))) == 1
    app.queue("inbox").send_many(range(100))
    result = on("events", "--event", "paused")
    told = "Searched only the last 2,000 events: --after 0 searches all."
    assert (result.stdout, result.stderr) == ("", f"{told}\nNo matching events.\n")
    assert len(parsed(on("events", "--event", "paused", "--after", 0, "--json"))) == 1
    assert told not in on("events", "--event", "enqueued").stderr


def test_following_with_a_filter_reads_nothing_twice(app: Holdfast, on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    app.queue("inbox").send_many(range(1200))
    read: list[tuple[int, int]] = []
    look = Observe.events

    def spied(self: Observe, after: int = 0, limit: int = 100, job: int | None = None) -> list[Event]:
        found = look(self, after, limit, job)
        read.append((after, len(found)))
        return found

    def waited(self: ReadJobs, seen: int, timeout: float, *, until_due: bool = False) -> int:
        if len(read) > 4:
            raise KeyboardInterrupt
        app.queue("inbox").send(1)
        return 0

    monkeypatch.setattr(Observe, "events", spied)
    monkeypatch.setattr(ReadJobs, "wait_for_commit", waited)
    assert on("events", "--after", 0, "--follow", "--event", "paused").exit_code == 130
    assert read == [(0, 500), (500, 500), (1000, 200), (1200, 0), (1200, 1)]


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


def test_following_prints_new_events_until_ctrl_c(app: Holdfast, url: str) -> None:
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


def test_following_one_job_prints_only_its_events(app: Holdfast, url: str) -> None:
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
def test_following_ends_when_the_reader_closes_the_pipe(app: Holdfast, url: str, something_happens: bool) -> None:
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


def test_following_sleeps_while_nothing_happens(app: Holdfast, on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads once, and then waits for a commit: at most one more read for each time that a wait ends."""
    app.queue("inbox").send(1)
    steps, read = list[str](), Observe.events

    def spied(self: Observe, after: int = 0, limit: int = 100, job: int | None = None) -> list[Event]:
        steps.append("read")
        return read(self, after, limit, job)

    def waited(self: ReadJobs, seen: int, timeout: float, *, until_due: bool = False) -> int:
        steps.append("wait" if seen == self.commits_seen() and timeout >= 60 else f"wait for {timeout} s")
        if steps.count("wait") == 5:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(Observe, "events", spied)
    monkeypatch.setattr(ReadJobs, "wait_for_commit", waited)
    assert on("events", "--follow").exit_code == 130
    assert steps == ["read", "wait"] * 5
