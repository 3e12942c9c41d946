"""Each query of the doctor reads a bounded number of rows, by an index or a limit, however many there are."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_query_plans import plan, statement_of

import holdfast.store.sqlite
from holdfast import Holdfast
from holdfast.store.sqlite.constraints import broken_rows
from holdfast.store.sqlite.diagnose import WINDOW
from support.statement_bench import machine_steps

FOLDER = Path(holdfast.store.sqlite.__file__).parent / "sql"
TEXT = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("doctor.sql", "doctor_samples.sql"))
NAMES = re.findall(r"^-- name: (\w+)", TEXT, re.MULTILINE)
ORPHANS = {"delete_orphaned_events", "delete_orphaned_tags", "delete_orphaned_blockers"}
REPAIRS = ORPHANS | {"delete_meta", "insert_missed_endings", "set_finished_now"}


@pytest.fixture
def conn(app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    work = app.task(name="work")(lambda: None)
    ids = work.enqueue_many([{}] * 1000)
    work.using(after=ids).enqueue()
    work.using(delay=60).enqueue()
    with closing(sqlite3.connect(url)) as connection:
        yield connection


def test_no_query_scans_the_jobs_without_an_index(app: Holdfast, conn: sqlite3.Connection) -> None:
    scans = {
        name: [
            line for line in plan(conn, statement_of(app, name)) if re.match(r"SCAN holdfast_jobs(?! USING)", line)
        ]
        for name in NAMES
        if name not in REPAIRS
    }
    # The newest jobs, by the table itself, and no more than a thousand.
    newest = {"created_in_future", "times_in_wrong_unit", "finished_without_time"}
    assert {name for name, lines in scans.items() if lines} == newest
    assert all(":newest" in statement_of(app, name) for name in newest)


def test_the_constraints_of_no_more_than_the_newest_rows_are_checked(app: Holdfast, conn: sqlite3.Connection) -> None:
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    broken_rows(conn, app.store.database.sql, "holdfast_", WINDOW)  # type: ignore[attr-defined]
    conn.set_trace_callback(None)
    assert any("FROM holdfast_jobs ORDER BY" in one for one in statements)
    for one in statements:
        assert one.endswith(f" LIMIT {WINDOW})")
        lines = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {one}").fetchall()]
        assert not [line for line in lines if "TEMP B-TREE" in line], one  # a sort would read all rows


def steps(app: Holdfast, name: str) -> int:
    """The steps of SQLite's virtual machine, which do not depend on the load."""
    values: dict[str, object] = dict.fromkeys(("window", "limit", "newest", "recent"), 100)
    values |= {"live_workers": "[]", "dead_workers": "[]", "prefix": "holdfast_", "tolerance": 1, "yesterday": 1}
    values |= dict.fromkeys(("expired_before", "late_before", "earliest"), 0) | dict.fromkeys(
        ("future", "far_future"), 2**62
    )
    return machine_steps(app, [name], values, every=50)


@pytest.mark.parametrize("name", sorted(set(NAMES) - REPAIRS - {"schema_objects"}))
def test_ten_times_as_many_jobs_cost_no_more(app: Holdfast, name: str) -> None:
    work = app.task(name="work")(lambda: None)
    work.using(tags=["a"]).enqueue_many([{}] * 1000)
    short = steps(app, name)
    work.using(tags=["a"]).enqueue_many([{}] * 9000)
    assert steps(app, name) <= 2 * short + 2
