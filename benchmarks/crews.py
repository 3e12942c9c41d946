"""Several worker processes on one file: whether they are as fast in all as one, and share the work."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from holdfast import Holdfast

from .handlers import noop
from .measure import Effort, Figure, Target, take_turns
from .probes import is_all_done, select, wait_until, workers_at_work

PROCESSES = 4
JOBS = 40_000
MOST_ROUNDS = 5

_spawn = multiprocessing.get_context("spawn")


def many_processes(folder: Path, effort: Effort) -> Iterator[Figure]:
    jobs = effort.of(JOBS, least=4_000)
    shares: list[float] = []
    with team(folder / "one.db", 1) as one, team(folder / "four.db", PROCESSES) as four:
        for each in (one, four):
            each.drain(jobs)  # so that every one has begun once

        def together() -> float:
            taken = four.drain(jobs)
            shares.append(four.unevenness())
            return taken

        contest = take_turns(min(effort.rounds, MOST_ROUNDS), lambda: one.drain(jobs), together)
    yield contest.as_speed(f"worker: no-op handlers, {PROCESSES} processes to one", jobs, "jobs/s", Target(1))
    yield Figure(
        f"worker: largest to smallest share of {PROCESSES} processes",
        floor="–",
        ours=f"of {jobs:,} jobs",
        value=median(shares),
        spread=(min(shares), max(shares)),
        target=Target(3, at_least=False),
    )


class Team:
    """Worker processes on a file of their own. They wait while the queue is paused and filled, and begin together."""

    def __init__(self, app: Holdfast, path: Path, size: int) -> None:
        self._queue, self._task = app.queue("default"), app.task(noop)
        self._path, self._size = path, size
        self._ids = (0, 0)  # the first and the last of the last drain

    def drain(self, jobs: int) -> float:
        """The seconds from the moment when the queue is resumed to that when the last handler has ended."""
        self._queue.pause()
        ids = self._task.enqueue_many([{}] * jobs)
        self._ids = ids[0], ids[-1]
        begin = time.time_ns() // 1000
        self._queue.resume()
        wait_until(lambda: is_all_done(self._path))
        ((done, end),) = select(
            self._path,
            "SELECT count(*), max(finished_at) FROM holdfast_attempts"
            " WHERE job_id BETWEEN ? AND ? AND outcome = 'succeeded'",
            self._ids,
        )
        assert done == jobs
        return float(end - begin) / 1e6

    def unevenness(self) -> float:
        """The largest share of the last drain to the smallest."""
        rows = select(
            self._path,
            "SELECT count(*) FROM holdfast_attempts WHERE job_id BETWEEN ? AND ? AND outcome = 'succeeded'"
            " GROUP BY worker ORDER BY 1",
            self._ids,
        )
        return float("inf") if len(rows) < self._size else float(rows[-1][0] / rows[0][0])


@contextmanager
def team(path: Path, size: int) -> Iterator[Team]:
    with Holdfast(path, durability="normal") as app:
        processes = [_spawn.Process(target=_work, args=(path,)) for _ in range(size)]
        for process in processes:
            process.start()
        try:
            wait_until(lambda: workers_at_work(path) == size)
            yield Team(app, path, size)
        finally:
            for process in processes:
                process.terminate()
                process.join()


def _work(path: Path) -> None:
    with Holdfast(path) as app:
        app.task(noop)
        app.worker().run()
