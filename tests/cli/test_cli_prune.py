"""`holdfast prune` and `holdfast vacuum`."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast, Retention
from support.finished_jobs import Ended

Data = Callable[..., Any]


Run = Callable[..., Result]


@pytest.fixture
def old(app: Holdfast) -> list[int]:
    """Jobs that ended 31 days ago, three of each kind, and one that ended now."""
    ended = Ended(app)
    ids = [ended.job(status) for status in ("succeeded", "failed", "cancelled") for _ in range(3)]
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_jobs SET finished_at = finished_at - 31 * 86400000000")
    ended.job("succeeded", task="ping", queue="net")
    return ids


def count(app: Holdfast) -> int:
    return app.jobs.count(status=["succeeded", "failed", "cancelled"])


def test_prune_applies_the_rules_and_reports(app: Holdfast, old: list[int], on: Run) -> None:
    result = on("prune", "--actor", "ada", "--reason", "tidy")
    assert result.exit_code == 0, result.output
    assert "6 jobs deleted: 3 succeeded, 3 cancelled." in result.stdout
    assert "\nRetention: succeeded 30d, failed 90d, cancelled 30d.\n" in result.stdout
    assert count(app) == 4
    event = app.observe.last_events(limit=1)[0]
    assert (event.event, event.actor, event.detail["reason"]) == ("pruned", "ada", "tidy")
    again = on("prune")
    assert (again.exit_code, "0 jobs" in again.stdout) == (0, True)


def test_a_dry_run_deletes_nothing(app: Holdfast, old: list[int], on: Run, data: Data) -> None:
    seen = on("prune", "--dry-run").stdout
    assert seen.startswith("6 jobs would be deleted: 3 succeeded, 3 cancelled.\nRULE ")
    assert re.search(r"^succeeded 30d +succeeded +default +work +3$", seen, re.MULTILINE)
    assert "Also: 3 attempts, 15 events." in seen
    found = data("prune", "-n")
    assert (found["action"], found["dry_run"], found["jobs"], found["failed"]) == ("prune", True, 6, 0)
    group = {"rule": "cancelled 30d", "status": "cancelled", "queue": "default", "task": "work", "jobs": 3}
    assert group in found["groups"] and (found["attempts"], found["events"], found["estimate"]) == (3, 15, None)
    assert count(app) == 10


def test_pruned_jobs_are_archived_first(app: Holdfast, old: list[int], on: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl.gz"
    result = on("prune", "--archive", file)
    assert "6 jobs written to the archive." in result.stdout
    with gzip.open(file, "rt") as lines:
        assert len({json.loads(line)["id"] for line in lines} & set(old)) == 6
    assert on("prune", "--archive", tmp_path / "jobs.txt").exit_code == 1


def test_an_empty_archive_path_is_refused_before_deleting(app: Holdfast, old: list[int], on: Run) -> None:
    result = on("prune", "--yes", "--archive", "", "--older-than", "0s")
    assert result.exit_code == 2 and "--archive must be the path of a file" in result.stderr
    assert count(app) == 10


def test_prune_uses_the_rules_of_the_app(open_app: Callable[..., Holdfast], on: Run, data: Data) -> None:
    app = open_app(retention=Retention(succeeded=None, failed=0))
    ended = Ended(app)
    app.worker(until_idle=True).run()
    ended.job("failed")
    ended.job("succeeded")
    assert data("prune")["failed"] == 1
    assert count(app) == 1


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--older-than", "30d"], 1),
        (["--older-than", "30d", "--status", "failed"], 7),
        (["--older-than", "0s", "--task", "ping"], 9),
        (["--older-than", "0s", "--queue", "net", "--task", "work"], 10),
        (["--keep", "2"], 6),
        (["--keep", "1", "--task", "work"], 4),
        (["--max-size", "1"], 0),
    ],
)
def test_options_replace_the_rules_for_one_run(
    app: Holdfast, old: list[int], on: Run, options: list[str], left: int
) -> None:
    result = on("prune", *options, "--yes")
    assert result.exit_code == 0, result.output
    assert "\nRules for this run: " in result.stdout and "Kept: " not in result.stdout
    assert count(app) == left


def test_other_rules_ask_for_confirmation(
    app: Holdfast, old: list[int], on: Run, url: str, terminal: Callable[..., tuple[str, int]]
) -> None:
    assert on("prune", "--older-than", "1d").exit_code == 2
    seen, code = terminal("prune", "--older-than", "1d", "--db", url, typed="n\n")
    assert "Delete 9 jobs" in seen and code == 1
    assert count(app) == 10
    seen, code = terminal("prune", "--older-than", "1d", "--db", url, typed="y\n")
    assert code == 0 and "9 jobs deleted" in seen
    assert count(app) == 1


def test_a_progress_bar_is_shown_and_removed(
    old: list[int], url: str, terminal: Callable[..., tuple[str, int]]
) -> None:
    seen, code = terminal("prune", "--db", url, columns=100)
    assert code == 0
    assert "Pruning" in seen and "6/6" in seen
    assert seen.rstrip().splitlines()[-1].endswith("30d.")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--queue", "mail"], "--status, --queue and --task require --older-than or --keep"),
        (["--status", "failed", "--dry-run"], "--status, --queue and --task require --older-than or --keep"),
        (["--older-than", "soon"], "must be a duration"),
        (["--keep", "-1"], "is not in the range"),
        (["--max-size", "1G", "--task", "ping"], "--max-size applies to the whole file"),
        (["--older-than", "1d", "--status", "ready"], "is not one of"),
        (["--keep", "5", "--status", "failed"], "--keep with --status requires --queue or --task"),
    ],
)
def test_invalid_combinations_are_refused(old: list[int], on: Run, options: list[str], complaint: str) -> None:
    result = on("prune", *options, "--yes")
    assert result.exit_code == 2, result.output
    assert "Error" in result.stderr and complaint in result.stderr


def test_help_documents_option_combinations(run: Run) -> None:
    said = " ".join(run("prune", "--help").stdout.split())
    assert "--status, --queue and --task require --older-than or --keep" in said
    assert "newest N jobs of each status" in said


def test_vacuum_returns_space(app: Holdfast, on: Run, data: Data) -> None:
    ended = Ended(app)
    for _ in range(100):
        ended.job("succeeded", payload="x" * 2000)
    app.prune(retention=Retention(succeeded=0))
    result = on("vacuum", "--actor", "ada", "--reason", "room")
    assert result.exit_code == 0 and "shrank from" in result.stdout, result.output
    assert app.observe.last_events(limit=1)[0].detail["reason"] == "room"
    found = data("vacuum", "--full")
    assert (found["action"], found["full"], found["free_bytes"]) == ("vacuum", True, 0)
    assert "No space to return" in on("vacuum").stdout


def test_vacuum_shows_progress_on_a_terminal(
    app: Holdfast, url: str, terminal: Callable[..., tuple[str, int]]
) -> None:
    app.queue("inbox").send("hello")
    for options, word in (([], "Vacuuming"), (["--full"], "Rewriting")):
        seen, code = terminal("vacuum", *options, "--db", url)
        assert code == 0 and word in seen, seen
