"""The floor: what a person would write with the standard library's sqlite3 and nothing else.

WAL, and SQLite's defaults otherwise: pages of 4096 bytes, a checkpoint by itself every 1000 pages.
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast.store.sqlite
from holdfast.store.statements import Statements


def plain_connection(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


class PlainSender:
    """A row in jobs and a row in events, both indexed, in one transaction."""

    SCHEMA = """
        CREATE TABLE jobs (
            id INTEGER PRIMARY KEY, queue TEXT NOT NULL, body TEXT NOT NULL, status TEXT NOT NULL,
            priority INTEGER NOT NULL, run_at INTEGER NOT NULL, created_at INTEGER NOT NULL,
            attempt INTEGER NOT NULL, max_attempts INTEGER NOT NULL
        );
        CREATE INDEX jobs_next ON jobs (queue, status, priority DESC);
        CREATE TABLE events (
            id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, at INTEGER NOT NULL, event TEXT NOT NULL,
            attempt INTEGER, actor TEXT
        );
        CREATE INDEX events_job ON events (job_id);
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self._connection = plain_connection(path, synchronous)
        self._connection.executescript(self.SCHEMA)

    def send(self, body: Any) -> int:
        now = time.time_ns() // 1000
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        job_id = connection.execute(
            "INSERT INTO jobs (queue, body, status, priority, run_at, created_at, attempt, max_attempts)"
            " VALUES (?, ?, 'ready', ?, ?, ?, 0, ?)",
            ("inbox", json.dumps(body), 0, now, now, 3),
        ).lastrowid
        connection.execute(
            "INSERT INTO events (job_id, at, event, attempt, actor) VALUES (?, ?, 'enqueued', 0, ?)",
            (job_id, now, "bench"),
        )
        connection.execute("COMMIT")
        assert job_id is not None
        return job_id

    def count(self) -> int:
        return _count(self._connection, "jobs")

    def bytes_used(self) -> int:
        """Of the database, with all that is in its log."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def close(self) -> None:
        self._connection.close()


class PlainQueue:
    """Three statements on one table without history, each its own transaction: the shape of goqite."""

    SCHEMA = """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY, queue TEXT NOT NULL, body TEXT NOT NULL, priority INTEGER NOT NULL,
            created INTEGER NOT NULL, timeout INTEGER NOT NULL, received INTEGER NOT NULL
        );
        CREATE INDEX messages_next ON messages (queue, priority DESC);
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self._connection = plain_connection(path, synchronous)
        self._connection.executescript(self.SCHEMA)

    def send(self, body: Any) -> None:
        now = time.time_ns() // 1000
        self._connection.execute(
            "INSERT INTO messages (queue, body, priority, created, timeout, received) VALUES (?, ?, ?, ?, ?, 0)",
            ("inbox", json.dumps(body), 0, now, now),
        )

    def receive(self) -> tuple[int, Any]:
        now = time.time_ns() // 1000
        ((message_id, _, body),) = self._connection.execute(
            "UPDATE messages SET timeout = ?1, received = received + 1 WHERE id = ("
            " SELECT id FROM messages WHERE queue = ?2 AND timeout <= ?3 AND received < ?4"
            " ORDER BY priority DESC, id LIMIT 1) RETURNING id, received, body",
            (now + 30_000_000, "inbox", now, 3),
        ).fetchall()
        return message_id, json.loads(body)

    def ack(self, message_id: int) -> bool:
        return self._connection.execute("DELETE FROM messages WHERE id = ?", (message_id,)).rowcount == 1

    def round_trip(self, body: Any) -> None:
        self.send(body)
        message_id, _ = self.receive()
        assert self.ack(message_id)

    def count(self) -> int:
        return _count(self._connection, "messages")

    def close(self) -> None:
        self._connection.close()


class PlainBulk:
    """A bare executemany into Holdfast's own jobs table with all its indexes, but without its triggers."""

    INSERT = (
        "INSERT INTO holdfast_jobs (args, queue, task, status, priority, run_at, created_at, max_attempts, timeout,"
        " key, tags, history, actor) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )

    def __init__(self, path: Path, synchronous: str, task: str | None) -> None:
        """The file was made by Holdfast, and is closed by now."""
        self._task = task
        self._connection = plain_connection(path, synchronous)
        triggers = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            self._connection.execute(f"DROP TRIGGER {name}")

    def insert(self, bodies: Sequence[Any]) -> None:
        now = time.time_ns() // 1000
        rows = [
            (json.dumps(body), "inbox", self._task, "ready", 0, now, now, 3, None, None, None, 1, "bench")
            for body in bodies
        ]
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self.INSERT, rows)
        self._connection.execute("COMMIT")

    def count(self) -> int:
        return _count(self._connection, "holdfast_jobs")

    def close(self) -> None:
        self._connection.close()


class PlainWorker:
    """The statements of a worker without the worker, on Holdfast's own tables with all their triggers.

    One transaction settles the last batch, which nobody has handled, and claims the next.
    """

    BATCH = 100
    CLAIM = """
        UPDATE holdfast_jobs SET status = 'running', attempt = attempt + 1,
            worker = ?1, lease = ?2, claimed_at = ?3, started_at = NULL, heartbeat_at = ?3,
            transition = 'claimed', actor = ?1, updated_at = ?3, revision = revision + 1
        WHERE id IN (
            SELECT id FROM holdfast_jobs
            WHERE status = 'ready' AND queue = ?4 AND task = ?5 AND attempt < max_attempts
            ORDER BY priority DESC, id LIMIT ?6
        )
        RETURNING id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
                  error_detail, run_at, priority
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        """The file was made by Holdfast, and is closed by now."""
        self._connection = plain_connection(path, synchronous)
        folder = Path(holdfast.store.sqlite.__file__).parent / "sql"
        self._settle = Statements(folder, "holdfast_").succeed_many

    def drain(self, queue: str, task: str) -> int:
        """Returns how many there were."""
        execute, done = self._connection.execute, 0
        batch: list[Any] = []
        while True:
            now, boot_now = time.time_ns() // 1000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
            execute("BEGIN IMMEDIATE")
            if batch:
                rows = json.dumps([(row[0], row[1], None, now, now) for row in batch])
                done += execute(self._settle, (rows,)).rowcount
            values = ("bench", boot_now + 60_000_000, now, queue, task, self.BATCH)
            batch = execute(self.CLAIM, values).fetchall()
            execute("COMMIT")
            if not batch:
                return done

    def close(self) -> None:
        self._connection.close()


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
