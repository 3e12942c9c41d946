"""Rows in all kinds of states, a database on which a statement is tried and undone, and what it costs SQLite."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from holdfast import Holdfast
from holdfast.store.sqlite import database
from holdfast.store.statements import Statements

NOW, BOOT = 1_700_000_000_000_000, 1_000_000_000
CREATED = NOW - 1000
LEASE = 77
ANY = 10**6
PAUSED = "paused"
STATES = ["running"] * 3 + ["ready"] * 2 + ["scheduled", "blocked", "succeeded", "failed", "cancelled"]

Row = dict[str, Any]


class _OrNull(dict[str, Any]):
    def __missing__(self, name: str) -> None:
        return None


class Bench:
    """A database that a statement can be tried on: what it did is looked at, and undone."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        self.sql = Statements(Path(database.__file__).parent / "sql", "holdfast_")
        self.insert("queues", [{"name": "a"}, {"name": PAUSED, "paused_at": NOW}])

    @contextmanager
    def undone(self) -> Iterator[None]:
        self.connection.execute("SAVEPOINT trial")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK TO trial")
            self.connection.execute("RELEASE trial")

    def insert(self, table: str, rows: list[Row]) -> None:
        for row in rows:
            marks = ", ".join("?" * len(row))
            statement = f"INSERT INTO holdfast_{table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608
            self.connection.execute(statement, list(row.values()))

    def end_behind_indexes(self, status: str) -> None:
        """Let jobs of this status succeed, but leave them in the indexes, as in a damaged file."""
        parts = "type IN ('index', 'trigger') AND tbl_name = 'holdfast_jobs' AND sql IS NOT NULL"
        self.connection.execute("PRAGMA writable_schema = ON")
        rows = self.connection.execute(f"SELECT * FROM sqlite_schema WHERE {parts}").fetchall()  # noqa: S608
        self.connection.execute(f"DELETE FROM sqlite_schema WHERE {parts}")  # noqa: S608
        self.connection.execute("PRAGMA writable_schema = RESET")
        self.connection.execute(
            "UPDATE holdfast_jobs SET status = 'succeeded', worker = NULL, lease = NULL WHERE status = ?", (status,)
        )
        self.connection.execute("PRAGMA writable_schema = ON")
        self.connection.executemany("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", map(tuple, rows))
        self.connection.execute("PRAGMA writable_schema = RESET")

    def jobs(self, where: str = "1") -> list[Row]:
        question = f"SELECT * FROM holdfast_jobs WHERE {where} ORDER BY id"  # noqa: S608
        return [dict(row) for row in self.connection.execute(question)]

    def returned(self, name: str, given: dict[str, Any] | tuple[Any, ...]) -> list[Any]:
        """Run a statement, and return its rows. Parameters that are not given are NULL."""
        statement: str = getattr(self.sql, name)
        if isinstance(given, tuple):
            wanted = max(map(int, re.findall(r"\?(\d+)", statement)), default=len(given))
            return [tuple(row) for row in self.connection.execute(statement, given + (None,) * (wanted - len(given)))]
        return [tuple(row) for row in self.connection.execute(statement, _OrNull(given))]

    def changed(self, name: str, given: dict[str, Any] | tuple[Any, ...]) -> dict[int, Row]:
        """Run a transition. Return the jobs that it changed, by id."""
        with self.undone():
            self.returned(name, given)
            return {row["id"]: row for row in self.jobs("revision > 0")}


def some_jobs(random: Random, count: int, **fixed: Any) -> list[Row]:
    """Jobs in all kinds of states. Times are at the edge of what is due and what has expired."""
    jobs = []
    for number in range(count):
        status = fixed.get("status") or random.choice(STATES)
        attempt, most = (1, 2) if status in ("ready", "scheduled") else random.choice([(1, 2), (2, 2)])
        job = {
            "queue": random.choice(["a", "b", PAUSED]),
            "task": random.choice([None, "one", "two"]),
            "status": status,
            "attempt": attempt,
            "max_attempts": most,
            "priority": random.choice([0, 0, 5]),
            "created_at": CREATED,
            "run_at": NOW + random.choice([-1, 0, 1]),
            "lease": random.choice([None, BOOT - 1, BOOT, BOOT + 1]),
            "worker": random.choice([None, "w1", "w2"]),
            "timeout": random.choice([None, 5, 6]),
            "claimed_at": NOW - 100,
            "started_at": random.choice([None, NOW - 5 - LEASE, NOW - 6 - LEASE]),
            "expires_at": random.choice([None, NOW - 1, NOW, NOW + 1]),
            "transition": random.choice(["succeeded", "completed"]),
            "history": random.choice([0, 1]),
            "awaited": random.choice([0, 0, 0, 1]),
            "chain_id": random.choice([None, None, None, 10**6 + number]),
            "batch_id": random.choice([None, None, None, 3]),
        }
        jobs.append(job | fixed)
    return jobs


def machine_steps(app: Holdfast, names: list[str], values: dict[str, Any], every: int) -> int:
    """Of these statements of the store together, in so many instructions."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def work(connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(step, every)
        try:
            for name in names:
                connection.execute(getattr(app.store.database.sql, name), values).fetchall()  # type: ignore[attr-defined]
        finally:
            connection.set_progress_handler(None, 0)

    app.store.database.read(work)  # type: ignore[attr-defined]
    return count
