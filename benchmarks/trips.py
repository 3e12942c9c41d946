"""Send, receive and acknowledge one message, in three transactions, at NORMAL."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .floors import BareJobs
from .measure import Effort, Figure, Target, rate, seconds, take_turns
from .queues import HoldfastQueue, Litequeue, on_new_file

TRIPS = 2_000
WARM_UP = 300

NOTES = """\
- **Trips:** each turn has a new file, 300 trips that are not measured and 2,000 that are. The floor is three bare
  statements on the slim jobs table. It keeps finished rows, as litequeue and Holdfast with history do.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    path, trips = folder / "trips.db", effort.of(TRIPS)

    def turn(make: Callable[[Path], Any]) -> Callable[[], float]:
        return partial(on_new_file, path, make, lambda queue: _rate(queue, trips))

    rates = take_turns(
        effort.rounds,
        "/s",
        {
            "floor": turn(BareJobs),
            "history": turn(HoldfastQueue),
            "no history": turn(partial(HoldfastQueue, history=False)),
            "litequeue": turn(Litequeue),
        },
    )
    for history, side, to_floor, to_litequeue in (
        ("full history", "history", 0.45, 0.75),
        ("history=False", "no history", 0.6, 1),
    ):
        yield rates.ratio(f"trip, NORMAL, {history} ÷ bare statements", side, "floor", Target(to_floor))
        yield rates.ratio(f"trip, NORMAL, {history} ÷ litequeue", side, "litequeue", Target(to_litequeue))


def _rate(queue: Any, trips: int) -> float:
    seconds(queue.trip, WARM_UP)
    return rate(queue.trip, trips)
