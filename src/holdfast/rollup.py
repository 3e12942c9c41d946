"""What is kept of many attempts: how many ended in which way, and how long they waited and ran. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

MINUTE = 60_000_000

# What is counted, beside the names of the transitions.
WAIT, RUN, ATTEMPTS = "wait", "run", "attempts"

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


def bucket_of(microseconds: int) -> int:
    """Of a histogram with four buckets to each power of two, so that none is wider than a quarter of its least."""
    if microseconds < 4:
        return max(0, microseconds)
    bit = microseconds.bit_length() - 1
    return (bit - 1) * 4 + ((microseconds >> (bit - 2)) & 3)


def least_of(bucket: int) -> int:
    """The least number of microseconds that belongs to it."""
    if bucket < 4:
        return bucket
    power, part = divmod(bucket, 4)
    return (4 + part) << (power - 1)


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


def rows(samples: Iterable[Sample]) -> list[Row]:
    """As they are added to the table of minutes."""
    counts: Counter[tuple[int, str, str, str, int]] = Counter()
    for one in samples:
        minute, queue, task = one.at // MINUTE, one.queue, one.task
        counts[minute, queue, task, one.what, 0] += 1
        counts[minute, queue, task, WAIT, bucket_of(one.waited)] += 1
        counts[minute, queue, task, RUN, bucket_of(one.ran)] += 1
        if one.attempt is not None:
            counts[minute, queue, task, ATTEMPTS, one.attempt] += 1
    return [(*place, n) for place, n in counts.items()]
