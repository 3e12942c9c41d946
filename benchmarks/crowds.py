"""Database files with a great many rows in one state, made by plain SQL in seconds."""

import sqlite3
import time
from pathlib import Path
from typing import Literal

from holdfast import Holdfast

State = Literal["ready", "scheduled", "failed", "running"]

DAY = 24 * 3600 * 1_000_000

# Beside the rows that are asked for lies nothing else. The events are written by the triggers, as ever.
_JOBS = """
WITH RECURSIVE crowd (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM crowd WHERE i < :count)
INSERT INTO holdfast_jobs (queue, args, status, run_at, created_at, attempt, max_attempts, worker, lease,
                           claimed_at, finished_at, error_code, error_detail, actor)
SELECT 'inbox', '{"to":"ada@example.org","subject":"your order has shipped","number":' || i || '}', :status,
       :now + CASE :status WHEN 'scheduled' THEN :day + i ELSE 0 END, :now,
       CASE :status WHEN 'running' THEN 1 WHEN 'failed' THEN 3 ELSE 0 END, 3,
       CASE :status WHEN 'running' THEN 'another' END,
       CASE :status WHEN 'running' THEN :boot_now + :day + i END,
       CASE WHEN :status IN ('running', 'failed') THEN :now END,
       CASE :status WHEN 'failed' THEN :now + i END,
       CASE :status WHEN 'failed' THEN 'DEPENDENCY:MAIL' END,
       CASE :status WHEN 'failed' THEN 'the mail server did not answer' END,
       'bench'
FROM crowd
"""

_ATTEMPTS = """
INSERT INTO holdfast_attempts (job_id, attempt, worker, claimed_at, started_at)
SELECT id, attempt, worker, claimed_at, claimed_at FROM holdfast_jobs WHERE status = 'running'
"""


def make_crowd(path: Path, state: State, count: int) -> None:
    """A file of Holdfast's with so many messages in that state, all of it flushed to the disk."""
    Holdfast(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_JOBS, _values(state, count))
        connection.execute(_ATTEMPTS)
        connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _values(state: State, count: int) -> dict[str, object]:
    now, boot_now = time.time_ns() // 1000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return {"count": count, "status": state, "now": now, "boot_now": boot_now, "day": DAY}
