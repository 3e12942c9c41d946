"""What explains a job and draws what is around it reads a bounded part of an index, however many rows there are."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from test_query_plans import plan, statement_of

import holdfast.store.sqlite
from holdfast import Holdfast
from support.statement_bench import machine_steps

FILE = Path(holdfast.store.sqlite.__file__).parent / "sql" / "explain.sql"
NAMES = re.findall(r"^-- name: (\w+)", FILE.read_text(encoding="utf-8"), re.MULTILINE)
SCANS = {
    "job_details": r"SCAN holdfast_endings",  # to see whether there is one
}


@pytest.fixture
def fill(app: Holdfast) -> Callable[[], None]:
    def rows() -> None:
        work = app.task(name="work")(lambda: None)
        ids = work.enqueue_many([{}] * 1000)
        work.using(after=ids).enqueue()
        for _ in range(300):
            work.using(after=ids[0]).enqueue()
        app.queue("inbox").send_many(range(300))

    return rows


def test_no_table_that_grows_is_walked_over(app: Holdfast, conn: sqlite3.Connection) -> None:
    scans = {
        name: [line for line in plan(conn, statement_of(app, name)) if re.match(r"SCAN (holdfast_|last|job\b)", line)]
        for name in NAMES
    }
    assert {name: lines for name, lines in scans.items() if lines and name not in SCANS} == {}
    for name, expected in SCANS.items():
        assert all(re.match(expected, line) for line in scans[name]), scans[name]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("blockers", "jobs_chain"),
        ("indirect_blockers", "jobs_chain"),
        ("chain", "jobs_chain"),
        ("waiting_for", "blockers_chain"),
        ("ready_of_higher_priority", "jobs_ready"),
        ("ready_before", "jobs_ready"),
        ("all_ready", "jobs_ready"),
    ],
)
def test_each_is_served_by_its_index(app: Holdfast, conn: sqlite3.Connection, name: str, index: str) -> None:
    assert f"INDEX holdfast_{index} " in " ".join(plan(conn, statement_of(app, name)))


def test_who_waits_is_not_sorted_before_it_is_cut(app: Holdfast, conn: sqlite3.Connection) -> None:
    lines = plan(conn, statement_of(app, "waiting_for"))
    assert "TEMP B-TREE" not in " ".join(lines[: lines.index("SCAN found")])


def test_a_long_queue_costs_no_more_than_a_short_one(app: Holdfast) -> None:
    """By the number of steps of SQLite's machine, which no other load changes."""
    work = app.task(name="work")(lambda: None)
    work.enqueue_many([{}] * 2000)
    short = steps_of(app, 2000)
    work.enqueue_many([{}] * 20_000)
    assert steps_of(app, 22_000) < 2 * short


def steps_of(app: Holdfast, job_id: int) -> int:
    job = app.store.jobs.get(job_id)
    assert job is not None
    assert app.store.workflows.count_ahead(job, None, ["work"], 1001) == 1001
    values = {"queue": "default", "task": "work", "priority": 0, "id": job_id, "limit": 1001}
    return machine_steps(app, ["ready_of_higher_priority", "ready_before", "all_ready"], values, every=100)
