"""`holdfast stats`: five sections on one screen."""

import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.cli.output import percent, share_lines, short
from holdfast.cli.top.terminal import Keys
from holdfast.cli.top.view import bar, sparkline, window
from holdfast.model.stats import TaskAttempts
from holdfast.text import size
from support.running_worker import PATIENCE_SECONDS, RunningWorker, drain
from support.transitions import fold_all

Run = Callable[..., Result]
Data = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def troubled(app: Holdfast) -> Holdfast:
    """One task keeps failing, another fails once."""
    tried: list[int] = []

    @app.task(queue="media", max_attempts=3, retry=0)
    def poll() -> None:
        raise TimeoutError("no answer")

    @app.task(queue="mail", max_attempts=3, retry=0)
    def send_mail(n: int) -> None:
        tried.append(n)
        if n == 1 and tried.count(1) == 1:
            raise ConnectionError("refused")

    poll.enqueue_many([{}] * 4)
    send_mail.enqueue_many([{"n": n} for n in range(40)])
    drain(app)
    return app


def sections(text: str) -> dict[str, str]:
    """Return each section by its number."""
    return {part[0]: part for part in re.split(r"^(?=[1-5]  [A-Z])", text, flags=re.MULTILINE)[1:]}


def test_the_five_sections_as_plain_text(troubled: Holdfast, on: Run) -> None:
    troubled.queue("inbox").send(1)
    result = on("stats")
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    found = sections(result.stdout)
    assert list(found) == ["1", "2", "3", "4", "5"]
    assert "1 ready, 4 failed, 40 succeeded" in found["1"]
    assert re.search(r"^media +poll +0 +0 +0 +0 +4 +0 +0$", found["1"], re.MULTILINE)
    assert "no worker is alive" in found["2"] and re.search(r"message +inbox +ready", found["2"])
    assert "poll keeps failing, 44 jobs finished in the last 1h" in found["3"]
    assert re.search(r"^poll +media +4 +0% +0% +100% +8 +4 +100%", found["3"], re.MULTILINE)
    assert re.search(r"^send_mail +mail +40 +98% +2% +0% +1 +0 +2%", found["3"], re.MULTILINE)
    assert "13 failed attempts, 2 distinct errors" in found["4"]
    assert re.search(r"^TIMEOUT:OPERATION +12 +poll +media +\d+s ago +\d+s ago +\d+$", found["4"], re.MULTILINE)
    assert "database " in found["5"] and "disk free " in found["5"]


def test_the_storage_section_shows_retention_and_pruning(troubled: Holdfast, on: Run, data: Data) -> None:
    found = " ".join(sections(on("stats").stdout)["5"].split())
    assert "retention: succeeded 30d, failed 90d, cancelled 30d" in found
    assert re.search(r"next to prune: job \d+, in (30d|29d 23h)", found)
    kept = data("stats")["retention"]
    assert (kept["due"], kept["automatic"]) == (0, True) and kept["next_at"] > "2020"
    first = min(job.id for job in troubled.jobs.list(status="succeeded"))
    aged = "UPDATE holdfast_jobs SET finished_at = finished_at - 2678400000000 WHERE status = 'succeeded' AND id <= ?"
    with troubled.transaction() as tx:
        tx.execute(aged, (first,))
    assert "due for pruning: 1 job;" in " ".join(sections(on("stats").stdout)["5"].split())
    with troubled.transaction() as tx:
        tx.execute(aged, (10_000,))
    assert "due for pruning: 40 jobs;" in " ".join(sections(on("stats").stdout)["5"].split())
    troubled.prune()
    again = " ".join(sections(on("stats").stdout)["5"].split())
    assert "last pruned" in again and "40 jobs" in again


def test_the_oldest_running_job_is_shown_with_its_worker(app: Holdfast, on: Run, data: Data) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    app.queue("inbox").send(1)
    job = stuck.enqueue()
    with RunningWorker(app) as running:
        assert begun.wait(PATIENCE_SECONDS)
        text, found = sections(on("stats").stdout)["2"], data("stats")
        go_on.set()
    line = text.splitlines()[2]  # running jobs come first, even before older waiting ones
    assert line.split()[:4] == [str(job.id), "stuck", "default", "running"] and running.worker.id in line
    assert "1 worker alive" in text
    worker = next(one["worker"] for one in found["oldest"] if one["job_id"] == job.id)
    assert worker["id"] == running.worker.id and {"pid", "host", "heartbeat_at"} <= worker.keys()


def test_json_has_all_sections(troubled: Holdfast, data: Data) -> None:
    found = data("stats")
    assert list(found) == [
        "at", "since", "total", "by_status", "counts", "oldest", "attempts", "failures", "workers", "latency",
        "storage", "retention",
    ]  # fmt: skip
    assert found["by_status"] == {"failed": 4, "succeeded": 40} and found["total"] == 44
    assert {"status": "failed", "queue": "media", "task": "poll", "count": 4} in found["counts"]
    worst = found["attempts"][0]
    assert (worst["task"], worst["keeps_failing"], worst["by_attempt"]) == ("poll", True, {"3": 4})
    assert "TimeoutError: no answer" in found["failures"][0]["traceback"]
    assert found["storage"]["database_bytes"] > 0
    assert {one["task"] for one in found["latency"]} == {"poll", "send_mail"}


def test_since_limits_attempts_and_failures(troubled: Holdfast, on: Run, data: Data) -> None:
    fold_all(troubled)
    with troubled.transaction() as tx:
        tx.execute("UPDATE holdfast_failure_minutes SET minute = minute - 120")
    assert len(data("stats", "--since", "1d")["failures"]) == 2
    found = data("stats", "--since", "1h")
    assert found["failures"] == [] and found["since"] == 3600 and found["total"] == 44
    assert "Failures: none" in on("stats", "--since", "1h").stdout
    assert "in the last 15m" in on("stats", "--since", "15m").stdout


