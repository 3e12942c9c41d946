"""Database files: where they lie, how millions of rows get into one, how they are removed."""

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast import Holdfast

DAY = 24 * 3600 * 1_000_000
AGE = 25 * DAY  # below the 30 days after which workers delete what has ended

# What a row of a built file has in each column: SQL expressions of `i`, the number of the row from 0 on, of its
# `status` and its `created_at`, of :now and :boot_now. Callers replace some of them.
COLUMNS: Mapping[str, str] = {
    "status": "'ready'",
    "created_at": ":now - :age + i * :step",
    "queue": "'inbox'",
    "task": "NULL",
    "args": """'{"to":"ada@example.org","subject":"Thank you for your order","order":12345,"n":' || i || '}'""",
    "run_at": f"created_at + CASE status WHEN 'scheduled' THEN {2 * AGE} ELSE 0 END",
    "attempt": "CASE WHEN status IN ('running', 'succeeded', 'failed') THEN 1 ELSE 0 END",
    "worker": "CASE WHEN status = 'running' THEN 'bench' END",
    "lease": f"CASE WHEN status = 'running' THEN :boot_now + {DAY} + i END",
    "claimed_at": "CASE WHEN status IN ('running', 'succeeded', 'failed') THEN created_at END",
    "started_at": "CASE WHEN status IN ('running', 'succeeded', 'failed') THEN created_at END",
    "finished_at": "CASE WHEN status IN ('succeeded', 'failed', 'cancelled') THEN created_at + i % 7 * 1000000 END",
    "error_code": "CASE WHEN status = 'failed' THEN 'DEPENDENCY:MAIL' END",
    "error_detail": "CASE WHEN status = 'failed' THEN 'the mail server did not answer' END",
}
_INSERT = """
WITH RECURSIVE numbers (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < :rows - 1)
INSERT INTO holdfast_jobs ({names})
SELECT {expressions} FROM (SELECT i, {status} AS status, {created_at} AS created_at FROM numbers)
"""
# The events of one attempt, its claim and its end, as a job that succeeded has them.
_EVENTS = """
INSERT INTO holdfast_events (job_id, at, event, attempt, actor, claimed_at, started_at)
SELECT job.id, job.finished_at, event.name, 1, 'bench', CASE WHEN event.ends THEN job.claimed_at END,
       CASE WHEN event.ends THEN job.started_at END
FROM holdfast_jobs AS job, (SELECT 'claimed' AS name, 0 AS ends UNION ALL SELECT 'succeeded', 1) AS event
"""


# What the attempts of the last minutes add to the statistics: how many succeeded, and how long they waited and ran.
_MINUTES = """
INSERT INTO holdfast_minutes (minute, queue, task, measure, bucket, n)
SELECT :last - :minutes + job.id * :minutes / :rows, job.queue, job.task, kind.measure,
       CASE kind.measure WHEN 'run' THEN 30 + (job.id * 2654435761 >> 12) % 24
                         WHEN 'wait' THEN 24 + (job.id * 40503 >> 3) % 30 ELSE 1 END, count(*)
FROM holdfast_jobs AS job, (SELECT 'run' AS measure UNION ALL SELECT 'wait' UNION ALL SELECT 'succeeded') AS kind
WHERE job.task IS NOT NULL
GROUP BY 1, 2, 3, 4, 5
"""


def build_file(
    path: Path, rows: int, columns: Mapping[str, str], age: int = AGE, history: bool = False, minutes: int = 0
) -> None:
    """Put so many jobs into a file by one plain INSERT, which fires the triggers.

    columns: those that differ from COLUMNS. age: when the oldest was created, in microseconds before now; the
    others follow at even intervals. history: each job has succeeded, and has its attempt and its events.
    minutes: the statistics have an attempt of each job within so many minutes, at even intervals.
    """
    Holdfast(path).close()
    expressions = dict(COLUMNS) | dict(columns)
    status, created_at = expressions["status"], expressions["created_at"]
    expressions |= {"status": "status", "created_at": "created_at"}
    statement = _INSERT.format(
        names=", ".join(expressions),
        expressions=", ".join(expressions.values()),
        status=status,
        created_at=created_at,
    )
    now, boot_now = time.time_ns() // 1000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    values = {"rows": rows, "now": now, "boot_now": boot_now, "age": age, "step": age // rows}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(statement, values)
        if history:
            connection.execute(_EVENTS)
        if minutes:
            connection.execute(_MINUTES, {"rows": rows, "minutes": minutes, "last": now // 60_000_000})
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    with Holdfast(path) as app:
        while app.store.statistics.fold():
            pass
        app.store.file.checkpoint()
    with path.open("rb") as file:  # nobody has it open as a database
        os.fsync(file.fileno())


def mostly(status: str) -> str:
    """An SQL expression: this status in 90 of 100 rows, any in the others, independent of `i % n` elsewhere."""
    others = ("failed", "failed", "succeeded", "succeeded", "cancelled", "ready", "ready", "scheduled", "blocked")
    cases = " ".join(f"WHEN {number} THEN '{other}'" for number, other in enumerate((*others, "running")))
    return f"CASE (i * 2654435761 >> 12) % 100 {cases} ELSE '{status}' END"


def remove(path: Path) -> None:
    """Remove the database and all that lies beside it."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on a real disk that is removed afterwards."""
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    on_disk = [folder for folder in candidates if folder.is_dir() and not _is_in_memory(folder)]
    if not on_disk:
        raise RuntimeError("every folder for temporary files is in memory: set TMPDIR to one on a disk")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=on_disk[0]) as folder:
        yield Path(folder)


def _is_in_memory(folder: Path) -> bool:
    """Linux alone has the list of mounts."""
    mounts = Path("/proc/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    types = {Path(place): kind for _, place, kind, *_ in lines}
    return next((types[at] for at in (folder, *folder.parents) if at in types), "") in ("tmpfs", "ramfs")


def flush_milliseconds(folder: Path, times: int = 200) -> float:
    """What a flush of 4 KiB costs here: the reason why FULL is slower than NORMAL."""
    descriptor = os.open(folder / "flush", os.O_CREAT | os.O_WRONLY)
    try:
        os.pwrite(descriptor, bytes(4096 * times), 0)
        os.fsync(descriptor)
        taken = []
        for page in range(times):
            begin = perf_counter()
            os.pwrite(descriptor, bytes(4096), page * 4096)
            os.fdatasync(descriptor)
            taken.append(perf_counter() - begin)
        return median(taken) * 1000
    finally:
        os.close(descriptor)
