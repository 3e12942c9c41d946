"""Whether a worker finds its jobs as soon where others lie before them, and where they lie in many queues."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from holdfast import Holdfast
from holdfast.model import Claimed, Settlement, Wanted

from .handlers import insert_ready, noop, remove
from .measure import Effort, Figure, Target, take_turns

STRANGERS = 100_000
QUEUES = 1_000
CLAIMED_JOBS = 2_000
CLAIM_LIMIT = 10
LEASE = 60_000_000
JOBS = 5_000
MANY_JOBS = 100_000
FEW_ROUNDS = 3

Work = Callable[[Holdfast, int], float]


def jobs_elsewhere(folder: Path, effort: Effort) -> Iterator[Figure]:
    queues, strangers = effort.of(QUEUES, least=100), effort.of(STRANGERS)
    before, among = f"behind {strangers:,} jobs of an unknown task", f"in {queues:,} queues"
    claimed, jobs, many = effort.of(CLAIMED_JOBS, 500), effort.of(JOBS, 500), effort.of(MANY_JOBS, 2_000)
    claim, rounds = f"worker's claim of {CLAIM_LIMIT} + settle", effort.rounds
    yield _contest(folder, f"{claim}, {before}", _exchange, claimed, rounds, strangers=strangers)
    yield _contest(folder, f"{claim}, {claimed:,} {among}", _exchange, claimed, rounds, queues=queues)
    yield _contest(folder, f"worker: {jobs:,} jobs {before}", _drain, jobs, rounds, strangers=strangers)
    yield _contest(folder, f"worker: {jobs:,} jobs {among}", _drain, jobs, rounds, queues=queues)
    few = min(rounds, FEW_ROUNDS)
    yield _contest(folder, f"worker: {many:,} jobs {among}", _drain, many, few, queues=queues)


def _contest(
    folder: Path, name: str, work: Work, jobs: int, rounds: int, *, strangers: int = 0, queues: int = 1
) -> Figure:
    """Against as many jobs in one queue. Both files stay open; the jobs are put there anew before every turn."""
    plain, other = folder / "plain.db", folder / "other.db"
    with Holdfast(plain) as plain_app, Holdfast(other) as other_app:
        if strangers:
            insert_ready(other, "stranger", strangers)
            other_app.store.checkpoint()

        def turn(app: Holdfast, path: Path, queues: int, jobs: int = jobs) -> float:
            app.task(noop)
            insert_ready(path, noop.__name__, jobs, queues)
            app.store.checkpoint()
            return work(app, jobs)

        turn(plain_app, plain, 1, jobs // 10)  # to warm up
        turn(other_app, other, queues, jobs // 10)
        contest = take_turns(rounds, lambda: turn(plain_app, plain, 1), lambda: turn(other_app, other, queues))
    remove(plain)
    remove(other)
    return contest.as_slowdown(name, jobs, Target(1.5, at_least=False))


def _drain(app: Holdfast, jobs: int) -> float:
    worker = app.worker(until_idle=True)
    begin = perf_counter()
    report = worker.run()
    taken = perf_counter() - begin
    assert report.succeeded == jobs
    return taken


def _exchange(app: Holdfast, jobs: int) -> float:
    """What a worker says to the store, without the worker: settle the last ten and claim ten more."""
    wants = [Wanted(frozenset([noop.__name__]), CLAIM_LIMIT, LEASE, "bench")]
    claimed: list[Claimed] = []
    done = 0
    begin = perf_counter()
    while True:
        now = app.clock.now()
        settlements = [Settlement(one.lease, "succeed", now, now) for one in claimed]
        claimed = app.store.exchange(settlements, wants).claimed
        done += len(settlements)
        if not claimed:
            break
    taken = perf_counter() - begin
    assert done == jobs
    return taken
