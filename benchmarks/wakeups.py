"""How soon a waiting worker begins a single job that another process enqueues."""

import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from holdfast import Holdfast

from .handlers import noop
from .measure import Effort, Figure, Target, percentile
from .probes import wait_until, workers_at_work

JOBS = 500
PAUSE_SECONDS = (0.005, 0.05)

_spawn = multiprocessing.get_context("spawn")


def worker_wake_up(folder: Path, effort: Effort) -> Iterator[Figure]:
    """From the return of enqueue to the first line of the handler: below zero, where the worker was quicker."""
    called, returned, begun = _enqueue_singly(folder / "wake-up.db", effort.of(JOBS, least=50))
    latencies = _milliseconds(returned, begun)
    middle, late = percentile(latencies, 0.5), percentile(latencies, 0.99)
    ours = f"of {len(latencies)} jobs, worst {max(latencies):.2f} ms"
    name = "worker: enqueue returned to handler begun, between processes"
    yield Figure(f"{name}, p50", "–", ours, middle, target=Target(0.5, at_least=False, unit="ms"))
    yield Figure(f"{name}, p99", "–", ours, late, target=Target(5, at_least=False, unit="ms"))
    whole = _milliseconds(called, begun)
    whole_text = f"p50 {percentile(whole, 0.5):.2f} ms, p99 {percentile(whole, 0.99):.2f} ms"
    yield Figure("worker: enqueue called to handler begun, between processes", "–", whole_text)


def _enqueue_singly(path: Path, count: int) -> tuple[list[int], list[int], list[int]]:
    """The moments when each was enqueued, when that had returned, and when its handler began."""
    called: list[int] = []
    returned: list[int] = []
    with Holdfast(path, durability="normal") as app:
        task = app.task(noop)
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=_work, args=(path, count, theirs))
        process.start()
        theirs.close()  # so that recv raises if the worker dies
        wait_until(lambda: workers_at_work(path) == 1)
        chance = random.Random(1)
        for _ in range(count):
            time.sleep(chance.uniform(*PAUSE_SECONDS))  # so that the worker waits again
            called.append(time.monotonic_ns())
            task.enqueue()
            returned.append(time.monotonic_ns())
        begun: list[int] = ours.recv()
        process.join()
    assert len(begun) == count
    return called, returned, sorted(begun)


def _milliseconds(begins: list[int], ends: list[int]) -> list[float]:
    return [(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)]


def _work(path: Path, count: int, results: Connection) -> None:
    begun: list[int] = []

    def noop() -> None:
        begun.append(time.monotonic_ns())
        if len(begun) == count:
            worker.stop()

    with Holdfast(path, durability="normal") as app:
        app.task(noop)
        worker = app.worker()
        worker.run()
    results.send(begun)
