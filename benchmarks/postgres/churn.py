"""A drain while somebody holds a snapshot: no dead row and no dead index entry of a million jobs can be removed."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter, sleep

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, Target
from ..workers import LOOK_SECONDS
from ..workload import noop
from .server import Server, worker

JOBS, STEP = 20_000, 50_000
IS_LEFT = "SELECT 1 FROM holdfast_jobs WHERE id = %s AND status || '' <> 'succeeded'"
ARE_LEFT = "SELECT 1 FROM holdfast_jobs WHERE id BETWEEN %s AND %s AND status || '' <> 'succeeded' LIMIT 1"
NOTES = """\
- **Held snapshot:** a drain of 20,000 jobs at the start, in each round; then another connection takes a snapshot, the
  worker runs 1,000,000 jobs, and drains 20,000 again, in each round, while the snapshot is still held.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    jobs, churn = effort.of(JOBS, least=2_000), effort.rows
    with server.database() as url, worker(url), Holdfast(url) as app:
        _drain(app, url, 1_000)
        free = [_drain(app, url, jobs) for _ in range(effort.rounds)]
        with psycopg.connect(url) as holder:
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT count(*) FROM holdfast_meta")
            for _ in range(0, churn, STEP):
                _drain(app, url, min(STEP, churn))
            held = [_drain(app, url, jobs) for _ in range(effort.rounds)]
    ratios = [mine / other for mine, other in zip(held, free, strict=True)]
    name = f"drain with a snapshot held over {churn:,} jobs ÷ without"
    ours, beside = (f"{median(one):,.0f} jobs/s" for one in (held, free))
    yield Figure(name, ours, beside, median(ratios), (min(ratios), max(ratios)), Target(0.7))


def _drain(app: Holdfast, url: str, jobs: int) -> float:
    task = app.tasks["noop"] if "noop" in app.tasks else app.task(noop)
    queue = app.queue("default")
    queue.pause()
    ids = task.enqueue_many([{}] * jobs)
    with psycopg.connect(url, autocommit=True) as watcher:
        begin = perf_counter()
        queue.resume()
        # By their ids: a search for ready jobs would pass all dead entries each time, and take longer than the drain.
        for id in (ids[-1], *ids):
            while watcher.execute(IS_LEFT, (id,)).fetchone() is not None:
                sleep(LOOK_SECONDS)
            if id == ids[-1] and watcher.execute(ARE_LEFT, (ids[0], id)).fetchone() is None:
                break
        return jobs / (perf_counter() - begin)
