"""Query plans of statistics: each reads little, however many jobs there are."""

import re
import sqlite3
from pathlib import Path

import pytest
from test_query_plans import plan, statement_of

import holdfast.store.sqlite
from holdfast import Holdfast
from support.statement_bench import machine_steps
from support.transitions import fold_all

SQL = Path(holdfast.store.sqlite.__file__).parent / "sql"
# Each has a row for a queue, a task, a state, an error code or a bucket, and none for a job.
SMALL = {"counts", "zones", "totals", "failures", "error_totals", "fold", "queues", "sqlite_sequence"}
WRITES = re.compile(r"^(INSERT|UPDATE|DELETE)", re.MULTILINE)
READS = [
    name
    for file in ("observe.sql", "statistics.sql")
    for name, text in re.findall(r"-- name: (\w+)\n(.*?)(?=\n-- name|\Z)", (SQL / file).read_text(), re.DOTALL)
    if not WRITES.search(text)
]
# Used by the doctor, with a time limit.
BY_TIME = {"recounted"}


def walked(lines: list[str]) -> set[str]:
    """Return the tables or indexes that are scanned."""
    scan = re.compile(r"SCAN (?:holdfast_)?(\w+)(?: USING (?:COVERING )?INDEX holdfast_(\w+))?")
    return {found[2] or found[1] for line in lines if (found := scan.match(line)) and "VIRTUAL" not in line}


@pytest.mark.parametrize("name", sorted(set(READS) - BY_TIME))
def test_no_statement_scans_the_jobs_or_the_log(
    app: Holdfast,
    conn: sqlite3.Connection,
    name: str,
) -> None:
    lines = plan(conn, statement_of(app, name))
    tables = walked(lines) - SMALL
    # Running jobs and jobs without history have their own indexes, read up to a limit.
    bounded = {"jobs_running", "jobs_unlogged"}
    assert not tables & bounded or ":most" in statement_of(app, name)
    # The others are common table expressions, and a view whose own tables are in the plan as well.
    made = {"parts", "places", "ends", "levels", "recent", "place", "queues", "tasks", "subquery", "events_by_job"}
    assert {one for one in tables if not one.isdigit()} - bounded - made == set(), lines


def test_all_statements_are_covered() -> None:
    assert {
        "longest_ready",
        "longest_blocked",
        "longest_due",
        "longest_running",
        "events_after",
        "last_events",
    } <= set(READS)
    assert {"folded_counts", "folded_minutes", "folded_totals", "folded_failures", "unlogged_counts"} <= set(READS)
    assert {"event_groups", "event_failures", "fold_position", "removed_jobs", "folded_failures_since"} <= set(READS)


def test_the_oldest_ready_job_is_found_by_index_seeks(app: Holdfast) -> None:
    """Not by a scan of all ready jobs."""
    work = app.task(name="work")(lambda: None)
    app.queue("inbox").send_many(range(50))

    def steps() -> int:
        values = {"places": '[["default", "work"], ["inbox", ""]]', "limit": -1, "each": 10, "most": 100}
        return machine_steps(app, ["longest_ready"], values, every=10)

    work.using(priority=5).enqueue_many([{}] * 10)
    work.enqueue_many([{}] * 10)
    few = steps()
    work.using(priority=5).enqueue_many([{}] * 5000)
    work.enqueue_many([{}] * 5000)
    assert steps() <= few + 5


def test_queues_without_history_are_found_by_index_seeks(app: Holdfast) -> None:
    fast = app.queue("fast", history=False)
    fast.send_many(range(10))
    app.queue("faster", history=False).send_many(range(10))
    few = machine_steps(app, ["unlogged_pairs"], {"queue": ""}, every=10)
    fast.send_many(range(5000))
    assert machine_steps(app, ["unlogged_pairs"], {"queue": ""}, every=10) <= few + 5


def test_folded_events_are_not_read_again(app: Holdfast) -> None:
    """A read costs as much as there are new events, not as there are events in total."""
    inbox = app.queue("inbox")

    def steps() -> int:
        ((cursor, _, last, *_),) = app.store.database.rows(statement_of(app, "fold_position"))  # type: ignore[attr-defined]
        names = ["fold_position", "folded_counts", "folded_totals", "event_groups", "event_failures"]
        return machine_steps(app, names, {"queue": None, "after": cursor, "upto": last}, every=10)

    for number in (50, 10_000):
        inbox.send_many(range(number))
        fold_all(app)
        inbox.send_many(range(20))
        if number == 50:
            few = steps()
            fold_all(app)
    assert steps() <= few + 5
