"""Whether a claim costs the same however many rows there are, behind jobs of others, and in many queues."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from holdfast import Holdfast, Queue

from .files import build_file, remove
from .measure import Effort, Figure, Target, rate, take_turns
from .workload import BODY, noop, order

FEW = 1_000
PAIRS = 900  # in a round; a quick run does fewer
MORE_ROUNDS = 2  # times the usual number: these are short
CROWDS = [("ready", 1_000_000), ("scheduled", 1_000_000), ("failed", 1_000_000), ("running", 100_000)]

FOREIGN = 100_000
QUEUES = 1_000
JOBS = 5_000

NOTES = """\
- **Depth:** both sides are ours: a file with 1,000 ready messages, and the same beside the crowd. Both files stay
  open, and what was taken is sent again between rounds, outside the measured time. One INSERT makes the crowd.
- **Foreign jobs, many queues:** both sides are `app.worker(until_idle=True)` in this process, beside as many jobs in
  one queue. The foreign jobs are older, in the same queue, of a task that the worker does not have.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    for status, count in CROWDS:
        yield _receive_and_ack(folder, effort, status, effort.of(count))
    yield from _drains(folder, effort)


def _receive_and_ack(folder: Path, effort: Effort, status: str, count: int) -> Figure:
    pairs = effort.of(PAIRS, least=150)
    few, many = folder / "few.db", folder / "many.db"
    build_file(many, count, {"status": f"'{status}'"})
    with Holdfast(few) as few_app, Holdfast(many) as many_app:
        queues = {"few": few_app.queue("inbox"), "many": many_app.queue("inbox")}
        for queue in queues.values():
            queue.send_many([BODY] * FEW)
            _pairs(queue, pairs)
        rates = take_turns(
            effort.rounds * MORE_ROUNDS,
            "/s",
            {"few": lambda: _pairs(queues["few"], pairs), "many": lambda: _pairs(queues["many"], pairs)},
        )
    remove(few)
    remove(many)
    name = f"receive + ack beside {count:,} {status} messages ÷ among {FEW:,} ready ones"
    return rates.ratio(name, "many", "few", Target(0.8))


def _pairs(queue: Queue[Any], pairs: int) -> float:
    def pair() -> None:
        message = queue.receive()
        assert message is not None and message.ack()

    reached = rate(pair, pairs)
    queue.send_many([BODY] * pairs)
    return reached


def _drains(folder: Path, effort: Effort) -> Iterator[Figure]:
    jobs, foreign, queues = effort.of(JOBS, 500), effort.of(FOREIGN), effort.of(QUEUES, 100)
    with Holdfast(folder / "behind.db") as app:  # another app, since the worker must not have this task
        app.task(order).enqueue_many([BODY] * foreign)
    with ExitStack() as stack:
        one, behind, many = (
            stack.enter_context(Holdfast(folder / f"{name}.db", durability="normal"))
            for name in ("one", "behind", "many")
        )

        def in_one_queue(app: Holdfast) -> None:
            app.task(noop).enqueue_many([{}] * jobs)

        def in_many_queues(app: Holdfast) -> None:
            task = app.task(noop)
            for number in range(queues):
                task.using(queue=f"queue-{number}").enqueue_many([{}] * (jobs // queues))

        rates = take_turns(
            effort.rounds,
            "jobs/s",
            {
                "one": lambda: _drain(one, in_one_queue),
                "behind": lambda: _drain(behind, in_one_queue),
                "many": lambda: _drain(many, in_many_queues),
            },
        )
    name = f"worker, {jobs:,} jobs"
    yield rates.ratio(f"{name} behind {foreign:,} foreign ones ÷ alone", "behind", "one", Target(0.67))
    yield rates.ratio(f"{name} in {queues:,} queues ÷ in one", "many", "one", Target(0.67))


def _drain(app: Holdfast, enqueue: Callable[[Holdfast], None]) -> float:
    enqueue(app)
    worker = app.worker(until_idle=True)
    begin = perf_counter()
    report = worker.run()
    return report.succeeded / (perf_counter() - begin)
