"""Pruning a file full of old jobs beside a running load: what it costs that load, and how long an enqueue waits."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from holdfast import Holdfast, Retention

from .files import DAY, build_file, remove
from .measure import Effort, Figure, Target, at_most, percentile, take_turns
from .workload import noop

OLD = 1_000_000
AGE = 40 * DAY
SECONDS = 15
WARM_UP_SECONDS = 1.5
ROUNDS = 3
PRODUCERS = 4
START_SECONDS = 60

NOTES = """\
- **Pruning:** a process that enqueues in four threads and one that runs the jobs, on a file with 1,000,000 jobs that
  ended 40 days ago, each with one attempt and three events; in turns without and with automatic pruning.
"""

_spawn = multiprocessing.get_context("spawn")


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    path, count, is_quick = folder / "pruning.db", effort.of(OLD), effort.part < 0.1
    columns = {"status": "'succeeded'", "queue": "'old'", "task": "'old'", "created_at": ":now - :age + i"}
    build_file(path, count, columns, age=AGE, history=True)
    load = Load(path, 3 if is_quick else SECONDS)
    sides = {"without": lambda: load.run(prunes=False), "beside": lambda: load.run(prunes=True)}
    rates = take_turns(1 if is_quick else ROUNDS, "jobs/s", sides)
    name = f"jobs enqueued and run while {count:,} old ones are pruned ÷ without pruning"
    yield rates.ratio(name, "beside", "without", Target(0.8))
    waits = load.waits[True]
    yield Figure(
        f"longest wait of {len(waits):,} enqueues meanwhile, at {load.pruned_per_second():,.0f} pruned/s",
        _longest(waits),
        _longest(load.waits[False]),
        max(waits) * 1000,
        target=at_most(100, "ms"),
    )
    yield _prune_alone(path)
    remove(path)


def _longest(waits: list[float]) -> str:
    return f"{max(waits) * 1000:,.1f} ms (p99 {percentile(waits, 0.99) * 1000:.1f})"


def _prune_alone(path: Path) -> Figure:
    """Prune what is left with nobody else at work, and give the space back."""
    before = path.stat().st_size
    with Holdfast(path, retention=Retention()) as app:
        begin = perf_counter()
        report = app.prune(hurry=True)
        pruned = perf_counter()
        app.vacuum(hurry=True)
        vacuumed = perf_counter()
    sizes = f"{before / 2**20:,.0f} → {path.stat().st_size / 2**20:,.0f} MiB in {vacuumed - pruned:.1f} s"
    return Figure(
        f"pruned alone, in a hurry: {report.jobs:,}, then vacuum",
        f"{report.jobs / (pruned - begin):,.0f} jobs/s, {sizes}",
    )


class Load:
    """A process that enqueues in several threads, and one that runs the jobs and prunes, or does not prune."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self.waits: dict[bool, list[float]] = {False: [], True: []}  # seconds of each enqueue, by whether it prunes
        self._pruned: list[int] = []

    def run(self, prunes: bool) -> float:
        """The jobs that are run in a second."""
        ours, theirs = _spawn.Pipe()
        worker = _spawn.Process(target=_work, args=(self._path, prunes, theirs))
        worker.start()
        theirs.close()  # so that recv raises if the worker dies
        ours.recv()
        stop, measured = threading.Event(), threading.Event()
        with Holdfast(self._path) as app:
            task, waits = app.task(noop), self.waits[prunes]

            def produce() -> None:
                while not stop.is_set():
                    begin = perf_counter()
                    task.enqueue()
                    if measured.is_set():
                        waits.append(perf_counter() - begin)

            producers = [threading.Thread(target=produce, daemon=True) for _ in range(PRODUCERS)]
            for producer in producers:
                producer.start()
            time.sleep(WARM_UP_SECONDS)
            before = _succeeded(app)
            measured.set()
            time.sleep(self._seconds)
            measured.clear()
            after = _succeeded(app)
            stop.set()
            for producer in producers:
                producer.join()
            ours.send("stop")
            worker.join(START_SECONDS)
        if prunes:
            self._pruned.append(before["old"] - after["old"])
        return (after["noop"] - before["noop"]) / self._seconds

    def pruned_per_second(self) -> float:
        return sum(self._pruned) / len(self._pruned) / self._seconds


def _succeeded(app: Holdfast) -> dict[str, int]:
    counts = {one.task: one.count for one in app.observe.counts().items if one.status == "succeeded"}
    return {"noop": counts.get("noop", 0), "old": counts.get("old", 0)}


def _work(path: Path, prunes: bool, results: Connection) -> None:
    with Holdfast(path, retention=Retention(automatic=prunes)) as app:
        app.task(noop)
        worker = app.worker()
        thread = threading.Thread(target=worker.run)
        thread.start()
        results.send("ready")
        results.recv()
        worker.stop()
        thread.join()
