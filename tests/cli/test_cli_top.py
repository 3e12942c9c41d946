"""`holdfast top` on a terminal: the screen, its keys, and how it ends."""

import importlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Context, Holdfast
from holdfast.cli.top.state import TopState
from holdfast.clock import SECOND
from support.running_worker import PATIENCE_SECONDS, RunningWorker, eventually
from support.terminal_windows import Window
from support.transitions import claim_tasks, succeed

Run = Callable[..., Result]

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x08\u202e \x9b2J [red]red[/red] end"


def top(url: str, *args: str, **options: Any) -> Window:
    return Window("top", "--db", url, *args, **options)


@pytest.fixture
def failing(app: Holdfast) -> list[int]:
    """Two dead letters of one kind, on a queue of their own."""
    inbox = app.queue("inbox", max_attempts=1)
    ids = inbox.send_many([1, 2])
    for message in inbox.receive_many(2):
        message.fail("REJECTED:SPAM", "no")
    return ids


def row(lines: list[str], begin: str) -> list[str]:
    """The words of the line that begins so."""
    return next(line.split() for line in lines if line.lstrip().startswith(begin))


# --- what is seen ---


def test_one_screen_shows_everything(jobs: dict[str, int], url: str) -> None:
    with top(url) as window:
        lines = window.until("quit")
        assert lines[0].startswith("holdfast top") and lines[0].rstrip().endswith("UTC")
        assert "1 ready  1 running  1 scheduled  1 failed  1 cancelled  1 succeeded" in lines[1]
        assert "▁" in lines[2] and "/min done" in lines[2]
        assert row(lines, "mail")[:6] == ["mail", "·", "1", "1", "·", "1"]
        assert row(lines, str(jobs["running"]))[1:3] == ["send_mail", "mail"]
        assert row(lines, "INVALID_INPUT:VALUE")[1:4] == ["1", "send_mail", "mail"]
        assert all(len(line) <= 80 for line in lines)


def test_a_running_job_has_a_progress_bar_and_a_worker(app: Holdfast, url: str) -> None:
    go_on, reported = threading.Event(), threading.Event()

    @app.task
    def encode(ctx: Context) -> None:
        ctx.progress(0.5, "frame 12")
        reported.set()
        go_on.wait(PATIENCE_SECONDS)

    encode.enqueue()
    with RunningWorker(app, concurrency=3) as running, top(url, columns=120) as window:
        assert reported.wait(PATIENCE_SECONDS)
        lines = window.until("frame 12")
        assert "█████·····  50% frame 12" in "\n".join(lines)
        worker = row(lines, running.worker.id)
        assert worker[1:3] == ["alive", "1/3"] and str(os.getpid()) in worker
        go_on.set()
        window.until("frame 12", gone=True)