def test_an_empty_database_has_five_sections(app: Holdfast, on: Run, data: Data) -> None:
    found = sections(on("stats").stdout)
    assert "Jobs: none" in found["1"] and "no worker is alive" in found["2"] and "Failures: none" in found["4"]
    assert data("stats")["total"] == 0


@pytest.mark.parametrize("columns", [120, 80, 60, 40])
def test_no_line_is_wider_than_the_terminal(troubled: Holdfast, url: str, terminal: Terminal, columns: int) -> None:
    for number in range(30):
        troubled.queue(f"a-queue-with-a-long-name-{number}").send(1)
    for command in (["stats"], ["events"], ["failures"], ["workers", "--all"]):
        seen, code = terminal(*command, "--db", url, columns=columns)
        assert code == 0
        lines = COLOUR.sub("", seen).splitlines()
        assert [line for line in lines if len(line) > columns] == []
        assert len(lines) <= 40  # the terminal has so many


def test_limit_sets_the_rows_per_table(troubled: Holdfast, on: Run) -> None:
    for number in range(30):
        troubled.queue(f"queue-{number}").send(1)
    text = on("stats", "--limit", 2).stdout
    assert "… and 30 more rows" in text
    assert "… and" not in on("stats", "--limit", 100).stdout


HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x08\r\n\u202e \x9b2J [red]red[/red] end"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("name", ["stats", "failures", "workers", "events"])
def test_stored_control_characters_are_escaped(
    troubled: Holdfast, on: Run, url: str, terminal: Terminal, name: str, options: list[str]
) -> None:
    fold_all(troubled)
    with troubled.transaction() as tx:
        tx.execute("UPDATE holdfast_jobs SET queue = :evil, task = :evil, error_code = :evil", {"evil": HOSTILE})
        tx.execute("UPDATE holdfast_failures SET task = :evil WHERE queue = 'mail'", {"evil": HOSTILE})
        tx.execute("UPDATE holdfast_events SET actor = :evil, event = :evil", {"evil": HOSTILE})
        tx.execute("UPDATE holdfast_workers SET host = :evil", {"evil": HOSTILE})
    args = [name, *options, *(["--all"] if name == "workers" else [])]
    piped = on(*args)
    assert piped.exit_code == 0 and "[red]red[/red] end" in piped.stdout
    seen, code = terminal(*args, "--db", url, columns=250)
    assert code == 0
    for text in (piped.stdout, COLOUR.sub("", seen)):
        assert all(character.isprintable() or character == "\n" for character in text)


# --- small parts ---


def test_a_task_keeps_failing_if_half_of_its_attempts_fail() -> None:
    def of(succeeded: int, retried: int, failed: int) -> TaskAttempts:
        return TaskAttempts("q", "t", {1: succeeded + failed}, succeeded, retried, failed)

    assert of(0, 4, 1).keeps_failing and of(5, 3, 2).keeps_failing
    assert not of(0, 3, 1).keeps_failing and not of(100, 20, 3).keeps_failing


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 99_999, 123_456, 999_600, 1_240_000, 25_000_000)] == [
        "0", "99,999", "123k", "1.0M", "1.2M", "25M",
    ]  # fmt: skip
    assert [size(n) for n in (0, 512, 4096, 18_800_000, 2**40)] == [
        "0 bytes",
        "512 bytes",
        "4.0 KiB",
        "17.9 MiB",
        "1.0 TiB",
    ]
    assert [percent(n, 1000) for n in (0, 1, 500, 999, 1000)] == ["0%", "<1%", "50%", ">99%", "100%"]


def test_sparklines_and_bars() -> None:
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█" and sparkline([0, 0]) == "▁▁" and sparkline([]) == ""
    assert sparkline([0, 100], plain=True) == "_#"
    assert bar(0.5, 4) == "██··" and bar(0, 2) == "··" and bar(2, 2) == "██" and bar(0.5, 4, plain=True) == "##.."
    assert [len(bar(n / 100, 10)) for n in range(101)] == [10] * 101


def test_screen_lines_are_divided_in_turn() -> None:
    assert (
        share_lines(10, [2, 20, 20]) == [2, 4, 4]
        and share_lines(100, [1, 2]) == [1, 2]
        and share_lines(0, [3]) == [0]
    )
    assert list(window(100, 5, 50)) == [48, 49, 50, 51, 52] and list(window(3, 5, None)) == [0, 1, 2]
    assert window(100, 5, 99)[-1] == 99 and window(100, 5, 0)[0] == 0


def test_split_key_sequences_are_joined() -> None:
    keys = Keys()
    assert keys.feed(b"q\x1b[A\x1b[6~jk\r") == ["q", "up", "page-down", "j", "k", "enter"]
    assert keys.feed(b"\x1b") == [] and keys.is_waiting and keys.feed(b"[") == [] and keys.feed(b"B") == ["down"]
    assert keys.feed(b"\x1b") == [] and keys.flush() == ["escape"] and keys.flush() == []
    assert keys.feed("é".encode()[:1]) == [] and keys.feed("é".encode()[1:]) == ["é"]
    assert keys.feed(b"\x1b[1;5Cx\x1b[200~\x00\x01") == ["x"]  # what is not known is nothing
    assert keys.feed(b"\x1bx") == ["escape", "x"]


def test_json_of_stats_is_one_document(troubled: Holdfast, on: Run) -> None:
    before = datetime.now(UTC)
    (line,) = on("stats", "--json").stdout.splitlines()
    at = datetime.fromisoformat(json.loads(line)["at"])
    assert before - timedelta(seconds=1) < at < datetime.now(UTC) + timedelta(seconds=1)
