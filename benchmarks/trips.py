"""Send, receive and ack, one message at a time."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Queue

from .floors import PlainQueue
from .measure import Effort, Figure, Target, seconds, take_turns, warm_up
from .workload import BODY

TRIPS = 2_500


def round_trips(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _contest(folder, effort, True, Target(0.4))
    yield _contest(folder, effort, False, Target(0.6))


def round_trip(queue: Queue[Any], body: Any) -> None:
    queue.send(body)
    message = queue.receive()
    assert message is not None and message.ack()


def _contest(folder: Path, effort: Effort, history: bool, target: Target) -> Figure:
    trips = effort.of(TRIPS)
    kind = "history" if history else "bare"
    floor = PlainQueue(folder / f"floor-trips-{kind}.db", "NORMAL")
    path = folder / f"trips-{kind}.db"
    with Holdfast(path, durability="normal") as app:
        queue = app.queue("inbox", history=history)
        plain, ours = partial(floor.round_trip, BODY), partial(round_trip, queue, BODY)
        warm_up(plain, floor.path)
        warm_up(ours, path)
        contest = take_turns(effort.rounds, lambda: seconds(plain, trips), lambda: seconds(ours, trips))
        assert queue.stats().total == floor.count() == 0
    floor.close()
    history_text = "" if history else ", history=False"
    return contest.as_speed(f"send + receive + ack, NORMAL{history_text}", trips, "/s", target)
