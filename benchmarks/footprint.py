"""What Holdfast takes: time to import, bytes in the file, processor time and memory of a worker."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from holdfast import Holdfast

from .floors import BareJobs
from .measure import Effort, Figure, at_most, seconds
from .workers import cpu_seconds, resident_mb, wait_until_done, worker_process
from .workload import BODY, noop

IMPORTS = 25
SIZED_JOBS = 10_000
IDLE_SECONDS = 20
SETTLING_SECONDS = 1.0
FIRST_JOBS = 50_000
ALL_JOBS = 500_000
BATCH = 25_000

NOTES = """\
- **Import:** wall time of `python -c "import holdfast"` less that of `python -c "pass"`, both started in turns.
- **Bytes:** of the closed file, over those of an empty one.
- **Idle, memory:** `holdfast worker` with an app of two tasks. Processor time is user and system time of the process,
  which the kernel counts in steps of 10 ms. Memory is VmRSS, in millions of bytes. The jobs come 25,000 at a time
  from another process. No growth is taken to mean less than 1 MB.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _import_time(effort.of(IMPORTS, least=5))
    yield from _bytes_per_job(folder, effort.of(SIZED_JOBS))
    yield from _idle(folder / "idle.db", effort.of(IDLE_SECONDS, least=2))
    yield _memory_growth(folder / "memory.db", effort.of(FIRST_JOBS), effort.of(ALL_JOBS))


def _import_time(runs: int) -> Figure:
    def run(command: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", command], check=True)) * 1000

    run("import holdfast")  # compiles, and fills the disk cache
    pairs = [(run("pass"), run("import holdfast")) for _ in range(runs)]
    added = [ours - bare for bare, ours in pairs]
    bare, ours = (f"{median(column):.1f} ms" for column in zip(*pairs, strict=True))
    spread = (min(added), max(added))
    return Figure("import holdfast, over bare python", ours, bare, median(added), spread, at_most(60, "ms"))


def _bytes_per_job(folder: Path, jobs: int) -> Iterator[Figure]:
    bare_path, path = folder / "bare.db", folder / "size.db"
    bare = BareJobs(bare_path, "OFF")
    bare.enqueue_many([BODY] * jobs)
    bare.close()
    bare_bytes = bare_path.stat().st_size / jobs
    Holdfast(path).close()
    empty = path.stat().st_size
    with Holdfast(path) as app:
        app.queue("inbox").send_many([BODY] * jobs)
    sent = (path.stat().st_size - empty) / jobs
    with Holdfast(path) as app:
        for _ in range(0, jobs, 100):
            for message in app.queue("inbox").receive_many(100):
                message.ack()
    acked = (path.stat().st_size - empty) / jobs
    yield Figure("bytes per job: sent", f"{sent:,.0f} B", f"{bare_bytes:,.0f} B", sent / bare_bytes)
    yield Figure("bytes per job: sent, received and acked", f"{acked:,.0f} B")


def _idle(path: Path, duration: int) -> Iterator[Figure]:
    with worker_process(path) as pid:
        time.sleep(SETTLING_SECONDS)
        memory = resident_mb(pid)
        before = cpu_seconds(pid)
        lasted = seconds(lambda: time.sleep(duration))
        used = cpu_seconds(pid) - before
    ours = f"{used * 1000:.0f} ms in {lasted:.0f} s"
    yield Figure("worker: processor time while idle", ours, "", used / lasted * 100, None, at_most(0.5, "%"))
    yield Figure("worker: memory while idle", f"{memory:.1f} MB", "", memory, None, at_most(45, "MB"))


def _memory_growth(path: Path, first: int, jobs: int) -> Figure:
    with worker_process(path) as pid:
        _run_jobs(path, first)
        before = resident_mb(pid)
        _run_jobs(path, jobs - first)
        after = resident_mb(pid)
    name = f"worker: memory after {jobs:,} jobs, over that after {first:,}"
    return Figure(name, f"{after:.1f} MB", f"{before:.1f} MB", after - before, None, at_most(1, "MB"))


def _run_jobs(path: Path, jobs: int) -> None:
    """A batch at a time, so that never more than that wait."""
    with Holdfast(path, durability="normal") as app:
        task = app.task(noop)
        for begin in range(0, jobs, BATCH):
            task.enqueue_many([{}] * min(BATCH, jobs - begin))
            wait_until_done(path)
