"""Worker processes as a user starts them, and what can be seen of them from outside."""

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from holdfast import Holdfast

COMMAND = [sys.executable, "-m", "holdfast", "worker", "benchmarks.worker_app:app"]
LONGEST_WAIT_SECONDS = 300
LOOK_SECONDS = 0.005

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def worker_process(path: Path, processes: int = 1) -> Iterator[int]:
    """`holdfast worker` with its default log, which goes to a file. Gives its process id once all are at work."""
    Holdfast(path).close()
    with Path(f"{path}.log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "--processes", str(processes)],
            env={**os.environ, "HOLDFAST_URL": str(path)},
            cwd=Path(__file__).parent.parent,
            stdout=log,
            stderr=log,
        )
        try:
            wait_until(lambda: workers_at_work(path) == processes)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def workers_at_work(path: Path) -> int:
    """How many have started and have not ended, or are not yet known to be dead."""
    ((count,),) = select(path, "SELECT count(*) FROM holdfast_workers WHERE ended_at IS NULL")
    return int(count)


def wait_until_done(path: Path) -> None:
    """Wait until no job is ready or running."""
    left = (
        "SELECT EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'ready')"
        " OR EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'running')"
    )
    with closing(_reader(path)) as connection:
        wait_until(lambda: connection.execute(left).fetchall() == [(0,)])


def select(path: Path, query: str, values: Sequence[Any] = ()) -> list[Any]:
    with closing(_reader(path)) as connection:
        return connection.execute(query, values).fetchall()


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that never checkpoints: that is left to Holdfast."""
    connection = sqlite3.connect(path, timeout=60)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited for {LONGEST_WAIT_SECONDS} seconds in vain")
        time.sleep(LOOK_SECONDS)


def cpu_seconds(pid: int) -> float:
    """The processor time that the process has used so far, in its own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """Megabytes that the process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / 1e6
