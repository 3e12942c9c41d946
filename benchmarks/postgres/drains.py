"""How fast workers run tasks that do nothing: beside bare statements, beside peers, in several processes."""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, Target, at_most, take_turns
from ..workload import noop
from .floor import bare_drain
from .peers import pgqueuer_drain, procrastinate_drain
from .server import Server, wait_until_done, worker

JOBS, PEER_JOBS, WARM_UP = 20_000, 1_000, 1_000
NOTES = """\
- **Drain:** a new `holdfast worker` with full history. It runs 1,000 jobs that are not measured; then the
  paused queue is filled with 20,000 jobs and resumed. **Floor:** a psycopg loop that settles 100 jobs and
  claims the next 100 in one transaction, and writes the same rows to the same tables and indexes, without
  triggers. **procrastinate:** its worker with concurrency 10, on 1,000 jobs. **pgqueuer:** its worker in drain
  mode with batches of 100, on 1,000 jobs. Both peers are measured from their first job to their last, so that
  the start and the end of a worker do not count.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    jobs, few = effort.of(JOBS, least=2_000), effort.of(PEER_JOBS, least=300)
    shares: list[float] = []

    def on_new(run: Callable[[str, int], float], number: int) -> Callable[[], float]:
        def turn() -> float:
            with server.database() as url:
                return run(url, number)

        return turn

    rates = take_turns(
        effort.rounds,
        "jobs/s",
        {
            "floor": on_new(bare_drain, jobs),
            "one": on_new(drain, jobs),
            "procrastinate": on_new(procrastinate_drain, few),
            "pgqueuer": on_new(pgqueuer_drain, few),
            "four": on_new(lambda url, number: drain(url, number, 4, shares), jobs),
        },
    )
    one = rates.median("one")
    yield Figure("drain, one process", rates.text("one"), "", one, None, Target(10_000, unit="jobs/s"))
    yield rates.ratio("drain, one process ÷ bare psycopg loop", "one", "floor", Target(0.5))
    yield rates.ratio("drain, one process ÷ procrastinate", "one", "procrastinate", Target(10))
    yield rates.ratio("drain, one process ÷ pgqueuer", "one", "pgqueuer", Target(1.5))
    yield rates.ratio("drain, four processes ÷ one", "four", "one", Target(1))
    name, spread = "drain, four processes: largest ÷ smallest share", (min(shares), max(shares))
    yield Figure(name, f"of {jobs:,} jobs", "", median(shares), spread, at_most(3, "×"))


def drain(url: str, jobs: int, processes: int = 1, shares: list[float] | None = None) -> float:
    """The jobs that `holdfast worker` runs in a second."""
    with worker(url, processes), Holdfast(url) as app:
        task, queue = app.task(noop), app.queue("default")
        task.enqueue_many([{}] * WARM_UP)
        wait_until_done(url)
        queue.pause()
        ids = task.enqueue_many([{}] * jobs)
        begin = perf_counter()
        queue.resume()
        wait_until_done(url)
        taken = perf_counter() - begin
    if shares is not None:
        with psycopg.connect(url) as connection:
            query = "SELECT count(*) FROM holdfast_jobs WHERE id >= %s GROUP BY worker ORDER BY 1"
            counts = [count for (count,) in connection.execute(query, (ids[0],)).fetchall()]
        shares.append(float("inf") if len(counts) < processes else counts[-1] / counts[0])
    return jobs / taken
