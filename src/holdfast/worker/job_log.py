"""What became of each attempt: counted and logged. Never a payload or a result.

Every attempt has a line of its own, except successes when there are many: then the first ones of a second have one,
and the rest of that second is summed up in one line per task.
"""

import logging
from collections import Counter
from collections.abc import Callable
from threading import Lock
from time import monotonic

from ..clock import SECOND
from ..model.job import Settlement, Transition
from .attempt import Attempt

log = logging.getLogger("holdfast.worker")
LINES_PER_SECOND = 20  # for successes, of all tasks together; beyond that only the first of each task has a line
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
"""As the history calls them."""
WORDS = {
    "retry_scheduled": "failed, to be tried again",
    "snoozed": "snoozed, to come back",
    "cancelled": "cancelled itself",
    "interrupted": "was interrupted",
    "lost": "came too late: the lease was lost",
}
WELL = {"succeeded", "snoozed", "cancelled", "returned"}
AGAIN = {"retry_scheduled", "snoozed"}
QUIET = {"returned"}


class JobLog:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """clock: seconds that never go back."""
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._lock = Lock()  # one thread settles, another one keeps house
        self._began = 0.0  # when the second that is summed up began
        self._lines = 0  # written for successes since then
        self._sums: dict[str, _Sum] = {}  # by task: all that had a success since then

    def settled(self, batch: list[tuple[Attempt, Settlement]], lost: set[int]) -> None:
        with self._lock:
            self._flush_if_over()
            tells, succeeded = log.isEnabledFor(logging.INFO), 0
            for attempt, settlement in batch:
                if id(settlement) in lost:
                    self._tell(attempt, settlement, "lost")
                elif settlement.transition != "succeed":
                    self._tell(attempt, settlement, _outcome(attempt, settlement))
                else:
                    succeeded += 1
                    if tells and not self._sum_up(attempt, settlement):
                        self._write(logging.INFO, attempt, settlement, "succeeded")
            self.counts["succeeded"] += succeeded

    def flush_due(self) -> None:
        """Log the sums of a second that is over. Does not wait for a thread that settles: that one does it, too."""
        if self._sums and self._lock.acquire(blocking=False):
            try:
                self._flush_if_over()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Log the sums of the last second, over or not."""
        with self._lock:
            self._flush()

    def _sum_up(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Count a success. False where it is to have a line of its own. Runs for every job: keep it cheap."""
        one = self._sums.get(attempt.handler.name)
        if one is None or self._lines < LINES_PER_SECOND:
            if not self._sums:
                self._began = self._clock()
            if one is None:
                self._sums[attempt.handler.name] = _Sum()
            self._lines += 1
            return False
        one.ran.append(settlement.finished_at - (settlement.started_at or settlement.finished_at))
        one.queues.add(attempt.claimed.queue)
        return True

    def _flush_if_over(self) -> None:
        if self._sums and self._clock() - self._began >= SUM_SECONDS:
            self._flush()

    def _flush(self) -> None:
        seconds = min(SUM_SECONDS, self._clock() - self._began)
        sums, self._sums, self._lines = self._sums, {}, 0
        for task, one in sums.items():
            if one.ran:
                _write_sum(task, one, seconds)

    def _tell(self, attempt: Attempt, settlement: Settlement, outcome: str) -> None:
        self.counts[outcome] += 1
        level = logging.INFO if outcome in WELL else logging.WARNING
        if log.isEnabledFor(level) and outcome not in QUIET:
            self._write(level, attempt, settlement, outcome)

    def _write(self, level: int, attempt: Attempt, settlement: Settlement, outcome: str) -> None:
        claimed = attempt.claimed
        took = 0 if settlement.started_at is None else settlement.finished_at - settlement.started_at
        waited = max(0, (settlement.started_at or settlement.finished_at) - claimed.run_at)
        code = settlement.failure.code if settlement.failure is not None else None
        about = {
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
            "again_in_s": settlement.delay / SECOND if outcome in AGAIN else None,
        }
        text = f"{attempt.handler.name} {claimed.id} {WORDS.get(outcome, outcome)}"
        if outcome in AGAIN:
            text += f" in {settlement.delay / SECOND:g} s"
        if settlement.then is not None:
            text += f", goes on with {settlement.then.task}"
        if code is not None:
            text += f" with {code}"
        text += f" (attempt {claimed.attempt} of {claimed.max_attempts}, ran {_span(took)}, waited {_span(waited)})"
        log.log(level, "%s", text, extra={"holdfast": about})


class _Sum:
    """The successes of one task that have no line of their own."""

    __slots__ = ("queues", "ran")

    def __init__(self) -> None:
        self.ran: list[int] = []  # microseconds
        self.queues: set[str] = set()


def _write_sum(task: str, one: _Sum, seconds: float) -> None:
    count, ran = len(one.ran), sorted(one.ran)
    p50, p95 = (max(0, ran[int(count * share)]) for share in (0.5, 0.95))
    about = {
        "task": task,
        "queue": next(iter(one.queues)) if len(one.queues) == 1 else None,
        "outcome": "succeeded",
        "count": count,
        "p50_ms": round(p50 / 1000, 3),
        "p95_ms": round(p95 / 1000, 3),
        "seconds": round(seconds, 3),
    }
    text = f"{task}: {count:,} more succeeded in {seconds:.1f} s (ran p50 {_span(p50)}, p95 {_span(p95)})"
    log.info("%s", text, extra={"holdfast": about})


def _outcome(attempt: Attempt, settlement: Settlement) -> str:
    """A retry after the last attempt is a failure."""
    if settlement.transition == "retry" and attempt.claimed.attempt >= attempt.claimed.max_attempts:
        return "failed"
    return EVENTS[settlement.transition]


def _span(microseconds: float) -> str:
    if microseconds < SECOND:
        return f"{microseconds / 1000:.1f} ms"
    return f"{microseconds / SECOND:.1f} s"
