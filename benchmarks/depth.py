"""Whether a claim costs the same, however many rows there are."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from holdfast import Holdfast, Queue

from .crowds import State, make_crowd
from .measure import Effort, Figure, Target, seconds, take_turns
from .workload import BODY

FEW = 1_000
PAIRS = 900  # in a round; a quick run does fewer
MORE_ROUNDS = 2  # times the usual: these are short

CROWDS: list[tuple[State, str, int]] = [
    ("ready", "ready", 1_000_000),
    ("scheduled", "scheduled", 1_000_000),
    ("failed", "dead", 1_000_000),
    ("running", "in flight", 100_000),
]


def claims_at_depth(folder: Path, effort: Effort) -> Iterator[Figure]:
    for state, title, full_count in CROWDS:
        yield _contest(folder, effort, state, title, effort.of(full_count))


def _contest(folder: Path, effort: Effort, state: State, title: str, count: int) -> Figure:
    pairs = effort.of(PAIRS, least=150)
    few, many = folder / f"few-{state}.db", folder / f"many-{state}.db"
    begin = perf_counter()
    make_crowd(many, state, count)
    building = perf_counter() - begin
    with Holdfast(few) as few_app, Holdfast(many) as many_app:
        shallow, deep = few_app.queue("inbox"), many_app.queue("inbox")
        for queue in (shallow, deep):
            queue.send_many([BODY] * FEW)
            _claim_and_ack(queue, pairs)
        contest = take_turns(
            effort.rounds * MORE_ROUNDS, lambda: _claim_and_ack(shallow, pairs), lambda: _claim_and_ack(deep, pairs)
        )
        assert shallow.stats().ready == FEW
        assert deep.stats().total == count + FEW
    beside = "" if state == "ready" else f" beside {FEW:,} ready"
    name = f"receive + ack, {count:,} {title}{beside} (built in {building:.0f} s)"
    for file in folder.glob("*.db*"):
        file.unlink()
    return contest.as_slowdown(name, pairs, Target(1.25, at_least=False))


def _claim_and_ack(queue: Queue[Any], pairs: int) -> float:
    """The seconds for so many; afterwards, not timed, as many are sent again."""

    def pair() -> None:
        message = queue.receive()
        assert message is not None and message.ack()

    taken = seconds(pair, pairs)
    queue.send_many([BODY] * pairs)
    return taken
