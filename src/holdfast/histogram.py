"""One histogram of durations, for percentiles, Prometheus and OpenTelemetry alike. Pure.

Durations are integer microseconds. There are four buckets to each power of two, so none is wider than a quarter of
its least value. What exporters need are coarser buckets whose bounds are bounds here, too: so their counts are exact.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

BUCKETS = 184  # up to above two years; the last one has no bound


def bucket_of(duration: int) -> int:
    if duration < 4:
        return max(0, duration)
    bits = duration.bit_length()
    return min((bits - 2) * 4 + ((duration >> (bits - 3)) & 3), BUCKETS - 1)


def least_of(bucket: int) -> int:
    """The least duration that belongs to a bucket."""
    if bucket < 4:
        return bucket
    power, part = divmod(bucket, 4)
    return (4 + part) << (power - 1)


_LEASTS = [least_of(bucket) for bucket in range(BUCKETS)]


def buckets(durations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of durations in order: each bucket, how many belong to it, and their sum. Takes steps by buckets."""
    begin = 0
    while begin < len(durations):
        bucket = bucket_of(durations[begin])
        end = len(durations) if bucket == BUCKETS - 1 else bisect_left(durations, _LEASTS[bucket + 1], begin)
        yield bucket, end - begin, sum(durations[begin:end])
        begin = end


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The microseconds below which this share lies, interpolated within a bucket; None if there are none."""
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


BOUNDS = tuple(1 << power for power in range(10, 34))
"""Upper bounds for exporters, exclusive: the powers of two from 1 ms to 2.4 h, in microseconds."""
_FIRST_BEYOND = [bucket_of(bound) for bound in BOUNDS]


def cumulative(histogram: Mapping[int, int]) -> list[int]:
    """How many are below each of BOUNDS, and last of all how many there are."""
    counts = [0] * (len(BOUNDS) + 1)
    for bucket, n in histogram.items():
        counts[bisect_left(_FIRST_BEYOND, bucket + 1)] += n
    return list(accumulate(counts))
