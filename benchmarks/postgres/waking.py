"""How soon an idle worker starts a job, and what it costs while it is idle."""

import os
import signal
from collections.abc import Iterator
from statistics import median
from time import perf_counter, sleep
from typing import Any

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, at_most, percentile
from ..workers import cpu_seconds, wait_until
from ..workload import nap, noop
from .server import Server, wait_until_done, worker

JOBS, IDLE_SECONDS, SETTLE_SECONDS, KILLS = 200, 20, 0.05, 20
NOTES = """\
- **Wake-up:** from before the call of `enqueue` to the start of the job, with the enqueue's own commit, in another
  process that is idle. **Idle:** processor time of the worker's process, of one core.
  **kill -9:** of the worker that runs a job, until another one has claimed it.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    jobs = effort.of(JOBS, least=20)
    with (
        server.database() as url,
        worker(url) as pid,
        Holdfast(url) as app,
        psycopg.connect(url, autocommit=True) as watcher,
    ):
        task, waits = app.task(noop), []
        task.enqueue()
        wait_until_done(url)
        for _ in range(jobs):
            sleep(SETTLE_SECONDS)  # the worker falls asleep
            called = app.store.clock.now()
            job = task.enqueue()
            sleep(SETTLE_SECONDS)  # a look, and a new connection even more, would take the worker's processor
            wait_until_done(url)
            waits.append((_started_at(watcher, job.id) - called) / 1000)
        yield Figure("wake-up, p50", f"{median(waits):.2f} ms", "", median(waits), None, at_most(2, "ms"))
        before, begin = cpu_seconds(pid), perf_counter()
        sleep(effort.of(IDLE_SECONDS, least=5))
        used = 100 * (cpu_seconds(pid) - before) / (perf_counter() - begin)
        yield Figure("idle worker, of one core", f"{used:.2f} %", "", used, None, at_most(0.5, "%"))
    yield from _killed(server, effort.of(KILLS, least=3))


def _started_at(watcher: psycopg.Connection[Any], id: int) -> int:
    row = watcher.execute("SELECT started_at FROM holdfast_jobs WHERE id = %s", (id,)).fetchone()
    assert row is not None
    return int(row[0])


def _killed(server: Server, kills: int) -> Iterator[Figure]:
    """From kill -9 of a worker to the start of its job in another."""
    waits = []
    for _ in range(kills):
        with server.database() as url, worker(url), worker(url, at_work=2), Holdfast(url) as app:
            job = app.task(nap).enqueue()
            with psycopg.connect(url, autocommit=True) as connection:
                started = "SELECT w.pid, j.attempt FROM holdfast_jobs j JOIN holdfast_workers w ON w.id = j.worker "
                started += "WHERE j.id = %s AND j.status = 'running'"

                def running(attempt: int, query: str = started, id: int = job.id) -> int:
                    row = connection.execute(query, (id,)).fetchone()
                    return int(row[0]) if row is not None and row[1] == attempt else 0

                wait_until(lambda: running(1) > 0)
                killed = perf_counter()
                os.kill(running(1), signal.SIGKILL)
                wait_until(lambda: running(2) > 0)
                waits.append(perf_counter() - killed)
                app.jobs.cancel(job.id)
    slow = percentile(waits, 0.95)
    yield Figure("kill -9 to running elsewhere, p95", f"{slow:.2f} s", "", slow, None, at_most(1, "s"))
