"""How fast workers run tasks that do nothing: beside bare statements, beside huey, and in several processes."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from huey import SqliteHuey  # type: ignore[import-untyped]

from holdfast import Holdfast

from .files import remove
from .floors import BareJobs
from .measure import Effort, Figure, Target, at_most, seconds, take_turns
from .queues import on_new_file
from .workers import LONGEST_WAIT_SECONDS, select, wait_until_done, worker_process
from .workload import BODY, noop, noop_async

JOBS = 40_000
WARM_UP = 2_000
HUEY_JOBS = 3_000
MOST_ROUNDS = 5

NOTES = """\
- **Workers:** a new `holdfast worker` process on a new file in each turn, with full history, counting, and the
  default log, a line for each job, written to a file. It runs 2,000 jobs that are not measured. Then the queue is
  paused, filled with 40,000 jobs and resumed. The time is from the resuming until no job is ready or running.
  **Floor:** a loop on the slim jobs table that settles 100 jobs and claims the next 100 in one transaction. It writes
  no history and no log, and runs no handler. **huey:** its consumer with one worker thread, which is its default, in
  this process, on 3,000 jobs. It writes no log here, which its own command would. Without fsync is `fsync=False`,
  SQLite's `synchronous = OFF`. It takes jobs one at a time and deletes each as it is taken.
- **Several processes:** `--processes 2` and `4`, to one process in the same round. A share is the number of jobs that
  one process ran.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    jobs, few = effort.of(JOBS, least=4_000), effort.of(HUEY_JOBS, least=200)
    path = folder / "drain.db"
    shares: list[float] = []

    def four_processes() -> float:
        return drain(path, jobs, noop, 4, shares)

    rates = take_turns(
        min(effort.rounds, MOST_ROUNDS),
        "jobs/s",
        {
            "floor": lambda: on_new_file(path, BareJobs, lambda bare: _bare_drain(bare, jobs)),
            "huey": lambda: _huey_drain(path, few, None),
            "one": lambda: drain(path, jobs, noop),
            "huey without fsync": lambda: _huey_drain(path, few, False),
            "async": lambda: drain(path, jobs, noop_async),
            "two": lambda: drain(path, jobs, noop, 2),
            "four": four_processes,
        },
    )
    yield rates.ratio("worker, one process ÷ bare drain", "one", "floor", Target(0.35))
    yield rates.ratio("worker, one process ÷ huey, its default", "one", "huey", Target(10))
    yield rates.ratio("worker, one process ÷ huey without fsync", "one", "huey without fsync", Target(3.5))
    yield rates.ratio("worker, async tasks ÷ plain ones", "async", "one", Target(0.8))
    yield rates.ratio("worker, two processes ÷ one", "two", "one", Target(1))
    yield rates.ratio("worker, four processes ÷ one", "four", "one", Target(1))
    name, spread = "worker, four processes: largest ÷ smallest share", (min(shares), max(shares))
    yield Figure(name, f"of {jobs:,} jobs", "", median(shares), spread, at_most(3, "×"))


def _bare_drain(bare: BareJobs, jobs: int) -> float:
    bare.enqueue_many([BODY] * jobs)
    begin = perf_counter()
    assert bare.drain() == jobs
    return jobs / (perf_counter() - begin)


def drain(
    path: Path, jobs: int, function: Callable[..., Any], processes: int = 1, shares: list[float] | None = None
) -> float:
    """The jobs that `holdfast worker` runs in a second."""
    with worker_process(path, processes), Holdfast(path, durability="normal") as app:
        task, queue = app.task(function), app.queue("default")
        task.enqueue_many([{}] * WARM_UP)
        wait_until_done(path)
        queue.pause()
        ids = task.enqueue_many([{}] * jobs)
        begin = perf_counter()
        queue.resume()
        wait_until_done(path)
        taken = perf_counter() - begin
        assert app.jobs.count(status="succeeded") == jobs + WARM_UP
        if shares is not None:
            shares.append(_largest_to_smallest_share(path, ids[0], processes))
    remove(path)
    return jobs / taken


def _largest_to_smallest_share(path: Path, first_id: int, processes: int) -> float:
    query = "SELECT count(*) FROM holdfast_attempts WHERE job_id >= ? GROUP BY worker ORDER BY 1"
    counts = [count for (count,) in select(path, query, (first_id,))]
    return float("inf") if len(counts) < processes else counts[-1] / counts[0]


def _huey_drain(path: Path, jobs: int, fsync: bool | None) -> float:
    """From its first job to its last. The start and the end of the consumer do not count."""
    huey = SqliteHuey(filename=str(path), fsync=fsync)
    begun: list[float] = []
    ended = threading.Event()

    def noop() -> None:
        begun.append(perf_counter())
        if len(begun) == jobs:
            ended.set()

    seconds(huey.task()(noop), jobs)
    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False)
    replaced = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    consumer.start()
    in_time = ended.wait(LONGEST_WAIT_SECONDS)
    consumer.stop(graceful=True)
    for number, handler in replaced.items():
        signal.signal(number, handler)
    assert in_time and huey.storage.queue_size() == 0
    huey.storage.close()
    remove(path)
    return (jobs - 1) / (begun[-1] - begun[0])
