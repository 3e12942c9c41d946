"""Tasks that do nothing, and files full of jobs of them."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Holdfast

# The events are written by the triggers, as ever.
_READY = """
WITH RECURSIVE crowd (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM crowd WHERE i < :count - 1)
INSERT INTO holdfast_jobs (queue, task, status, run_at, created_at, actor)
SELECT CASE :queues WHEN 1 THEN 'default' ELSE 'queue-' || i % :queues END, :task, 'ready', :now, :now, 'bench'
FROM crowd
"""


def noop() -> None:
    """As little as a handler can do."""


async def noop_async() -> None:
    """The same on the event loop."""


def fill(path: Path, jobs: int, function: Callable[..., Any] = noop) -> None:
    """A new file with so many jobs of the task, all of it in the database and nothing in the log."""
    with Holdfast(path, durability="normal") as app:
        app.task(function).enqueue_many([{}] * jobs)


def insert_ready(path: Path, task: str, jobs: int, queues: int = 1) -> None:
    """By plain SQL, which is quicker: so many more, dealt out to so many queues in turn."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # others may have the file open
        connection.execute("PRAGMA synchronous = NORMAL")
        values = {"count": jobs, "queues": queues, "task": task, "now": time.time_ns() // 1000}
        connection.execute(_READY, values)
    finally:
        connection.close()


def remove(path: Path) -> None:
    """The database and all that lies beside it."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
