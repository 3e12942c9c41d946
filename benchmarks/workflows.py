"""What chains and blockers cost: a step of a chain beside a plain job, and the release of all that wait."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast import Holdfast, Then

from .files import remove
from .measure import Effort, Figure, Target, at_most, take_turns
from .workload import noop

JOBS = 20_000
STEPS = 10
LONG_CHAIN = 500
DEPENDENTS = 1_000

NOTES = """\
- **Chains:** both sides are ours, with the enqueue in the time, since of a chain only the first job is enqueued. Many
  chains at once are settled in batches, as plain jobs are. One chain alone is not: beside it is a job whose handler
  enqueues the next, which is on disk before it goes on.
- **Release:** one external job, and jobs that wait for it; the time of `app.jobs.complete`, at FULL, which makes all
  of them ready in the same transaction.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    path, chains = folder / "workflow.db", effort.of(JOBS, least=2_000) // STEPS
    steps = effort.of(LONG_CHAIN, least=50)
    rates = take_turns(
        effort.rounds,
        "jobs/s",
        {
            "plain": lambda: _run(path, partial(_enqueue_plain, jobs=chains * STEPS), chains * STEPS),
            "chains": lambda: _run(path, partial(_enqueue_chains, chains=chains, steps=STEPS), chains * STEPS),
            "relay": lambda: _run(path, partial(_enqueue_relay, steps=steps), steps),
            "one chain": lambda: _run(path, partial(_enqueue_chains, chains=1, steps=steps), steps),
        },
    )
    name = f"{chains:,} chains of {STEPS} steps ÷ as many plain jobs, enqueued and run"
    yield rates.ratio(name, "chains", "plain", Target(0.67))
    name = f"one chain of {steps} steps ÷ jobs that each enqueue the next"
    yield rates.ratio(name, "one chain", "relay", Target(0.67))
    dependents = effort.of(DEPENDENTS, least=100)
    taken = [_release(path, dependents) * 1000 for _ in range(effort.rounds)]
    name, reached = f"release of {dependents:,} jobs that wait for one, with its end", median(taken)
    yield Figure(name, f"{reached:.1f} ms", "", reached, (min(taken), max(taken)), at_most(50, "ms"))


def _release(path: Path, dependents: int) -> float:
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
    return jobs / taken


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
