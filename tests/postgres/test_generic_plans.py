"""Query plans: what runs for every job is served by an index, whatever the planner believes about the tables.

The plans are generic: a prepared statement has one plan for all values. `make plans` does the same with 1,000,000
jobs.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.store.postgres.dialect import Handle, adapt
from support.postgres_backend import database_url

ROWS = int(os.environ.get("HOLDFAST_PLAN_ROWS", "20000"))
PAGES = 800  # read by a statement that finds a few rows
PAGES_PER_ROW = 60  # written or read by a statement for many rows
MANY = 400
NOW = 1_700_000_000_000_000
LATER = 2_700_000_000_000_000

FILL = """INSERT INTO plans_jobs
        (queue, task, status, run_at, created_at, finished_at, lease, worker, attempt, priority)
    SELECT 'q' || i % 5, CASE WHEN i % 7 > 0 THEN 't' || i % 7 END, status,
           CASE WHEN status = 'scheduled' THEN 2700000000000000 ELSE 1700000000000000 END, 1700000000000000,
           CASE WHEN status IN ('succeeded', 'failed') THEN 1700000000000000 + i END,
           CASE WHEN status = 'running' THEN 2700000000000000 END,
           CASE WHEN status = 'running' THEN 'w' || i % 10 END,
           CASE WHEN status = 'running' THEN 1 ELSE 0 END, i % 3
    FROM generate_series(1, ?) AS i CROSS JOIN LATERAL (SELECT ({status}] AS status) AS one"""
EVENTS = """INSERT INTO plans_events (id, job_id, at, event, queue, task, new_status)
    SELECT i, i, 1, 'enqueued', 'q', 't', 'ready' FROM generate_series(1, ?) AS i"""
MIXED = "ARRAY['succeeded', 'succeeded', 'ready', 'scheduled', 'failed', 'running'])[1 + (i / 35) % 6"
SHAPES = {
    "of all states": MIXED,
    "that have ended": "ARRAY['succeeded', 'failed', 'running'])[CASE WHEN i % 5000 = 0 THEN 3 ELSE 1 + i % 2 END",
    "that are ready": "ARRAY['ready', 'running'])[CASE WHEN i % 5000 = 0 THEN 2 ELSE 1 END",
}


@pytest.fixture(scope="module", params=[*SHAPES, "unanalyzed"])
def tables(request: pytest.FixtureRequest) -> Iterator[tuple[Holdfast, Handle]]:
    """An app beside many jobs, and a connection on which each statement has a generic plan."""
    with (
        psycopg.connect(database_url(), autocommit=True) as connection,
        Holdfast(database_url(), prefix="plans_") as app,
    ):
        adapt(connection)
        handle = Handle(connection)
        handle.execute("SET session_replication_role = replica")
        handle.execute(FILL.replace("{status}", SHAPES.get(request.param, MIXED)), (ROWS,))
        handle.execute(EVENTS, (ROWS,))
        if request.param != "unanalyzed":
            handle.execute("ANALYZE plans_jobs, plans_events")
        for setting in ("session_replication_role = origin", "plan_cache_mode = force_generic_plan", "jit = off"):
            handle.execute(f"SET {setting}")
        yield app, handle
        for (name,) in handle.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'plans\\_%' AND relkind IN ('r')"
        ):
            handle.execute(f"DROP TABLE {name} CASCADE")
        functions = "SELECT oid::regprocedure FROM pg_proc WHERE proname LIKE 'plans\\_%' AND oid > 16384"
        for (name,) in handle.execute(functions).fetchall():
            handle.execute(f"DROP FUNCTION IF EXISTS {name} CASCADE")


CLAIM = {"limit": 50, "worker": "w", "lease": LATER, "now": NOW}
TIMES = {"now": NOW, "boot_now": NOW}
SETTLE = {"id": 7, "attempt": 1, "queue": None, "now": NOW, "clock": NOW, "run_at": NOW, "started_at": NOW}
SETTLE |= {"error_code": "X", "error_detail": "", "fingerprint": None, "progress": None, "progress_text": None}
PAIRS = json.dumps([(f"q{i % 5}", f"t{1 + i % 6}", 0) for i in range(30)])
PLACES = json.dumps([(f"q{i % 5}", f"t{1 + i % 6}", 1, 0) for i in range(30)])
LEVELS = json.dumps([(f"q{i % 5}", f"t{1 + i % 6}") for i in range(30)])
IDS = [*range(1, MANY + 1)]

HOT: dict[str, tuple[Any, int]] = {
    # The values, and how many rows it writes or reads at most.
    "claim_task": ({**CLAIM, "queue": "q1", "task": "t1"}, 50),
    "claim_tasks": ({**CLAIM, "pairs": PAIRS, "each": 50}, 110 * 30),
    "claim_readable": ({**CLAIM, "pairs": PAIRS, "each": 50, "skip": "[]", "scanned": 200}, 200 * 30),
    "claim_place": ({**CLAIM, "queue": "q1", "task": "t1", "priority": 1, "after": 0}, 50),
    "claim_places": ({**CLAIM, "places": PLACES, "each": 50}, 110 * 30),
    "claim_one": ({**CLAIM, "id": 70}, 1),
    "claim_messages": (("w", LATER, NOW, "q1", 10), 10),
    "claim_next_message": (("w", LATER, NOW, "q1", NOW), 1),
    "peek_messages": ((NOW, NOW, "q1"), 0),
    "ready_pairs": ({**TIMES, "queue": "", "task": "", "most": 129}, 0),
    "ready_pairs_in": ({**TIMES, "queues": json.dumps(["q1", "q2"])}, 0),
    "ready_places": ({**TIMES, "since": -1, "most": 65}, 0),
    "ready_places_in": ({**TIMES, "since": -1, "most": 65, "queues": json.dumps(["q1", "q2"])}, 0),
    "newest_versions": ({"pairs": PAIRS}, 0),
    "succeed": ((NOW, None, 7, 1, None, NOW, None, None), 1),
    "succeed_many": ((json.dumps([(id, 1, None, NOW, NOW) for id in IDS]),), MANY),
    "succeed_without_history": ((7, 1, None), 1),
    "unsettled": ((json.dumps([(id, 1) for id in IDS]),), MANY),
    "continue_many": ((json.dumps([(id, 1, None, NOW, NOW, None, None) for id in IDS]),), MANY),
    "renew": ((json.dumps([(id, 1, None, NOW, None, None) for id in IDS]), LATER, NOW), MANY),
    "held": ((json.dumps([(id, 1, None) for id in IDS]),), MANY),
    **dict.fromkeys(("fail", "retry", "release", "snooze", "interrupt", "give_back"), (SETTLE, 1)),
    "stop": ({**SETTLE, "reason": ""}, 1),
    "promote": ({"now": NOW, "actor": "a", "limit": 100}, 100),
    "recover": ({**TIMES, "actor": "a", "limit": 100}, 100),
    "recover_spent": ({**TIMES, "actor": "a", "limit": 100}, 100),
    "next_due": ({"since": NOW - 1, "until": NOW}, 0),
    "awaited": ({"queues": '["q1"]', "most": 10, "jobs": json.dumps(IDS), "chains": "[]", "batches": "[]"}, MANY),
    "find_live_key": ({"task": "t", "key": "k", "queue": "q"}, 0),
    "find_finished_key": ({"task": "t", "key": "k", "queue": "q", "since": 0}, 0),
    "is_blob_in_use": (("0" * 64,), 0),
    "events_after": ({"after": ROWS // 2, "limit": 100}, 100),
    "events_of_job_after": ({"job": 7, "after": 0, "limit": 100}, 0),
    "last_event_to_fold": ({"after": ROWS // 2, "limit": 100}, 100),
    "longest_ready": ({"places": LEVELS, "most": 100, "each": 10, "limit": 10}, 30 * 3 * 10),
    "longest_blocked": ({"places": LEVELS, "limit": 10}, 30),
}


@pytest.mark.parametrize("name", HOT)
def test_the_plan_uses_indexes(tables: tuple[Holdfast, Handle], name: str) -> None:
    app, handle = tables
    values, rows = HOT[name]
    statement = getattr(app.store.database.sql, name).replace("{columns}", "id")  # type: ignore[attr-defined]
    if not isinstance(values, tuple):
        values = {key: value for key, value in values.items() if f":{key}" in statement}
    handle.execute("BEGIN")
    plan = [row[0] for row in handle.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", values).fetchall()]
    handle.execute("ROLLBACK")
    told = "\n".join(plan)
    if rows < MANY or ROWS >= 100_000:  # for many rows the planner may well read a table that is small
        assert not re.search(r"Seq Scan on plans_(jobs|events)", told), told
        removed = [int(found) for found in re.findall(r"Rows Removed by (?:Join )?Filter: (\d+)", told)]
        assert max(removed, default=0) <= max(1000, 2 * rows), told
    pages = sum(map(int, re.findall(r"shared hit=(\d+)", plan[1])), sum(map(int, re.findall(r"read=(\d+)", plan[1]))))
    assert pages <= PAGES + PAGES_PER_ROW * rows, told