def test_the_screen_follows_commits(app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("No job is waiting")
        app.queue("newcomer").send(1)
        lines = window.until("newcomer")
        assert "1 ready" in lines[1]


@pytest.mark.parametrize(("columns", "rows"), [(200, 60), (80, 24), (60, 15), (40, 10), (20, 6), (10, 3), (1, 1)])
def test_the_screen_fits_any_terminal(
    jobs: dict[str, int], failing: list[int], app: Holdfast, url: str, columns: int, rows: int
) -> None:
    app.queue("a-queue-with-a-very-long-name-" * 5).send(1)
    app.queue("日本語のキュー" * 8).send(1)
    with top(url, columns=90, rows=30) as window:
        window.until("quit")
        window.resize(columns, rows)
        if columns > 10 and rows > 3:
            window.until("holdfast top")
        window.press("down", "down", "tab", "j")
        window.press("q")
        assert window.ended() == 0 and window.is_as_before


def test_the_screen_is_redrawn_on_resize(jobs: dict[str, int], url: str) -> None:
    with top(url, columns=80, rows=24) as window:
        assert window.until("quit")[23].startswith("q quit")
        window.resize(120, 40)
        assert window.until("quit")[39].startswith("q quit")
        window.resize(60, 12)
        assert window.until("quit")[11].startswith("q quit")


def test_the_selected_row_stays_visible(app: Holdfast, url: str) -> None:
    for number in range(60):
        app.queue(f"queue-{number:02}").send(1)
    with top(url, rows=12) as window:
        assert "+5" in "\n".join(window.until("queue-00"))
        window.press(*["down"] * 40)
        window.until("queue-40")
        window.press("G")
        window.until("queue-59")
        window.press("g")
        window.until("queue-00")


@pytest.mark.parametrize("columns", [80, 200])
def test_control_characters_in_names_are_escaped(jobs: dict[str, int], app: Holdfast, url: str, columns: int) -> None:
    with app.transaction() as tx:
        tx.execute(
            "UPDATE holdfast_jobs SET queue = :evil, task = :evil, worker = :evil, error_code = :evil,"
            " progress = 0.5, progress_text = :evil",
            {"evil": HOSTILE},
        )
        tx.execute("UPDATE holdfast_failures SET queue = :evil, task = :evil, error_code = :evil", {"evil": HOSTILE})
    with top(url, "--filter", "owned", columns=columns) as window:
        assert "\\x1b[2J" in "\n".join(window.until("quit"))
        for keys in (
            ["enter", "escape"],
            ["p", "n"],
            ["tab", "c", "n"],
            ["enter", "x"],
            ["tab", "r"],
            ["enter", "q"],
        ):
            window.press(*keys)
        assert window.ended() == 0


# --- keys ---


def test_the_help_key(app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("quit")
        window.press("?")
        assert "retry all failed jobs" in "\n".join(window.until("asks for confirmation"))
        window.press("x")
        window.until("asks for confirmation", gone=True)


def test_the_filter_matches_names(jobs: dict[str, int], url: str) -> None:
    with top(url) as window:
        window.until("inbox")
        window.press("/", "Z", "backspace", *"SEND")
        window.until("queue or task: SEND")
        assert window.display.shows_cursor
        window.press("enter")
        lines = window.until("filter: SEND")
        assert not any(line.startswith("inbox") for line in lines) and row(lines, "mail")
        assert not window.display.shows_cursor and "1 ready" not in lines[1]
        window.press("escape")
        window.until("inbox")
        window.press("/", *"nothing has this", "enter")
        window.until("No job is waiting")


def test_escape_keeps_the_filter(jobs: dict[str, int], url: str) -> None:
    with top(url, "--filter", "inbox") as window:
        window.until("filter: inbox")
        window.press("/", "clear", *"xyz")
        window.until("xyz")
        window.press("escape")
        window.until("xyz", gone=True)
        window.until("filter: inbox")


def test_a_failed_job_is_retried_after_confirmation(app: Holdfast, failing: list[int], url: str) -> None:
    with top(url) as window:
        window.until("REJECTED:SPAM")
        window.press("tab", "r")
        window.until(f"Retry job {failing[-1]} (message), which is failed?")
        window.press("n")
        window.until("Nothing was changed.")
        assert app.jobs.get(failing[-1]).status == "failed"
        window.press("r")
        window.until("Retry job")
        window.press("y")
        window.until(f"Job {failing[-1]} was retried.")
        assert [app.jobs.get(id).status for id in failing] == ["failed", "ready"]
        window.press("r")
        window.until("is ready now: nothing to retry")


def test_all_jobs_of_a_failure_are_retried(app: Holdfast, failing: list[int], url: str) -> None:
    with top(url, "--actor", "kim", "--reason", "mended") as window:
        window.until("REJECTED:SPAM")
        window.press("tab", "R")
        window.until("Retry 2 failed jobs of message on inbox with REJECTED:SPAM?")
        window.press("y")
        window.until("2 jobs retried.")
    assert {app.jobs.get(id).status for id in failing} == {"ready"}
    assert app.jobs.history(failing[0])[-1].actor == "kim"


def test_a_running_job_is_cancelled(jobs: dict[str, int], app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("INVALID_INPUT:VALUE")
        window.press("c")
        window.until("Select a job to cancel it.")
        window.press("tab", "r")
        window.until("is running: nothing to retry")
        window.press("c")
        window.until(f"Cancel job {jobs['running']} (send_mail), which is running?")
        window.press("y")
        window.until("was cancelled.")
    assert app.jobs.get(jobs["running"]).status == "cancelled"


def test_a_queue_is_paused_and_resumed(jobs: dict[str, int], app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("inbox")
        window.press("p")
        window.until("Pause the queue inbox?")
        window.press("y")
        window.until("inbox paused.")
        assert row(window.until("STATE"), "inbox")[-1] == "paused"
        assert app.queue("inbox").stats().paused
        window.press("p", "y")
        window.until("inbox resumed.")
    assert not app.queue("inbox").stats().paused


def test_the_details_of_a_failure(jobs: dict[str, int], url: str) -> None:
    with top(url) as window:
        window.until("INVALID_INPUT:VALUE")
        window.press("enter")
        window.until("Select a job or a failure")
        window.press("tab", "tab", "enter")
        text = "\n".join(window.until("Traceback (most recent call last)"))
        assert f"Job {jobs['failed']} (send_mail) failed" in text and "INVALID_INPUT:VALUE, 1 time" in text
        window.press("x")
        window.until("Traceback", gone=True)


# --- leaving ---


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (lambda window: window.press("q"), 0),
        (lambda window: window.press("\x03"), 130),
        (lambda window: window.process.send_signal(signal.SIGINT), 130),
        (lambda window: window.process.send_signal(signal.SIGTERM), 143),
        (lambda window: window.process.send_signal(signal.SIGHUP), 143),
    ],
    ids=["q", "Ctrl-C", "SIGINT", "SIGTERM", "SIGHUP"],
)
def test_the_terminal_is_restored_at_the_end(
    jobs: dict[str, int], url: str, leave: Callable[[Window], None], code: int
) -> None:
    with top(url) as window:
        window.until("quit")
        assert window.display.is_alternate and not window.is_as_before
        leave(window)
        assert window.ended() == code and window.is_as_before
        assert "Traceback" not in window.display.normal


def test_an_error_is_printed_on_the_normal_screen(app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("quit")
        with app.transaction() as tx:
            tx.execute("ALTER TABLE holdfast_failures RENAME TO gone")
        assert window.ended() == 3 and window.is_as_before
        assert "Error: " in window.display.normal


def test_ctrl_z_restores_the_terminal(jobs: dict[str, int], app: Holdfast, url: str) -> None:
    # As in an interactive shell: the kernel stops a process only if another one can continue it.
    with top(url, shell='set -m; "$@"; echo "it stopped"; read; fg >/dev/null') as window:
        window.until("quit")
        window.press("\x1a")
        eventually(lambda: window.read(0.05) or "it stopped" in window.display.normal)
        assert window.is_as_before
        window.press("enter")
        window.until("quit")
        app.queue("meanwhile").send(1)
        window.until("meanwhile")
        window.press("q")
        assert window.ended() == 0 and window.is_as_before


def test_without_a_terminal_stats_is_suggested(app: Holdfast, on: Run, start: Any, url: str) -> None:
    result = on("top")
    assert result.exit_code == 2 and "use holdfast stats" in result.stderr
    with top(url, TERM="dumb") as window:
        assert window.ended() == 2 and "use holdfast stats" in window.display.normal


def test_a_missing_database_is_reported_on_the_normal_screen(url: str) -> None:
    with top(url) as window:
        assert window.ended() == 3 and window.is_as_before and not window.display.flags.get("1049")


class IdleScreen:
    """A screen on which nobody presses a key for a minute, by a clock that goes on only while it waits for one."""

    signal, is_plain = None, False

    def __init__(self) -> None:
        self.seconds, self.draws = 0.0, 0

    def now(self) -> float:
        return self.seconds

    def size(self) -> tuple[int, int]:
        return 80, 24

    def draw(self, lines: list[Any], cursor: object = None) -> None:
        self.draws += 1

    def wake(self) -> None:
        """A commit; there is none."""

    def keys(self, timeout: float) -> list[str]:
        self.seconds += timeout
        return ["q"] if self.seconds > 60 or self.draws > 1000 else []


def test_an_idle_screen_is_drawn_each_second_and_read_every_five(
    jobs: dict[str, int], app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, screen, reads = importlib.import_module("holdfast.cli.top.top"), IdleScreen(), list[str]()
    read = module.read_data

    def read_data(app: Holdfast, pattern: str) -> Any:
        reads.append(pattern)
        return read(app, pattern)

    monkeypatch.setattr(module, "monotonic", screen.now)
    monkeypatch.setattr(module, "read_data", read_data)
    module._Top(app, screen, TopState(""), {}).run(read(app, ""))
    assert 50 < screen.draws <= 90 and 8 < len(reads) <= 13


def test_a_job_that_ends_leaves_the_list(jobs: dict[str, int], app: Holdfast, url: str) -> None:
    with top(url) as window:
        window.until("INVALID_INPUT")
        app.jobs.run_now(jobs["scheduled"])
        (claimed,) = claim_tasks(app.store, ["mail"], ["send_mail"], 1, 300 * SECOND, "worker-1")
        assert succeed(app.store, claimed.lease)
        window.until("2 succeeded")
