"""What the doctor and the health check read is bounded, by an index or a limit, however many rows there are."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_query_plans import plan, statement_of

import holdfast.store.sqlite
from holdfast import Holdfast
from machine_steps import machine_steps

FILE = Path(holdfast.store.sqlite.__file__).parent / "sql" / "examine.sql"
NAMES = re.findall(r"^-- name: (\w+)", FILE.read_text(encoding="utf-8"), re.MULTILINE)
REPAIRS = {"delete_leftovers", "forget_meta", "note_missed", "end_now"}


@pytest.fixture
def conn(app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    work = app.task(name="work")(lambda: None)
    ids = work.enqueue_many([{}] * 1000)
    work.using(after=ids).enqueue()
    work.using(delay=60).enqueue()
    with closing(sqlite3.connect(url)) as connection:
        yield connection


def test_no_question_walks_over_the_jobs_without_an_index(app: Holdfast, conn: sqlite3.Connection) -> None:
    walks = {
        name: [
            line for line in plan(conn, statement_of(app, name)) if re.match(r"SCAN holdfast_jobs(?! USING)", line)
        ]
        for name in NAMES
        if name not in REPAIRS
    }
    # The newest jobs, by the table itself, and no more than a thousand.
    newest = {"created_ahead", "wrong_unit", "ended_untimed"}
    assert {name for name, lines in walks.items() if lines} == newest
    assert all(":newest" in statement_of(app, name) for name in newest)


def steps(app: Holdfast, name: str) -> int:
    """Of SQLite's machine, which no other load changes."""
    values = {"window": 100, "most": 100, "newest": 100, "each": 50, "queues": None, "since": 0, "live": "[]"}
    values |= {"now": 2**62, "before": 0, "after": 2**62, "slack": 1, "dead": "[]", "prefix": "holdfast_"}  # type: ignore[dict-item]
    return machine_steps(app, [name], values, every=50)


@pytest.mark.parametrize("name", sorted(set(NAMES) - REPAIRS - {"schema_objects"}))
def test_ten_times_as_many_jobs_cost_no_more(app: Holdfast, name: str) -> None:
    work = app.task(name="work")(lambda: None)
    work.using(tags=["a"]).enqueue_many([{}] * 1000)
    short = steps(app, name)
    work.using(tags=["a"]).enqueue_many([{}] * 9000)
    assert steps(app, name) <= 2 * short + 2
