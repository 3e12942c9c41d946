"""Ten thousand rows in one call."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast import Holdfast

from .floors import PlainBulk
from .measure import Effort, Figure, Target, seconds, take_turns
from .workload import BODY, Durability, order, stored

ROWS = 10_000
CALLS = 3

Insert = Callable[[Sequence[Any]], object]


def bulk_inserts(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _contest(folder, effort, "full", "send_many", Target(0.5))
    yield _contest(folder, effort, "full", "enqueue_many", Target(0.5))
    yield _contest(folder, effort, "normal", "send_many", None)


def _contest(folder: Path, effort: Effort, durability: Durability, what: str, target: Target | None) -> Figure:
    rows = [BODY | {"number": number} for number in range(effort.of(ROWS))]
    floor_path, path = folder / f"floor-{what}-{durability}.db", folder / f"{what}-{durability}.db"
    Holdfast(floor_path).close()
    floor = PlainBulk(floor_path, durability, None if what == "send_many" else "order")
    with Holdfast(path, durability=durability) as app:
        insert: Insert = app.queue("inbox").send_many if what == "send_many" else app.task(order).enqueue_many
        for warmed in (floor.insert, insert):
            seconds(lambda warmed=warmed: warmed(rows), CALLS)  # type: ignore[misc]
        contest = take_turns(
            effort.rounds,
            lambda: seconds(lambda: floor.insert(rows), CALLS),
            lambda: seconds(lambda: insert(rows), CALLS),
        )
        assert floor.count() == stored(path) == len(rows) * CALLS * (effort.rounds + 1)
    floor.close()
    return contest.as_speed(
        f"{what}, {len(rows):,} a call, {durability.upper()}", len(rows) * CALLS, "rows/s", target
    )
