"""The floor: a bare psycopg loop that writes the same rows, in Holdfast's own tables without its triggers."""

import json
from time import perf_counter, time_ns
from typing import Any

import psycopg

from holdfast import Holdfast

from ..workload import BODY

BATCH = 100
CLAIM = """WITH taken AS MATERIALIZED (
    SELECT id FROM holdfast_jobs WHERE status = 'ready' AND queue = 'default' AND task = 'noop'
    ORDER BY priority DESC, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE holdfast_jobs AS job SET status = 'running', attempt = attempt + 1, worker = 'w', lease = %(now)s,
        claimed_at = %(now)s, updated_at = %(now)s, revision = revision + 1
    FROM taken WHERE job.id = taken.id RETURNING job.id, attempt, args, queue, task
), told AS (
    INSERT INTO holdfast_events (id, job_id, at, event, queue, task, old_status, new_status, attempt, actor)
    SELECT nextval('bare_events'), id, %(now)s, 'claimed', queue, task, 'ready', 'running', attempt, 'w' FROM changed
)
SELECT id, attempt, args FROM changed"""
SETTLE = """WITH done AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::bigint[]) AS done (id, attempt)
), changed AS (
    UPDATE holdfast_jobs AS job SET status = 'succeeded', finished_at = %(now)s, started_at = %(now)s, lease = NULL,
        updated_at = %(now)s, revision = revision + 1
    FROM done WHERE job.id = done.id AND job.attempt = done.attempt AND job.status = 'running'
    RETURNING job.id, job.attempt, queue, task, claimed_at
)
INSERT INTO holdfast_events (id, job_id, at, event, queue, task, old_status, new_status, attempt, actor, claimed_at,
                             started_at, waited, ran)
SELECT nextval('bare_events'), id, %(now)s, 'succeeded', queue, task, 'running', 'succeeded', attempt, 'w',
       claimed_at, %(now)s, 0, 0 FROM changed"""


def bare_drain(url: str, jobs: int) -> float:
    """Settle a batch and claim the next in one transaction, until nothing is left."""
    with psycopg.connect(url, autocommit=True) as connection:
        _prepare(url, connection)
        _copy(connection, jobs)
        connection.execute("ANALYZE")
        begin, done = perf_counter(), 0
        held: list[Any] = []
        while done < jobs:
            with connection.transaction():
                if held:
                    ids, attempts = [row[0] for row in held], [row[1] for row in held]
                    connection.execute(SETTLE, {"ids": ids, "attempts": attempts, "now": _now()})
                    done += len(held)
                held = connection.execute(CLAIM, {"limit": BATCH, "now": _now()}).fetchall()
            for row in held:
                json.loads(row[2])
        return jobs / (perf_counter() - begin)


def bare_copy(url: str, jobs: int) -> float:
    """COPY of jobs, and their events by one statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        _prepare(url, connection)
        begin = perf_counter()
        with connection.transaction():
            _copy(connection, jobs)
        return jobs / (perf_counter() - begin)


def _prepare(url: str, connection: psycopg.Connection[Any]) -> None:
    Holdfast(url).close()
    connection.execute("SET session_replication_role = replica")  # without triggers
    connection.execute("CREATE SEQUENCE bare_events CACHE 100")


def _copy(connection: psycopg.Connection[Any], jobs: int) -> None:
    body, now = json.dumps(BODY), _now()
    columns = "queue, task, args, status, run_at, created_at, transition"
    with connection.cursor().copy(f"COPY holdfast_jobs ({columns}) FROM STDIN") as copy:
        for _ in range(jobs):
            copy.write_row(("default", "noop", body, "ready", now, now, "enqueued"))
    connection.execute(
        "INSERT INTO holdfast_events (id, job_id, at, event, queue, task, new_status, attempt, actor) "
        "SELECT nextval('bare_events'), id, created_at, 'enqueued', queue, task, 'ready', 0, 'w' FROM holdfast_jobs"
    )


def _now() -> int:
    return time_ns() // 1000
