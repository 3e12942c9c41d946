"""How soon another worker begins a job again whose worker was killed."""

import logging
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

from holdfast import Holdfast

from .handlers import noop
from .measure import Effort, Figure, Target, percentile
from .probes import wait_until, workers_at_work

KILLS = 30
PAUSE_SECONDS = (0.1, 0.4)
PATIENCE_SECONDS = 90

_spawn = multiprocessing.get_context("spawn")


def recovery_after_kill(folder: Path, effort: Effort) -> Iterator[Figure]:
    kills = effort.of(KILLS, least=4)
    path = folder / "recovery.db"
    chance = random.Random(1)
    with Holdfast(path, durability="normal") as app, ExitStack() as stack:
        task = app.task(noop)
        pair = [Member(path), Member(path)]
        stack.callback(lambda: [member.kill() for member in pair])
        latencies: list[float] = []
        for _ in range(kills):
            wait_until(lambda: workers_at_work(path) == len(pair))
            job = task.enqueue()
            victim, _ = _who_begins(pair)
            time.sleep(chance.uniform(*PAUSE_SECONDS))  # the other waits meanwhile, for a second at most at a time
            pair.remove(victim)
            killed = time.monotonic_ns()
            victim.kill()
            survivor, begun = _who_begins(pair)
            latencies.append((begun - killed) / 1e6)
            survivor.let_go()
            wait_until(lambda job=job: app.jobs.get(job.id).status == "succeeded")  # type: ignore[misc]
            pair.append(Member(path))
    yield Figure(
        "worker: kill -9 to the handler begun again in another, p95",
        "–",
        f"of {kills} kills, p50 {percentile(latencies, 0.5):.1f} ms, worst {max(latencies):.1f} ms",
        percentile(latencies, 0.95),
        target=Target(100, at_least=False, unit="ms"),
    )


class Member:
    """A worker process whose handler says when it begins, and ends when it is let go."""

    def __init__(self, path: Path) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_work, args=(path, theirs))
        self._process.start()
        theirs.close()  # so that recv raises if the worker dies

    def let_go(self) -> None:
        self.pipe.send(None)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _who_begins(members: list[Member]) -> tuple[Member, int]:
    """Whose handler begins next, and when it did."""
    ready = cast(list[Connection], wait([member.pipe for member in members], PATIENCE_SECONDS))
    assert ready, "no worker has begun the job"
    (member,) = (member for member in members if member.pipe is ready[0])
    return member, member.pipe.recv()


def _work(path: Path, pipe: Connection) -> None:
    logging.disable(logging.WARNING)  # that a worker has died is no news here

    def noop() -> None:
        pipe.send(time.monotonic_ns())
        pipe.recv()

    with Holdfast(path, durability="normal") as app:
        app.task(noop)
        app.worker().run()
