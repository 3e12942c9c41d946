"""How soon another process receives a message, begins a job, begins the job of a dead worker again."""

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

from .measure import Effort, Figure, at_most, percentile
from .workers import wait_until, workers_at_work
from .workload import noop

MESSAGES = 400
JOBS = 500
KILLS = 30
PAUSE_SECONDS = (0.005, 0.05)
PAUSE_BEFORE_KILL_SECONDS = (0.1, 0.4)
LONGEST_WAIT_SECONDS = 90

NOTES = """\
- **Long poll:** from the call of `send` in one process, NORMAL, to the return of `receive(wait=20)` in another.
- **Wake-up:** both processes at NORMAL, single jobs with random pauses of 5 to 50 ms. The clock starts when `enqueue`
  has returned and stops in the first line of the handler; where it stops before it starts, that counts as it is. The
  line without a target starts it before `enqueue` is called.
- **Kill -9:** two worker processes, and a job that does not end. Its worker is killed 100 to 400 ms after it has
  begun; the time is from right before the kill to the first line of the handler in the other worker.
"""

_spawn = multiprocessing.get_context("spawn")
_random = random.Random(1)


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield from _wake_up(folder / "wake-up.db", effort.of(JOBS, least=50))
    yield _long_poll(folder / "long-poll.db", effort.of(MESSAGES, least=30))
    yield _recovery(folder / "recovery.db", effort.of(KILLS, least=4))


def _long_poll(path: Path, count: int) -> Figure:
    with Holdfast(path, durability="normal") as app:
        queue = app.queue("inbox")
        ours, theirs = _spawn.Pipe()
        receiver = _spawn.Process(target=_receive, args=(path, count, theirs))
        receiver.start()
        theirs.close()  # so that recv raises if the receiver dies
        ours.recv()
        for _ in range(count):
            time.sleep(_random.uniform(*PAUSE_SECONDS))  # so that the receiver waits again
            queue.send(time.monotonic_ns())
        latencies: list[float] = ours.recv()
        receiver.join()
    return Figure("long poll: send called to received, between processes", _percentiles(latencies))


def _receive(path: Path, count: int, results: Connection) -> None:
    latencies: list[float] = []
    with Holdfast(path, durability="normal") as app:
        queue = app.queue("inbox")
        results.send("ready")
        while len(latencies) < count and (message := queue.receive(wait=20)) is not None:
            latencies.append((time.monotonic_ns() - message.body) / 1e6)
            message.ack()
    results.send(latencies)


def _wake_up(path: Path, count: int) -> Iterator[Figure]:
    called: list[int] = []
    returned: list[int] = []
    with Holdfast(path, durability="normal") as app:
        task = app.task(noop)
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=_run_and_note, args=(path, count, theirs))
        process.start()
        theirs.close()  # so that recv raises if the worker dies
        wait_until(lambda: workers_at_work(path) == 1)
        for _ in range(count):
            time.sleep(_random.uniform(*PAUSE_SECONDS))  # so that the worker waits again
            called.append(time.monotonic_ns())
            task.enqueue()
            returned.append(time.monotonic_ns())
        begun = sorted(ours.recv())
        process.join()
    latencies = _milliseconds(returned, begun)
    ours_text = f"of {count} jobs, worst {max(latencies):.2f} ms"
    name = "wake-up: enqueue returned to handler begun, between processes"
    yield Figure(f"{name}, p50", ours_text, reached=percentile(latencies, 0.5), target=at_most(0.5, "ms"))
    yield Figure(f"{name}, p99", ours_text, reached=percentile(latencies, 0.99), target=at_most(5, "ms"))
    name = "wake-up: enqueue called to handler begun, between processes"
    yield Figure(name, _percentiles(_milliseconds(called, begun)))


def _run_and_note(path: Path, count: int, results: Connection) -> None:
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


def _milliseconds(begins: list[int], ends: list[int]) -> list[float]:
    return [(end - begin) / 1e6 for begin, end in zip(begins, ends, strict=True)]


def _percentiles(latencies: list[float]) -> str:
    return f"p50 {percentile(latencies, 0.5):.2f} ms, p99 {percentile(latencies, 0.99):.2f} ms"


def _recovery(path: Path, kills: int) -> Figure:
    latencies: list[float] = []
    with Holdfast(path, durability="normal") as app, ExitStack() as stack:
        task = app.task(noop)
        pair = [HeldWorker(path), HeldWorker(path)]
        stack.callback(_kill_all, pair)
        for _ in range(kills):
            wait_until(lambda: workers_at_work(path) == len(pair))
            job = task.enqueue()
            victim, _ = _next_to_begin(pair)
            time.sleep(_random.uniform(*PAUSE_BEFORE_KILL_SECONDS))
            pair.remove(victim)
            killed = time.monotonic_ns()
            victim.kill()
            survivor, begun = _next_to_begin(pair)
            latencies.append((begun - killed) / 1e6)
            survivor.finish()
            wait_until(lambda job=job: app.jobs.get(job.id).status == "succeeded")  # type: ignore[misc]
            pair.append(HeldWorker(path))
    return Figure(
        "worker: kill -9 to the handler begun again in another, p95",
        f"of {kills} kills, p50 {percentile(latencies, 0.5):.1f} ms, worst {max(latencies):.1f} ms",
        reached=percentile(latencies, 0.95),
        target=at_most(100, "ms"),
    )


class HeldWorker:
    """A worker process whose handler says when it begins, and ends when it is told to."""

    def __init__(self, path: Path) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_run_and_hold, args=(path, theirs))
        self._process.start()
        theirs.close()  # so that recv raises if the worker dies

    def finish(self) -> None:
        self.pipe.send(None)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _kill_all(workers: list[HeldWorker]) -> None:
    for worker in workers:
        worker.kill()


def _next_to_begin(workers: list[HeldWorker]) -> tuple[HeldWorker, int]:
    """The worker whose handler begins next, and when it began."""
    ready = cast(list[Connection], wait([worker.pipe for worker in workers], LONGEST_WAIT_SECONDS))
    assert ready, "no worker has begun the job"
    (worker,) = (worker for worker in workers if worker.pipe is ready[0])
    return worker, worker.pipe.recv()


def _run_and_hold(path: Path, pipe: Connection) -> None:
    logging.disable(logging.WARNING)  # that a worker has died is expected

    def noop() -> None:
        pipe.send(time.monotonic_ns())
        pipe.recv()

    with Holdfast(path, durability="normal") as app:
        app.task(noop)
        app.worker().run()
