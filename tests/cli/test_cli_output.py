"""Output: tables that fit, colours only where wanted, control characters escaped."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.app.jobs import HistoryEntry
from holdfast.cli.commands.show import with_times
from holdfast.cli.output import Column, clean, clean_lines, fit, span

Run = Callable[..., Result]
Terminal = Callable[..., tuple[str, int]]

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# It clears the screen, sets the title, rings, goes back, turns the text round, begins a sequence in another way.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x08\r\n\u202e \x9b2J [red]red[/red] :smile: end"


def visible(text: str) -> str:
    return COLOUR.sub("", text)


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in visible(text))


# --- widths ---


@pytest.mark.parametrize("columns", [120, 80, 60, 40, 20])
def test_no_line_is_wider_than_the_terminal(
    jobs: dict[str, int], app: Holdfast, url: str, terminal: Terminal, columns: int
) -> None:
    app.queue("a-queue-with-a-name-that-is-longer-than-most-terminals-are-wide-" * 2).send(1)
    app.queue("日本語のキュー" * 8).send(1)
    for command in (["jobs"], ["queues"], ["show", "2"], ["explain", "2"]):
        seen, code = terminal(*command, "--db", url, columns=columns)
        assert code == 0
        wide = [line for line in visible(seen).splitlines() if len(line) > columns]
        assert wide == []


@pytest.mark.parametrize("columns", [80, 20])
def test_ids_are_never_cut(jobs: dict[str, int], url: str, terminal: Terminal, columns: int) -> None:
    seen, _ = terminal("jobs", "--db", url, columns=columns)
    ids = [int(line.split()[0]) for line in visible(seen).splitlines()[1:]]
    assert ids == sorted(jobs.values(), reverse=True)


def test_a_narrow_terminal_leaves_out_the_least_important_columns() -> None:
    columns = [Column("ID"), Column("TASK", least=4), Column("AGE", spare=2), Column("ERROR", least=5, spare=1)]
    natural = {0: 2, 1: 10, 2: 3, 3: 20}
    assert fit(columns, natural, 80) == natural
    assert sum(fit(columns, natural, 30).values()) == 30 - 6
    assert list(fit(columns, natural, 17)) == [0, 1, 3]
    assert list(fit(columns, natural, 9)) == [0, 1]
    assert fit(columns, natural, 5)[0] == 2


def test_empty_columns_are_left_out_on_a_terminal(app: Holdfast, url: str, terminal: Terminal) -> None:
    app.queue("inbox").send(1)
    seen, _ = terminal("jobs", "--db", url)
    assert visible(seen).split("\n")[0].split() == ["ID", "TASK", "QUEUE", "STATUS", "ATTEMPT", "AGE"]


# --- colours ---


def test_colours_on_a_terminal_only(jobs: dict[str, int], on: Run, url: str, terminal: Terminal) -> None:
    seen, _ = terminal("jobs", "--db", url)
    assert "\x1b[31mfailed" in seen
    assert "\x1b" not in on("jobs").stdout


def test_no_color_is_respected(jobs: dict[str, int], url: str, terminal: Terminal) -> None:
    seen, _ = terminal("jobs", "--db", url, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", seen)
    seen, _ = terminal("jobs", "--db", url, TERM="dumb")
    assert "\x1b" not in seen


def test_json_on_a_terminal_is_indented_and_has_no_colours(
    jobs: dict[str, int], url: str, terminal: Terminal
) -> None:
    seen, _ = terminal("queues", "--db", url, "--json")
    assert "\x1b" not in seen and '\n  "queues": [' in seen
    json.loads(seen)


# --- hostile texts ---


@pytest.fixture
def hostile(app: Holdfast) -> None:
    """A job with control characters in every text, by plain SQL where Holdfast would refuse them."""
    app.queue("inbox", max_attempts=1).send({"text": HOSTILE})
    message = app.queue("inbox").receive()
    assert message is not None and message.fail("TEST:HOSTILE", HOSTILE)
    with app.transaction() as tx:
        tx.execute(
            "UPDATE holdfast_jobs SET queue = :evil, task = :evil, key = :evil, worker = :evil,"
            " progress_text = :evil, error_code = :evil, tags = json_array(:evil)",
            {"evil": HOSTILE},
        )
        tx.execute(
            "UPDATE holdfast_events SET actor = :evil, event = :evil, fingerprint = 'f', error_detail = :evil",
            {"evil": HOSTILE},
        )
        tx.execute("INSERT INTO holdfast_tracebacks VALUES ('f', 'TEST', ?, 1, 1)", (f"line one\n{HOSTILE}",))


COMMANDS = [
    ["jobs"],
    ["jobs", "--args"],
    ["show", "1"],
    ["explain", "1"],
    ["explain", "1", "--json"],
    ["show", "1", "--traceback", "--args", "--result"],
    ["queues"],
    ["jobs", "--json"],
    ["show", "1", "--json", "--traceback", "--args"],
    ["queues", "--json"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_stored_control_characters_are_escaped(
    hostile: None, on: Run, url: str, terminal: Terminal, command: list[str]
) -> None:
    piped = on(*command)
    assert piped.exit_code == 0 and harmless(piped.stdout)
    seen, code = terminal(*command, "--db", url, columns=200)
    assert code == 0 and harmless(seen)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_markup_is_printed_literally(hostile: None, on: Run, command: list[str]) -> None:
    assert "[red]red[/red] :smile: end" in on(*command).stdout


def test_json_preserves_control_characters(hostile: None, on: Run) -> None:
    (job,) = json.loads(on("jobs", "--json").stdout)["jobs"]
    assert job["queue"] == HOSTILE


def test_control_characters_in_errors_are_escaped(app: Holdfast, on: Run) -> None:
    for result in (on("send", HOSTILE, "1"), on("send", "q", "1", "--key", HOSTILE), on("queues", "pause", HOSTILE)):
        assert result.exit_code == 2 and harmless(result.stderr)


def test_an_ascii_terminal_gets_escapes(app: Holdfast, start: Any, url: str) -> None:
    import os

    app.queue("日本").send(1)
    ended = start("jobs", "--db", url, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0 and "\\u65e5\\u672c" in ended.stdout


# --- words ---


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"), (0.00001, "<0.1ms"), (0.0004, "0.4ms"), (0.0123, "12ms"), (0.740258, "0.74s"), (0.25, "0.25s"),
        (3.999, "4s"), (9, "9s"), (9.96, "9s"), (12.9, "12s"), (60, "1m"), (200, "3m 20s"),
        (3600, "1h"), (7500, "2h 5m"), (3605, "1h"), (86_400 * 4 + 3700, "4d 1h"), (-5, "-5s"),
    ],
)  # fmt: skip
def test_durations_as_text(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_clean_text() -> None:
    assert clean("plain é 日本 🙂") == "plain é 日本 🙂"
    assert clean("a\x1b[2J\nb\ud800") == "a\\x1b[2J\\nb\\ud800"
    assert clean_lines("a\n\tb\x07") == "a\n    b\\x07"


def test_an_attempt_waits_from_its_due_time() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    def event(seconds: float, name: str, **detail: Any) -> HistoryEntry:
        return HistoryEntry(at(seconds), "event", name, 1, None, detail)

    def attempt(seconds: float, **detail: Any) -> HistoryEntry:
        return HistoryEntry(at(seconds), "attempt", "…", 1, None, detail)

    history = [
        event(0, "enqueued"),
        event(10, "promoted"),
        event(12, "claimed"),
        attempt(12, started_at=at(13), finished_at=at(16)),
        event(16, "retry_scheduled", run_at=at(20)),
        event(25, "promoted"),
        event(25, "claimed"),
        attempt(25, finished_at=at(26)),
        event(26, "recovered"),
        event(30, "claimed"),
        attempt(30),
    ]
    found = [(one.wait, one.run) for one in with_times(history) if one.entry.kind == "attempt"]
    assert found == [(2, 3), (5, 1), (4, None)]
