"""What can be seen from outside: of a file, while others work on it, and of a process."""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 300
LOOK_SECONDS = 0.02

_TICKS = os.sysconf("SC_CLK_TCK")


def select(path: Path, query: str, values: Sequence[Any] = ()) -> list[Any]:
    """By a connection that never checkpoints: that is left to Holdfast."""
    connection = sqlite3.connect(path, timeout=60)
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def is_all_done(path: Path) -> bool:
    """Whether nothing is ready or running."""
    ((left,),) = select(
        path,
        "SELECT EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'ready')"
        " OR EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'running')",
    )
    return not left


def workers_at_work(path: Path) -> int:
    """How many have enlisted and have not ended, or are not yet known to be dead."""
    ((count,),) = select(path, "SELECT count(*) FROM holdfast_workers WHERE ended_at IS NULL")
    return int(count)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come to that within {PATIENCE_SECONDS} seconds")
        time.sleep(LOOK_SECONDS)


def cpu_seconds(pid: int) -> float:
    """That the process has used so far, in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """Megabytes that the process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6
