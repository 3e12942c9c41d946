"""A histogram of durations, for percentiles, Prometheus and OpenTelemetry. Pure.

Durations are integer microseconds. There are four buckets for each power of two, so a bucket is at most a quarter as
wide as its lower bound. Exporters use coarser buckets whose bounds are also bounds here, so their counts are exact.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

BUCKETS = 184  # up to more than two years; the last bucket has no upper bound


def bucket_of(duration: int) -> int:
    if duration < 4:
        return max(0, duration)
    bits = duration.bit_length()
    return min((bits - 2) * 4 + ((duration >> (bits - 3)) & 3), BUCKETS - 1)


def lower_bound(bucket: int) -> int:
    """Return the lower bound of a bucket."""
    if bucket < 4:
        return bucket
    power, part = divmod(bucket, 4)
    return (4 + part) << (power - 1)


_LOWER_BOUNDS = [lower_bound(bucket) for bucket in range(BUCKETS)]


def buckets(durations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each bucket with the number and sum of its durations. The durations must be sorted."""
    begin = 0
    while begin < len(durations):
        bucket = bucket_of(durations[begin])
        end = len(durations) if bucket == BUCKETS - 1 else bisect_left(durations, _LOWER_BOUNDS[bucket + 1], begin)
        yield bucket, end - begin, sum(durations[begin:end])
        begin = end


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the microseconds below which this share lies, interpolated within a bucket; None if it is empty."""
    total = sum(histogram.values())
    if not total:
        return None
    rank, below = share * total, 0
    for bucket in sorted(histogram):
        count = histogram[bucket]
        if below + count >= rank:
            lower, upper = lower_bound(bucket), lower_bound(bucket + 1)
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below += count
    raise AssertionError("share must be at most 1")


BOUNDS = tuple(1 << power for power in range(10, 34))
"""Upper bounds for exporters, exclusive: the powers of two from 1 ms to 2.4 h, in microseconds."""
_FIRST_BUCKETS = [bucket_of(bound) for bound in BOUNDS]


def cumulative(histogram: Mapping[int, int]) -> list[int]:
    """Return the counts below each of BOUNDS, and the total at the end."""
    counts = [0] * (len(BOUNDS) + 1)
    for bucket, n in histogram.items():
        counts[bisect_left(_FIRST_BUCKETS, bucket + 1)] += n
    return list(accumulate(counts))
