"""Fold events into sums. Pure, and the same for every database.

To fold, a process reads the events after a cursor, computes their `Sums`, and stores these with the new cursor. To
read statistics, it adds the sums of the events that are not folded yet.

Durations are integer microseconds, counted in histograms. There are four buckets for each power of two, so a bucket
is at most a quarter as wide as its lower bound. Exporters use coarser buckets whose bounds are also bounds here, so
their counts are exact.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

MINUTE = 60_000_000

# Measures other than the outcomes.
ENQUEUED, WAIT, RUN, ATTEMPT = "enqueued", "wait", "run", "attempt"
UNTRIED = "untried_"  # prefix of the outcome of a job that finished while it was not running
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})

# Outcomes of attempts that are counted. Interrupted and returned attempts are not; 'edited' is not an outcome.
OUTCOMES = frozenset(
    {"succeeded", "completed", "failed", "cancelled", "retry_scheduled", "recovered", "released", "snoozed"}
)
TIMED = frozenset({"succeeded", "failed", "cancelled", "retry_scheduled", "snoozed"})
FINAL_OUTCOMES = frozenset({"succeeded", "completed", "failed", "cancelled"})
Pair = tuple[str, str]  # a queue and a task; the task is '' for messages
GroupRow = tuple[int, str, str, str, str | None, str | None, int, int, str | None, str | None]
"""minute, queue, task, event, old status, new status, attempt, number of events, and the waiting and running times in
microseconds, as text: 5,17"""
FailureRow = tuple[int, str, str, str, str | None, int, int]
"""minute, queue, task, error code, fingerprint, job id, time"""


class FailureSum(Struct):
    first_seen: int
    last_seen: int
    last_job_id: int
    n: int = 0


class Total(Struct):
    n: int = 0
    sum: int = 0  # microseconds, of a histogram


class Sums(Struct):
    """The sums of a part of the log."""

    counts: Counter[tuple[str, str, str]] = Counter()  # queue, task, status
    minutes: Counter[tuple[int, str, str, str, int]] = Counter()  # minute, queue, task, measure, bucket
    totals: dict[tuple[str, str, str, int], Total] = {}  # queue, task, measure, bucket
    failures: dict[tuple[str, str, str, str], FailureSum] = {}  # code, queue, task, fingerprint
    failure_minutes: Counter[tuple[int, str, str, str, str]] = Counter()  # minute, code, queue, task, fingerprint

    def error_totals(self) -> Counter[tuple[str, str, str]]:
        """Return the number of failures by error code, queue and task."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for (code, queue, task, _), failure in self.failures.items():
            totals[code, queue, task] += failure.n
        return totals

    def _add(self, minute: int, pair: Pair, measure: str, n: int, total: bool = True) -> None:
        self.minutes[minute, *pair, measure, 0] += n
        if total:
            self.totals.setdefault((*pair, measure, 0), Total()).n += n

    def _add_durations(self, minute: int, pair: Pair, measure: str, durations: str) -> None:
        for bucket, n, duration in buckets(sorted(map(int, durations.split(",")))):
            self.minutes[minute, *pair, measure, bucket] += n
            total = self.totals.setdefault((*pair, measure, bucket), Total())
            total.n += n
            total.sum += duration


def fold(groups: Iterable[GroupRow], failures: Iterable[FailureRow]) -> Sums:
    """Return the sums. groups: all events, grouped. failures: events with an error code, in the order of the log."""
    sums = Sums(Counter(), Counter(), {}, {}, Counter())
    for minute, queue, task, event, old, new, attempt, n, waited, ran in groups:
        pair = (queue, task)
        if old is not None:
            sums.counts[queue, task, old] -= n
        if new is not None:
            sums.counts[queue, task, new] += n
        if event == ENQUEUED:
            sums._add(minute, pair, ENQUEUED, n)
        elif event in OUTCOMES:
            if old == "running":
                sums._add(minute, pair, event, n)
            elif event in FINAL_OUTCOMES:
                sums._add(minute, pair, UNTRIED + event, n, total=False)
            if attempt > 0 and event in FINAL_OUTCOMES and new in TERMINAL and old is not None:
                sums.minutes[minute, queue, task, ATTEMPT, attempt] += n
            if waited is not None and ran is not None and event in TIMED:
                sums._add_durations(minute, pair, WAIT, waited)
                sums._add_durations(minute, pair, RUN, ran)
    for minute, queue, task, code, fingerprint, job_id, at in failures:
        _add_failure(sums, minute, (code, queue, task, fingerprint or ""), job_id, at)
    return sums


def _add_failure(sums: Sums, minute: int, key: tuple[str, str, str, str], job_id: int, at: int) -> None:
    failure = sums.failures.get(key)
    if failure is None:
        failure = sums.failures[key] = FailureSum(at, at, job_id)
    failure.first_seen, failure.last_seen = min(failure.first_seen, at), max(failure.last_seen, at)
    failure.last_job_id = job_id
    failure.n += 1
    sums.failure_minutes[minute, *key] += 1


BUCKETS = 184  # up to more than two years; the last bucket has no upper bound


def bucket_of(duration: int) -> int:
    if duration < 4:
        return max(0, duration)
    bits = duration.bit_length()
    return min((bits - 2) * 4 + ((duration >> (bits - 3)) & 3), BUCKETS - 1)


def lower_bound(bucket: int) -> int:
    """Return the lower bound of a bucket. There is no bucket after the last one, except in a damaged row."""
    bucket = min(bucket, BUCKETS)
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
    counts = sorted((bucket, n) for bucket, n in histogram.items() if n > 0)  # a damaged row may have a negative one
    rank, below = share * sum(n for _, n in counts), 0
    for bucket, count in counts:
        if below + count >= rank:
            lower, upper = lower_bound(bucket), lower_bound(bucket + 1)
            return lower + (upper - lower) * max(0.0, rank - below) / count
        below += count
    return None


BOUNDS = tuple(1 << power for power in range(10, 34))
"""Upper bounds for exporters, exclusive: the powers of two from 1 ms to 2.4 h, in microseconds."""
_FIRST_BUCKETS = [bucket_of(bound) for bound in BOUNDS]


def cumulative(histogram: Mapping[int, int]) -> list[int]:
    """Return the counts below each of BOUNDS, and the total at the end."""
    counts = [0] * (len(BOUNDS) + 1)
    for bucket, n in histogram.items():
        counts[bisect_left(_FIRST_BUCKETS, bucket + 1)] += n
    return list(accumulate(counts))
