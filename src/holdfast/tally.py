"""What is counted from the beginning on, for meters that only count up. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from .rollup import Sample

# Microseconds: the bounds of the histograms of how long attempts waited and ran. The last one is above all.
ABOVE_ALL = 1 << 62
BOUNDS = (
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
    60_000_000, 300_000_000, 3_600_000_000, ABOVE_ALL,
)  # fmt: skip

ERROR = "error:"  # before a code

Row = tuple[str, str, str, int, int, int, int, int]  # as the fields of Tally
_Place = tuple[str, str, str, int, int]


class Tally(Struct, frozen=True, gc=False):
    """So many attempts of a task, or messages of a queue, ended in one way. Times are microseconds."""

    queue: str
    task: str  # '': messages
    what: str  # the transition, as the history calls it; or ERROR and a code
    waited_upto: int  # of the bounds; 0: not measured
    ran_upto: int
    count: int
    waited: int  # in all
    ran: int


class Tallies(Struct, frozen=True):
    enqueued: int
    """How many jobs and messages there ever were."""
    rows: list[Tally]
    paused: list[str]
    """Queues that nothing is taken from."""


def bound_of(microseconds: int) -> int:
    """The least bound that it does not exceed."""
    return BOUNDS[bisect_left(BOUNDS, microseconds)]


def rows(samples: Iterable[Sample]) -> list[Row]:
    """As they are added to the table of tallies."""
    counts, waited, ran = Counter[_Place](), Counter[_Place](), Counter[_Place]()
    for one in samples:
        place = (one.queue, one.task, one.what, bound_of(one.waited), bound_of(one.ran))
        counts[place] += 1
        waited[place] += one.waited
        ran[place] += one.ran
    return [(*place, n, waited[place], ran[place]) for place, n in counts.items()]
