"""What is counted from the beginning on, for meters that only count up. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from msgspec import Struct

from .rollup import ACKED, RUN, WAIT, Group

# Microseconds: the bounds of the histograms of how long attempts waited and ran. The last one is above all.
ABOVE_ALL = 1 << 62
BOUNDS = (
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
    60_000_000, 300_000_000, 3_600_000_000, ABOVE_ALL,
)  # fmt: skip

ERROR = "error:"  # before a code

Row = tuple[str, str, str, int, int, int]  # as the fields of Tally


class Tally(Struct, frozen=True, gc=False):
    """So many attempts of a task, or messages of a queue, ended in one way, waited or ran for so long."""

    queue: str
    task: str  # '': messages
    what: str  # the transition, as the history calls it; WAIT or RUN; or ERROR and a code
    upto: int  # of WAIT and RUN: one of the bounds; else 0
    count: int
    total: int  # microseconds, of all rows of a histogram together


class Tallies(Struct, frozen=True):
    enqueued: int
    """How many jobs and messages there ever were."""
    rows: list[Tally]
    paused: list[str]
    """Queues that nothing is taken from."""


def read(queue: str, task: str, what: str, upto: int, count: int, total: int, ran: int) -> Iterator[Tally]:
    """A row as the database has it: one of messages that were acknowledged is an outcome and two histograms."""
    if what != ACKED:
        yield Tally(queue, task, what, upto, count, total)
        return
    waits, runs = divmod(upto, 100)
    yield Tally(queue, task, "succeeded", 0, count, 0)
    yield Tally(queue, task, WAIT, BOUNDS[waits], count, total)
    yield Tally(queue, task, RUN, BOUNDS[runs], count, ran)


def rows(group: Group) -> Iterator[Row]:
    """As they are added to the table of tallies."""
    yield group.queue, group.task, group.what, 0, len(group.waited), 0
    for what, times in ((WAIT, group.waited), (RUN, group.ran)):
        total = sum(times)
        for upto, n in _counts(times):
            yield group.queue, group.task, what, upto, n, total
            total = 0


def _counts(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """How many of these, which are in order, belong to each bound. It takes steps by bounds, not by times."""
    begin = 0
    while begin < len(times):
        upto = BOUNDS[bisect_left(BOUNDS, times[begin])]
        end = bisect_right(times, upto, begin)
        yield upto, end - begin
        begin = end
