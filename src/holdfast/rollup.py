"""What is kept of many attempts: how many ended in which way, and how long they waited and ran. Pure."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

MINUTE = 60_000_000

# What is counted, beside the names of the transitions.
WAIT, RUN, ATTEMPTS = "wait", "run", "attempts"
ACKED = "acked"  # a message: all of these in one

Row = tuple[int, str, str, str, int, int]  # minute, queue, task, what, bucket, how many


class Sample(Struct, frozen=True, gc=False):
    """One attempt that has ended. Times are microseconds."""

    queue: str
    task: str
    what: str  # the transition, as the history calls it
    at: int
    waited: int
    ran: int
    attempt: int | None  # if the job has ended with it


def least_of(bucket: int) -> int:
    """The least number of microseconds that belongs to a bucket. There are four to each power of two, so that none is
    wider than a quarter of its least."""
    if bucket < 4:
        return bucket
    power, part = divmod(bucket, 4)
    return (4 + part) << (power - 1)


LEASTS = [least_of(bucket) for bucket in range(184)]  # to above two years, which is all one bucket


def counts(times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """How many of these, which are in order, belong to each bucket. It takes steps by buckets, not by times."""
    begin = 0
    while begin < len(times):
        beyond = bisect_right(LEASTS, times[begin])
        end = len(times) if beyond == len(LEASTS) else bisect_left(times, LEASTS[beyond], begin)
        yield beyond - 1, end - begin
        begin = end


def unpacked(bucket: int) -> tuple[tuple[str, int], ...]:
    """What is in a bucket of ACKED, and the bucket of each."""
    rest, ran = divmod(bucket, 1000)
    attempt, waited = divmod(rest, 1000)
    return ("succeeded", 0), (WAIT, waited), (RUN, ran), (ATTEMPTS, attempt)


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The microseconds below which this share lies, as far as the buckets tell; None if there are none."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted, seen = share * total, 0
    for bucket in sorted(histogram):
        here = histogram[bucket]
        if seen + here >= wanted:
            least, beyond = least_of(bucket), least_of(bucket + 1)
            return least + (beyond - least) * max(0.0, wanted - seen) / here
        seen += here
    raise AssertionError("the last bucket is beyond any share")


class Group(Struct, frozen=True):
    """Of one task, in one minute, all that ended in one way."""

    minute: int
    queue: str
    task: str
    what: str
    waited: list[int]  # in order
    ran: list[int]  # in order
    attempts: list[int]


def grouped(samples: Iterable[Sample]) -> list[Group]:
    groups: defaultdict[tuple[int, str, str, str], list[Sample]] = defaultdict(list)
    for one in samples:
        groups[one.at // MINUTE, one.queue, one.task, one.what].append(one)
    return [
        Group(
            *place,
            sorted([max(0, one.waited) for one in some]),
            sorted([max(0, one.ran) for one in some]),
            [one.attempt for one in some if one.attempt is not None],
        )
        for place, some in groups.items()
    ]


def rows(group: Group) -> Iterator[Row]:
    """As they are added to the table of minutes."""
    place = (group.minute, group.queue, group.task)
    yield *place, group.what, 0, len(group.waited)
    for what, times in ((WAIT, group.waited), (RUN, group.ran)):
        for bucket, n in counts(times):
            yield *place, what, bucket, n
    for attempt, n in Counter(group.attempts).items():
        yield *place, ATTEMPTS, attempt, n
