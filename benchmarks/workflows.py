"""What chains and blockers cost: a step of a chain against a plain job, and the release of all who wait for one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast import Holdfast, Then

from .handlers import noop, remove
from .measure import Effort, Figure, Target, take_turns

JOBS = 20_000
STEPS = 10
LINE = 500
DEPENDENTS = 1_000
DEARER = Target(1.5, at_least=False)


def chains_and_blockers(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _many_chains(folder, effort)
    yield _one_chain(folder, effort)
    yield _release(folder, effort)


def _many_chains(folder: Path, effort: Effort) -> Figure:
    """From the enqueue to the end: of a chain only its first job is enqueued, so that is part of the cost."""
    chains = effort.of(JOBS, least=2_000) // STEPS
    contest = take_turns(
        effort.rounds,
        lambda: _run(folder / "plain.db", lambda app: _enqueue_plain(app, chains * STEPS), chains * STEPS),
        lambda: _run(folder / "chains.db", lambda app: _enqueue_chains(app, chains, STEPS), chains * STEPS),
    )
    name = f"{chains} chains of {STEPS} steps, to as many plain jobs, enqueued and run"
    return contest.as_slowdown(name, chains * STEPS, DEARER)


def _one_chain(folder: Path, effort: Effort) -> Figure:
    """One after the other, so nothing is done in batches; the plain jobs each enqueue the next."""
    steps = effort.of(LINE, least=50)
    contest = take_turns(
        effort.rounds,
        lambda: _run(folder / "plain.db", lambda app: _enqueue_relay(app, steps), steps),
        lambda: _run(folder / "chain.db", lambda app: _enqueue_chains(app, 1, steps), steps),
    )
    return contest.as_slowdown(f"one chain of {steps} steps, to jobs that each enqueue the next", steps, DEARER)


def _release(folder: Path, effort: Effort) -> Figure:
    dependents = effort.of(DEPENDENTS, least=100)
    taken = [_release_once(folder / "release.db", dependents) * 1000 for _ in range(effort.rounds)]
    value = median(taken)
    return Figure(
        f"release of {dependents} jobs that wait for one, with its end",
        "",
        f"{value:.1f} ms",
        value,
        (min(taken), max(taken)),
        Target(50, at_least=False, unit="ms"),
    )


def _release_once(path: Path, dependents: int) -> float:
    with Holdfast(path) as app:
        task = app.task(noop)
        awaited = app.external("awaited")
        task.using(after=awaited).enqueue_many([{}] * dependents)
        begin = perf_counter()
        app.jobs.complete(awaited.id)
        taken = perf_counter() - begin
        assert app.jobs.count(status="ready") == dependents
    remove(path)
    return taken


def _run(path: Path, enqueue: Callable[[Holdfast], object], jobs: int) -> float:
    with Holdfast(path) as app:
        begin = perf_counter()
        enqueue(app)
        report = app.worker(until_idle=True).run()
        taken = perf_counter() - begin
    assert report.succeeded == jobs
    remove(path)
    return taken


def _enqueue_plain(app: Holdfast, jobs: int) -> None:
    app.task(noop).enqueue_many([{}] * jobs)


def _enqueue_chains(app: Holdfast, chains: int, steps: int) -> None:
    @app.task
    def step(left: int) -> Then | None:
        return Then(step, left - 1) if left > 1 else None

    step.enqueue_many([{"left": steps}] * chains)


def _enqueue_relay(app: Holdfast, steps: int) -> None:
    @app.task
    def runner(left: int) -> None:
        if left > 1:
            runner.enqueue(left - 1)

    runner.enqueue(steps)
