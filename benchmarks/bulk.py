"""Ten thousand rows in one call."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .floors import BareJobs
from .measure import Effort, Figure, Target, rate, take_turns
from .queues import HoldfastQueue, on_new_file
from .workload import BODY

ROWS = 10_000
CALLS = 5

NOTES = """\
- **Bulk:** each turn has a new file, FULL, one call that is not measured and five that are. The floor is a bare
  `executemany` into the slim jobs table in one transaction, with `json.dumps` of every row. Ours checks every row
  and writes its event as well.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    rows = [BODY | {"n": number} for number in range(effort.of(ROWS))]

    def turn(make: Callable[[Path], Any], method: str) -> Callable[[], float]:
        def work(queue: Any) -> float:
            insert = partial(getattr(queue, method), rows)
            insert()
            return rate(insert, CALLS) * len(rows)

        return partial(on_new_file, folder / "bulk.db", make, work)

    ours = partial(HoldfastQueue, durability="full")
    rates = take_turns(
        effort.rounds,
        "rows/s",
        {
            "enqueue_many": turn(ours, "enqueue_many"),
            "send_many": turn(ours, "send_many"),
            "floor": turn(partial(BareJobs, synchronous="FULL"), "enqueue_many"),
        },
    )
    for method in ("enqueue_many", "send_many"):
        yield rates.ratio(f"{method}, FULL, {len(rows):,} a call ÷ bare executemany", method, "floor")
    reached, target = rates.median("enqueue_many"), Target(120_000, unit="rows/s")
    yield Figure(f"enqueue_many, FULL, {len(rows):,} a call", rates.text("enqueue_many"), "", reached, None, target)
