"""How fast a worker does jobs that do nothing: against the same statements without a worker, and against huey."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from holdfast import Holdfast

from .floors import PlainWorker
from .handlers import fill, noop, noop_async, remove
from .measure import Effort, Figure, Target, take_turns
from .workload import Durability

JOBS = 20_000
HUEY_JOBS = 2_000
HUEY_ROUNDS = 5


def worker_drains(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _contest(folder, effort, "no-op handlers", noop, Target(0.5))
    yield _contest(folder, effort, "async no-op handlers", noop_async, Target(0.35))


def drain_beside_huey(folder: Path, effort: Effort) -> Iterator[Figure]:
    """Nothing, where huey is not installed."""
    if find_spec("huey") is None:
        return
    yield _beside_huey(folder, effort, "normal", "huey at NORMAL")
    yield _beside_huey(folder, effort, "full", "huey at FULL, its default")


def _beside_huey(folder: Path, effort: Effort, level: Durability, title: str) -> Figure:
    from .hueys import drain_by_huey

    jobs, few = effort.of(JOBS, least=2_000), effort.of(HUEY_JOBS, least=200)
    contest = take_turns(
        min(effort.rounds, HUEY_ROUNDS),
        lambda: drain_by_huey(folder / "huey.db", few, level) / few,
        lambda: drain(folder / "ours.db", jobs, noop) / jobs,
    )
    return contest.as_speed(f"worker: no-op handlers, one process, to {title}", 1, "jobs/s", Target(10))


def _contest(folder: Path, effort: Effort, title: str, function: Callable[..., Any], target: Target) -> Figure:
    jobs = effort.of(JOBS, least=2_000)
    contest = take_turns(
        effort.rounds,
        lambda: _drain_plainly(folder / "floor.db", jobs, function),
        lambda: drain(folder / "ours.db", jobs, function),
    )
    return contest.as_speed(f"worker: {title}, one process", jobs, "jobs/s", target)


def _drain_plainly(path: Path, jobs: int, function: Callable[..., Any]) -> float:
    fill(path, jobs, function)
    floor = PlainWorker(path, "NORMAL")
    begin = perf_counter()
    done = floor.drain("default", function.__name__)
    taken = perf_counter() - begin
    floor.close()
    assert done == jobs
    remove(path)
    return taken


def drain(path: Path, jobs: int, function: Callable[..., Any]) -> float:
    """The seconds of `run`: from the start of the worker until it has seen that nothing is left, and has ended."""
    fill(path, jobs, function)
    with Holdfast(path) as app:
        app.task(function)
        worker = app.worker(until_idle=True)
        begin = perf_counter()
        report = worker.run()
        taken = perf_counter() - begin
    assert report.succeeded == jobs
    remove(path)
    return taken
