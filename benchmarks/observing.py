"""What `app.observe.snapshot()` costs in a large file."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from holdfast import Holdfast

from .files import build_file, mostly, remove
from .measure import Effort, Figure, at_most, seconds
from .workload import noop

READS = 15
RECENT = 2_000  # jobs, for rates and latencies of the last hour

NOTES = """\
- **Snapshots:** the files have 5 queues and 20 tasks; 90 in 100 jobs are in the state that is named, the others in
  all states. 2,000 more have run just before, so that there are rates and latencies to report. Of each 15 were read.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    path, few, many = folder / "snapshot.db", effort.rows // 10, effort.rows
    small = _snapshots(path, few, "succeeded")
    yield _figure(few, "succeeded", small)
    yield _figure(few, "ready", _snapshots(path, few, "ready"))
    large = _snapshots(path, many, "succeeded")
    yield _figure(many, "succeeded", large)
    name = f"snapshot with {many:,} jobs, time ÷ that with {few:,}"
    small_ms, large_ms = f"{median(small):.1f} ms", f"{median(large):.1f} ms"
    yield Figure(name, large_ms, small_ms, median(large) / median(small), target=at_most(4, "×"))


def _figure(jobs: int, status: str, taken: list[float]) -> Figure:
    name = f"snapshot with {jobs:,} jobs, most of them {status}"
    return Figure(name, f"{median(taken):.1f} ms", "", median(taken), (min(taken), max(taken)), at_most(50, "ms"))


def _snapshots(path: Path, jobs: int, status: str) -> list[float]:
    """The milliseconds of each."""
    with Holdfast(path) as app:
        app.task(noop).enqueue_many([{}] * RECENT)
        app.worker(until_idle=True).run()
    build_file(path, jobs, {"status": mostly(status), "queue": "'queue-' || (i % 5)", "task": "'task-' || (i % 20)"})
    with Holdfast(path) as app:
        snapshot = app.observe.snapshot()
        assert snapshot.counts.total == jobs + RECENT and snapshot.latency
        taken = [seconds(app.observe.snapshot) * 1000 for _ in range(READS)]
    remove(path)
    return taken
