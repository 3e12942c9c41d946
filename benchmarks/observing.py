"""What it costs to know how it is doing: reading it from a large file, and keeping it while jobs are settled."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from unittest.mock import patch

from holdfast import Holdfast

from .drains import drain
from .handlers import noop, remove
from .measure import Effort, Figure, Target, take_turns

JOBS = 1_000_000
TIMES_MORE = 10
DRAINED = 20_000
READS = 15

# Mostly of the past, as a file is that has been in use: 94 in 100 have succeeded. Or mostly waiting, as when no
# worker has been there: 94 in 100 are ready.
_CROWD = """
WITH RECURSIVE crowd (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM crowd WHERE i < :count - 1)
INSERT INTO holdfast_jobs (queue, task, args, status, run_at, created_at, finished_at, attempt)
SELECT 'queue-' || i % 5, 'task-' || i % 20, '{"number": ' || i || '}', status, :now - i, :now - i,
       CASE WHEN status IN ('succeeded', 'failed', 'cancelled') THEN :now - i END, 1
FROM (SELECT i, CASE WHEN i % 100 < 94 THEN :most WHEN i % 100 < 96 THEN 'failed'
                     WHEN i % 100 < 97 THEN 'cancelled' WHEN i % 100 < 99 THEN 'ready' ELSE 'scheduled' END AS status
      FROM crowd)
"""
_HOUR = """
WITH RECURSIVE minutes (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM minutes WHERE i < 59),
    tasks (t) AS (SELECT 0 UNION ALL SELECT t + 1 FROM tasks WHERE t < 19),
    buckets (b) AS (SELECT 60 UNION ALL SELECT b + 1 FROM buckets WHERE b < 69)
INSERT INTO holdfast_minutes (minute, queue, task, what, bucket, n)
SELECT :minute - i, 'queue-' || t % 5, 'task-' || t, what, b, 7 FROM minutes, tasks, buckets,
    (SELECT 'wait' AS what UNION SELECT 'run')
UNION ALL SELECT :minute - i, 'queue-' || t % 5, 'task-' || t, what, 0, 70 FROM minutes, tasks,
    (SELECT 'succeeded' AS what UNION SELECT 'failed' UNION SELECT 'retry_scheduled')
"""


def observation(folder: Path, effort: Effort) -> Iterator[Figure]:
    small = _snapshot_of(folder / "million.db", effort.of(JOBS, least=20_000), effort)
    yield small.figure(Target(50, at_least=False, unit="ms"))
    waiting = _snapshot_of(folder / "waiting.db", effort.of(JOBS, least=20_000), effort, "ready")
    yield waiting.figure(Target(50, at_least=False, unit="ms"))
    large = _snapshot_of(folder / "ten.db", effort.of(JOBS, least=20_000) * TIMES_MORE, effort)
    yield large.figure(Target(4 * small.milliseconds, at_least=False, unit="ms"))
    yield _kept_while_settling(effort, folder)


class _Snapshot:
    def __init__(self, jobs: int, most: str, taken: list[float]) -> None:
        self.jobs, self.most, self.taken = jobs, most, taken

    @property
    def milliseconds(self) -> float:
        return median(self.taken) * 1000

    def figure(self, target: Target) -> Figure:
        spread = (min(self.taken) * 1000, max(self.taken) * 1000)
        name = f"app.observe.snapshot() with {self.jobs:,} jobs in the file, most of them {self.most}"
        return Figure(name, "", f"{self.milliseconds:.1f} ms", self.milliseconds, spread, target)


def _snapshot_of(path: Path, jobs: int, effort: Effort, most: str = "succeeded") -> _Snapshot:
    _fill(path, jobs, most)
    taken: list[float] = []
    with Holdfast(path) as app:
        assert app.observe.counts().total == jobs
        for _ in range(max(3, READS if effort.part == 1 else 3)):
            begin = perf_counter()
            snapshot = app.observe.snapshot()
            taken.append(perf_counter() - begin)
        assert snapshot.counts.total == jobs and snapshot.latency
    remove(path)
    return _Snapshot(jobs, most, taken)


def _fill(path: Path, jobs: int, most: str) -> None:
    """By plain SQL, and without the events and attempts that would belong to it, which no answer reads."""
    with Holdfast(path):
        pass
    now = time.time_ns() // 1000
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("DROP TRIGGER holdfast_jobs_enqueued")
        with connection:
            connection.execute(_CROWD, {"count": jobs, "now": now, "most": most})
            connection.execute(_HOUR, {"minute": now // 60_000_000})


def _kept_while_settling(effort: Effort, folder: Path) -> Figure:
    """The floor is the same worker on a file without the triggers that count, with nothing to count."""
    jobs = effort.of(DRAINED, least=2_000)
    contest = take_turns(
        effort.rounds,
        lambda: _uncounted(lambda: drain(folder / "plain.db", jobs, noop)),
        lambda: drain(folder / "kept.db", jobs, noop),
    )
    return contest.as_speed("settling with totals and rollups, to without", jobs, "jobs/s", Target(0.9))


def _uncounted(run: Callable[[], float]) -> float:
    with _without_counting():
        return run()


@contextmanager
def _without_counting() -> Iterator[None]:
    from . import drains

    fill = drains.fill

    def fill_and_drop(path: Path, *args: object, **kwargs: object) -> None:
        fill(path, *args, **kwargs)  # type: ignore[arg-type]
        with closing(sqlite3.connect(path)) as connection:
            names = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger' AND (name LIKE 'holdfast_totals%'"
                " OR name IN ('holdfast_jobs_counted', 'holdfast_jobs_acked', 'holdfast_jobs_forgotten'))"
            ).fetchall()
            for (name,) in names:
                connection.execute(f"DROP TRIGGER {name}")

    with patch.object(drains, "fill", fill_and_drop), patch("holdfast.run.desk.sample_of", lambda *_: None):
        yield
