"""Adding up the log: from events to sums. Pure, and the same for every database.

Whoever folds reads the events behind a cursor, makes `Sums` of them, and stores these with the new cursor. Whoever
reads statistics adds the sums of the events that are not folded yet.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from .histogram import buckets

MINUTE = 60_000_000

# Measures beside the names of outcomes.
ENQUEUED, WAIT, RUN, ATTEMPT = "enqueued", "wait", "run", "attempt"
UNTRIED = "untried_"  # before the outcome of a job that ended while it was not running
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})

# Ends of attempts that are counted. What was interrupted or returned was no try, 'edited' is no outcome.
OUTCOMES = frozenset(
    {"succeeded", "completed", "failed", "cancelled", "retry_scheduled", "recovered", "released", "snoozed"}
)
TIMED = frozenset({"succeeded", "failed", "cancelled", "retry_scheduled", "snoozed"})
ENDS = frozenset({"succeeded", "completed", "failed", "cancelled"})
Place = tuple[str, str]  # a queue and a task; '' for messages
GroupRow = tuple[int, str, str, str, str | None, str | None, int, int, str | None, str | None]
"""minute, queue, task, event, old status, new status, attempt, how many; what each waited and ran, as text: 5,17"""
FailureRow = tuple[int, str, str, str, str | None, int, int]
"""minute, queue, task, error code, fingerprint, job id, at"""


class FailureSum(Struct):
    first_seen: int
    last_seen: int
    last_job_id: int
    n: int = 0


class Total(Struct):
    n: int = 0
    sum: int = 0  # microseconds, of a histogram


class Sums(Struct):
    """What a part of the log comes to."""

    counts: Counter[tuple[str, str, str]] = Counter()  # queue, task, status
    minutes: Counter[tuple[int, str, str, str, int]] = Counter()  # minute, queue, task, measure, bucket
    totals: dict[tuple[str, str, str, int], Total] = {}  # queue, task, measure, bucket
    failures: dict[tuple[str, str, str, str], FailureSum] = {}  # code, queue, task, fingerprint
    failure_minutes: Counter[tuple[int, str, str, str, str]] = Counter()  # minute, code, queue, task, fingerprint

    def error_totals(self) -> Counter[tuple[str, str, str]]:
        """By code, queue and task."""
        found: Counter[tuple[str, str, str]] = Counter()
        for (code, queue, task, _), one in self.failures.items():
            found[code, queue, task] += one.n
        return found

    def _add(self, minute: int, place: Place, measure: str, n: int, total: bool = True) -> None:
        self.minutes[minute, *place, measure, 0] += n
        if total:
            self.totals.setdefault((*place, measure, 0), Total()).n += n

    def _add_durations(self, minute: int, place: Place, measure: str, durations: str) -> None:
        for bucket, n, duration in buckets(sorted(map(int, durations.split(",")))):
            self.minutes[minute, *place, measure, bucket] += n
            total = self.totals.setdefault((*place, measure, bucket), Total())
            total.n += n
            total.sum += duration


def fold(groups: Iterable[GroupRow], failures: Iterable[FailureRow]) -> Sums:
    """groups: all events, grouped. failures: those with an error code, one by one, in order."""
    sums = Sums(Counter(), Counter(), {}, {}, Counter())
    for minute, queue, task, event, old, new, attempt, n, waited, ran in groups:
        place = (queue, task)
        if old is not None:
            sums.counts[queue, task, old] -= n
        if new is not None:
            sums.counts[queue, task, new] += n
        if event == ENQUEUED:
            sums._add(minute, place, ENQUEUED, n)
        elif event in OUTCOMES:
            if old == "running":
                sums._add(minute, place, event, n)
            elif event in ENDS:
                sums._add(minute, place, UNTRIED + event, n, total=False)
            if attempt > 0 and event in ENDS and new in TERMINAL and old is not None:
                sums.minutes[minute, queue, task, ATTEMPT, attempt] += n
            if waited is not None and ran is not None and event in TIMED:
                sums._add_durations(minute, place, WAIT, waited)
                sums._add_durations(minute, place, RUN, ran)
    for minute, queue, task, code, fingerprint, job_id, at in failures:
        _add_failure(sums, minute, (code, queue, task, fingerprint or ""), job_id, at)
    return sums


def _add_failure(sums: Sums, minute: int, key: tuple[str, str, str, str], job_id: int, at: int) -> None:
    one = sums.failures.get(key)
    if one is None:
        one = sums.failures[key] = FailureSum(at, at, job_id)
    one.first_seen, one.last_seen = min(one.first_seen, at), max(one.last_seen, at)
    one.last_job_id = job_id
    one.n += 1
    sums.failure_minutes[minute, *key] += 1
