"""What a worker costs that stays: its processor time while it waits, and its memory before and after many jobs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import Holdfast

from .handlers import noop
from .measure import Effort, Figure, Target
from .probes import cpu_seconds, is_all_done, resident_mb, wait_until, workers_at_work

COMMAND = ["-m", "holdfast", "worker", "benchmarks.served:app", "--log", "quiet"]
SETTLING_SECONDS = 1.0
IDLE_SECONDS = 20
FIRST_JOBS = 50_000
ALL_JOBS = 500_000
BATCH = 25_000


def idle_worker(folder: Path, effort: Effort) -> Iterator[Figure]:
    seconds = effort.of(IDLE_SECONDS, least=2)
    path = folder / "idle.db"
    with worker_process(path) as pid:
        time.sleep(SETTLING_SECONDS)
        memory = resident_mb(pid)
        begin, used = time.perf_counter(), cpu_seconds(pid)
        time.sleep(seconds)
        used, lasted = cpu_seconds(pid) - used, time.perf_counter() - begin
    yield Figure(
        "worker: processor time while idle",
        "–",
        f"{used * 1000:.0f} ms in {lasted:.0f} s",
        used / lasted * 100,
        target=Target(0.5, at_least=False, unit="%"),
    )
    name = "worker: memory of the process while idle"
    yield Figure(name, "–", f"{memory:.1f} MB", memory, target=Target(45, at_least=False, unit="MB"))


def memory_over_time(folder: Path, effort: Effort) -> Iterator[Figure]:
    first, jobs = effort.of(FIRST_JOBS), effort.of(ALL_JOBS)
    path = folder / "memory.db"
    with worker_process(path) as pid:
        _do_jobs(path, first)
        before = resident_mb(pid)
        _do_jobs(path, jobs - first)
        after = resident_mb(pid)
    yield Figure(
        f"worker: memory after {jobs:,} jobs over that after {first:,}",
        f"{before:.1f} MB",
        f"{after:.1f} MB",
        after - before,
        target=Target(1, at_least=False, unit="MB"),
    )


@contextmanager
def worker_process(path: Path) -> Iterator[int]:
    """As a user starts it, with an app of one task. Gives its process id."""
    Holdfast(path).close()
    process = subprocess.Popen(
        [sys.executable, *COMMAND],
        env={**os.environ, "HOLDFAST_URL": str(path)},
        cwd=Path(__file__).parent.parent,
    )
    try:
        wait_until(lambda: workers_at_work(path) == 1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _do_jobs(path: Path, jobs: int) -> None:
    """A batch at a time, so that what waits is never more than that."""
    with Holdfast(path, durability="normal") as app:
        task = app.task(noop)
        for begin in range(0, jobs, BATCH):
            task.enqueue_many([{}] * min(BATCH, jobs - begin))
            wait_until(lambda: is_all_done(path))
