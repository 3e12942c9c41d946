"""How soon an idle worker starts a job, and what it costs while it is idle."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter, sleep

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, at_most
from ..workers import cpu_seconds
from ..workload import noop
from .server import Server, wait_until_done, worker

JOBS, IDLE_SECONDS, SETTLE_SECONDS = 200, 20, 0.05
NOTES = """\
- **Wake-up:** from before the call of `enqueue` to the start of the job, with the enqueue's own commit, in another
  process that is idle. **Idle:** processor time of the worker's process, of one core.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    jobs = effort.of(JOBS, least=20)
    with server.database() as url, worker(url) as pid, Holdfast(url) as app:
        task, waits = app.task(noop), []
        task.enqueue()
        wait_until_done(url)
        for _ in range(jobs):
            sleep(SETTLE_SECONDS)  # the worker falls asleep
            called = app.store.clock.now()
            job = task.enqueue()
            wait_until_done(url)
            waits.append((_started_at(url, job.id) - called) / 1000)
        yield Figure("wake-up, p50", f"{median(waits):.2f} ms", "", median(waits), None, at_most(2, "ms"))
        before, begin = cpu_seconds(pid), perf_counter()
        sleep(effort.of(IDLE_SECONDS, least=5))
        used = 100 * (cpu_seconds(pid) - before) / (perf_counter() - begin)
        yield Figure("idle worker, of one core", f"{used:.2f} %", "", used, None, at_most(0.5, "%"))


def _started_at(url: str, id: int) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT started_at FROM holdfast_jobs WHERE id = %s", (id,)).fetchone()
    assert row is not None
    return int(row[0])
