"""Query plans of pruning: candidates are found by an index."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from test_query_plans import is_scan, plan, statement_of

from holdfast import Holdfast
from support.finished_jobs import Ended

NAMES = [
    "finished_after",
    "delete_standalone_jobs",
    "members_of_chains",
    "waiters_of_chains",
    "blockers_of_jobs",
    "batch_done_times",
    "batches_of_callbacks",
    "batches_of_jobs",
    "delete_batches",
    "expired_batches",
    "expired_tracebacks",
    "chain_is_deletable",
    "chain_tail",
    "trim_events",
    "expired_audit",
    "delete_audit",
    "export_jobs",
    "export_attempts",
    "export_events",
    "export_blockers",
    "delete_jobs",
    "footprints",
    "callbacks_of_batches",
    "remaining_of_batches",
    "blob_references",
    "count_expired_audit",
]

SERVED_BY = {
    "finished_after": {"jobs_finished"},
    "members_of_chains": {"jobs_chain"},
    "waiters_of_chains": {"blockers_chain"},
    "batches_of_callbacks": {"batches_success", "batches_done"},
    "delete_batches": {"jobs_batch"},
    "expired_audit": {"events_audit"},
    "count_expired_audit": {"events_audit"},
    "callbacks_of_batches": {"batches_success", "batches_done"},
    "blob_references": {"jobs_args_blob", "jobs_result_blob"},
}


@pytest.fixture(params=["an empty database", "a full one", "one that was analysed"])
def conn(request: pytest.FixtureRequest, app: Holdfast, url: str) -> Iterator[sqlite3.Connection]:
    if request.param != "an empty database":
        ended = Ended(app)
        for status in ("succeeded", "failed", "cancelled"):
            for _ in range(50):
                ended.job(status)
        with app.batch(on_done=ended.task.s()) as batch:
            first = ended.task.using(batch=batch).enqueue()
        ended.task.using(after=first).enqueue_many([{}] * 50)
    if request.param == "one that was analysed":
        with closing(sqlite3.connect(url)) as connection:
            connection.execute("ANALYZE")
            connection.commit()
    with closing(sqlite3.connect(url)) as connection:
        yield connection


def test_no_statement_of_pruning_scans_a_table(app: Holdfast, conn: sqlite3.Connection) -> None:
    plans = {name: plan(conn, statement_of(app, name)) for name in NAMES}
    assert {name: lines for name, lines in plans.items() if any(is_scan(line) for line in lines)} == {}


def test_finished_jobs_are_read_in_the_order_of_an_index(app: Holdfast, conn: sqlite3.Connection) -> None:
    used = {
        name: set(re.findall(r"INDEX holdfast_(\w+)", str(plan(conn, statement_of(app, name))))) for name in SERVED_BY
    }
    assert used == SERVED_BY
    assert "TEMP B-TREE" not in str(plan(conn, statement_of(app, "finished_after")))


def test_the_folded_events_of_a_job_are_found_by_their_key(app: Holdfast, conn: sqlite3.Connection) -> None:
    for name in ("trim_events", "export_events", "export_attempts", "footprints", "delete_events_of_removed"):
        lines = plan(conn, statement_of(app, name))
        assert any("SEARCH block USING PRIMARY KEY (jobs=?)" in line for line in lines), lines


@pytest.mark.parametrize("table", ["minutes", "failure_minutes"])
def test_minutes_are_deleted_by_their_key(app: Holdfast, conn: sqlite3.Connection, table: str) -> None:
    lines = plan(conn, statement_of(app, f"delete_{table}"))
    assert any(f"SEARCH holdfast_{table} USING PRIMARY KEY (minute" in line for line in lines), lines
    old = str(plan(conn, statement_of(app, "expired_minutes")))
    assert f"SEARCH holdfast_{table} USING PRIMARY KEY (minute" in old and "TEMP B-TREE" not in old
