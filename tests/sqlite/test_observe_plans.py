"""Whoever asks how it is doing reads little, however many jobs there are."""

import re
import sqlite3
from pathlib import Path

import pytest
from test_query_plans import conn, plan, statement_of  # noqa: F401  (one is a fixture)

import holdfast.store.sqlite
from holdfast import Holdfast
from machine_steps import machine_steps

SQL = Path(holdfast.store.sqlite.__file__).parent / "sql"
# Each has a row for a queue, a task, an error code or a bound, and none for a job.
SMALL = {"totals", "failures", "tallies", "queues", "sqlite_sequence"}
READS = [
    name
    for file in ("observe.sql", "tally.sql")
    for name, text in re.findall(r"-- name: (\w+)\n(.*?)(?=\n-- name|\Z)", (SQL / file).read_text(), re.DOTALL)
    if "INSERT" not in text
]


def walked(lines: list[str]) -> set[str]:
    """The tables, or the indexes, that are read from the beginning to the end."""
    scan = re.compile(r"SCAN (?:holdfast_)?(\w+)(?: USING (?:COVERING )?INDEX holdfast_(\w+))?")
    return {found[2] or found[1] for line in lines if (found := scan.match(line)) and "VIRTUAL" not in line}


@pytest.mark.parametrize("name", READS)
def test_no_question_walks_over_the_jobs_or_the_log(
    app: Holdfast,
    conn: sqlite3.Connection,  # noqa: F811
    name: str,
) -> None:
    lines = plan(conn, statement_of(app, name))
    tables = walked(lines) - SMALL
    # What runs has an index of its own. The others are made in the statement.
    assert tables - {"jobs_running", "placed", "places", "ends", "levels", "lately", "place"} == set(), lines


def test_every_question_was_looked_at() -> None:
    assert {
        "counts",
        "longest_ready",
        "longest_blocked",
        "longest_running",
        "rollup",
        "minutes",
        "events_after",
    } <= set(READS)
    assert {"tallies", "longest_due", "top_failures", "top_failures_since"} <= set(READS)


def test_the_first_that_is_ready_is_found_by_steps(app: Holdfast) -> None:
    """Not by a walk over all that are ready."""
    work = app.task(name="work")(lambda: None)
    app.queue("inbox").send_many(range(50))

    def steps() -> int:
        values = {"queue": None, "limit": -1, "each": 10, "most": 100}
        return machine_steps(app, ["counts", "longest_ready"], values, every=10)

    work.using(priority=5).enqueue_many([{}] * 10)
    work.enqueue_many([{}] * 10)
    few = steps()
    work.using(priority=5).enqueue_many([{}] * 5000)
    work.enqueue_many([{}] * 5000)
    assert steps() <= few + 5
