"""The log of finished attempts. Payloads and results are never logged.

Each attempt has a line. If there are many successes, the first ones of each second have a line, and the rest of that
second is summed up in one line per task.
"""

import logging
from collections import Counter
from collections.abc import Callable
from threading import Lock
from time import monotonic

from ..clock import SECOND
from ..model.job import Settlement, Transition
from ..text import span
from .attempt import Attempt

log = logging.getLogger("holdfast.worker")
LINES_PER_SECOND = 20  # for successes of all tasks; after that, only the first of each task has a line
SUM_SECONDS = 1.0
EVENTS: dict[Transition, str] = {
    "succeed": "succeeded",
    "retry": "retry_scheduled",
    "fail": "failed",
    "stop": "cancelled",
    "snooze": "snoozed",
    "interrupt": "interrupted",
    "give_back": "returned",
}
"""The event names, as in the history of a job."""
DESCRIPTIONS = {
    "retry_scheduled": "failed",
    "cancelled": "cancelled itself",
    "interrupted": "was interrupted",
    "lost": "lost its lease, outcome discarded",
}
EXPECTED = {"succeeded", "snoozed", "cancelled", "returned"}
RESCHEDULED = {"retry_scheduled", "snoozed"}
UNLOGGED = {"returned"}


class JobLog:
    """Counts and logs finished attempts."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """clock: returns monotonic seconds."""
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._lock = Lock()  # a pool thread settles while housekeeping flushes
        self._window_start = 0.0  # of the second that is summed up
        self._lines = 0  # for successes in this second
        self._sums: dict[str, _Sum] = {}  # by task, for all tasks with a success in this second

    def settled(self, batch: list[tuple[Attempt, Settlement]], lost: set[int]) -> None:
        """Log settled attempts. lost: the `id()` of settlements that the store rejected, as the lease was lost."""
        with self._lock:
            self._flush_if_due()
            logs_successes, succeeded = log.isEnabledFor(logging.INFO), 0
            for attempt, settlement in batch:
                if id(settlement) in lost:
                    self._record(attempt, settlement, "lost")
                elif settlement.transition != "succeed":
                    self._record(attempt, settlement, _outcome(attempt, settlement))
                else:
                    succeeded += 1
                    if logs_successes and not self._sum_up(attempt, settlement):
                        self._write(logging.INFO, attempt, settlement, "succeeded")
            self.counts["succeeded"] += succeeded

    def flush_due(self) -> None:
        """Log the sums of a second that is over. Skipped while another thread settles, since that one does it."""
        if self._sums and self._lock.acquire(blocking=False):
            try:
                self._flush_if_due()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Log the remaining sums."""
        with self._lock:
            self._flush()

    def _sum_up(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Add a success to its sum. Returns False if it gets its own line. Runs for every job: keep it cheap."""
        one = self._sums.get(attempt.handler.name)
        if one is None or self._lines < LINES_PER_SECOND:
            if not self._sums:
                self._window_start = self._clock()
            if one is None:
                self._sums[attempt.handler.name] = _Sum()
            self._lines += 1
            return False
        one.ran.append(settlement.finished_at - (settlement.started_at or settlement.finished_at))
        one.queues.add(attempt.claimed.queue)
        return True

    def _flush_if_due(self) -> None:
        if self._sums and self._clock() - self._window_start >= SUM_SECONDS:
            self._flush()

    def _flush(self) -> None:
        seconds = min(SUM_SECONDS, self._clock() - self._window_start)
        sums, self._sums, self._lines = self._sums, {}, 0
        for task, one in sums.items():
            if one.ran:
                _write_sum(task, one, seconds)

    def _record(self, attempt: Attempt, settlement: Settlement, outcome: str) -> None:
        self.counts[outcome] += 1
        level = logging.INFO if outcome in EXPECTED else logging.WARNING
        if log.isEnabledFor(level) and outcome not in UNLOGGED:
            self._write(level, attempt, settlement, outcome)

    def _write(self, level: int, attempt: Attempt, settlement: Settlement, outcome: str) -> None:
        claimed = attempt.claimed
        took = 0 if settlement.started_at is None else settlement.finished_at - settlement.started_at
        waited = max(0, (settlement.started_at or settlement.finished_at) - claimed.run_at)
        code = settlement.failure.code if settlement.failure is not None else None
        fields = {
            "job": claimed.id,
            "task": attempt.handler.name,
            "queue": claimed.queue,
            "outcome": outcome,
            "attempt": claimed.attempt,
            "max_attempts": claimed.max_attempts,
            "ran_ms": round(took / 1000, 3),
            "waited_ms": round(waited / 1000, 3),
            "error_code": code,
            "then": settlement.then.task if settlement.then is not None else None,
            "again_in_s": settlement.delay / SECOND if outcome in RESCHEDULED else None,
        }
        text = f"{attempt.handler.name} {claimed.id} {DESCRIPTIONS.get(outcome, outcome)}"
        if code is not None:
            text += f": {code}" if outcome == "lost" else f" with {code}"
        if outcome in RESCHEDULED:
            text += f"{', retry in' if outcome == 'retry_scheduled' else ' for'} {_delay(settlement.delay)}"
        if settlement.then is not None:
            text += f", continues with {settlement.then.task}"
        text += f" (attempt {claimed.attempt} of {claimed.max_attempts}"
        text += f", ran {_duration(took)}, waited {_duration(waited)})"
        log.log(level, "%s", text, extra={"holdfast": fields})


class _Sum:
    """The successes of one task that do not have their own line."""

    __slots__ = ("queues", "ran")

    def __init__(self) -> None:
        self.ran: list[int] = []  # microseconds
        self.queues: set[str] = set()


def _write_sum(task: str, one: _Sum, seconds: float) -> None:
    count, ran = len(one.ran), sorted(one.ran)
    p50, p95 = (max(0, ran[int(count * share)]) for share in (0.5, 0.95))
    fields = {
        "task": task,
        "queue": next(iter(one.queues)) if len(one.queues) == 1 else None,
        "outcome": "succeeded",
        "count": count,
        "p50_ms": round(p50 / 1000, 3),
        "p95_ms": round(p95 / 1000, 3),
        "seconds": round(seconds, 3),
    }
    text = f"{task}: {count:,} more succeeded in {seconds:.1f} s (ran p50 {_duration(p50)}, p95 {_duration(p95)})"
    log.info("%s", text, extra={"holdfast": fields})


def _outcome(attempt: Attempt, settlement: Settlement) -> str:
    """Return the outcome. A retry after the last attempt is a failure."""
    if settlement.transition == "retry" and attempt.claimed.attempt >= attempt.claimed.max_attempts:
        return "failed"
    return EVENTS[settlement.transition]


def _delay(microseconds: int) -> str:
    seconds = microseconds / SECOND
    return f"{round(seconds, 1):g} s" if seconds < 60 else span(seconds)


def _duration(microseconds: float) -> str:
    if microseconds < SECOND:
        return f"{microseconds / 1000:.1f} ms"
    return f"{microseconds / SECOND:.1f} s" if microseconds < 60 * SECOND else span(microseconds / SECOND)
