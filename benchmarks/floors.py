"""The floor: bare statements of the standard library's sqlite3 on one slim jobs table, without history.

Pages of 1024 bytes, WAL, SQLite's defaults otherwise. No checks, no keys, no guard against the WAL-reset bug, no
handlers. A send, a claim and a settle each cost one statement.
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .workload import BODY

SCHEMA = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, task TEXT, args TEXT NOT NULL,
    status TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 0, run_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER NOT NULL DEFAULT 5, worker TEXT, lease INTEGER,
    claimed_at INTEGER, started_at INTEGER, finished_at INTEGER, error_code TEXT, error_detail TEXT,
    fingerprint TEXT, result TEXT, key TEXT, chain_id INTEGER, batch_id INTEGER, history INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX jobs_ready ON jobs (queue, task, priority DESC) WHERE status = 'ready';
CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX jobs_running ON jobs (lease) WHERE status = 'running';
CREATE INDEX jobs_finished ON jobs (status, finished_at) WHERE finished_at IS NOT NULL;
"""
SEND = "INSERT INTO jobs (args, queue, status, run_at, created_at) VALUES (?, 'q', 'ready', ?, ?)"
RECEIVE = """
UPDATE jobs SET status = 'running', attempt = attempt + 1, worker = 'w', lease = ?1, claimed_at = ?1, started_at = ?1
WHERE id = (
    SELECT id FROM jobs WHERE status = 'ready' AND queue = 'q' AND task IS NULL ORDER BY priority DESC, id LIMIT 1
) RETURNING id, attempt, args
"""
ACK = """
UPDATE jobs SET status = 'succeeded', finished_at = ?, lease = NULL
WHERE id = ? AND attempt = ? AND status = 'running'
"""
ENQUEUE = "INSERT INTO jobs (args, queue, task, status, run_at, created_at) VALUES (?, 'q', 't', 'ready', ?, ?)"
CLAIM = """
UPDATE jobs SET status = 'running', attempt = attempt + 1, worker = 'w', lease = ?1, claimed_at = ?1
WHERE id IN (
    SELECT id FROM jobs WHERE status = 'ready' AND queue = 'q' AND task = 't' ORDER BY priority DESC, id LIMIT ?2
) RETURNING id, attempt, args
"""
SETTLE = """
UPDATE jobs SET status = 'succeeded', finished_at = ?, lease = NULL
WHERE id = ? AND attempt = ? AND +status = 'running'
"""
TEXT = json.dumps(BODY)


class BareJobs:
    """A file with the slim jobs table."""

    def __init__(self, path: Path, synchronous: str = "NORMAL") -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("page_size = 1024", "journal_mode = WAL", f"synchronous = {synchronous}"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(SCHEMA)

    def send(self) -> None:
        at = _now()
        self._connection.execute(SEND, (TEXT, at, at))

    def trip(self) -> None:
        """Send, receive and acknowledge one message in three transactions."""
        self.send()
        ((job_id, attempt, _),) = self._connection.execute(RECEIVE, (_now(),)).fetchall()
        self._connection.execute(ACK, (_now(), job_id, attempt))

    def enqueue_many(self, rows: Sequence[Any]) -> None:
        at = _now()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(ENQUEUE, [(json.dumps(row), at, at) for row in rows])
        self._connection.execute("COMMIT")

    def drain(self, batch: int = 100) -> int:
        """Settle the last batch and claim the next in one transaction, until none is left. Returns how many."""
        connection, done = self._connection, 0
        held: list[Any] = []
        while True:
            connection.execute("BEGIN IMMEDIATE")
            at = _now()
            connection.executemany(SETTLE, [(at, job_id, attempt) for job_id, attempt, _ in held])
            done += len(held)
            held = connection.execute(CLAIM, (at, batch)).fetchall()
            connection.execute("COMMIT")
            if not held:
                return done

    def close(self) -> None:
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1000
