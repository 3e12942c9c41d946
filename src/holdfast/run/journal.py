"""What became of each attempt: counted, and logged as one line. Never a payload or a result."""

import logging
from collections import Counter

from ..clock import SECOND
from ..model import Settlement, Transition
from ..rollup import Sample
from .attempt import Attempt

log = logging.getLogger("holdfast.worker")

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


ENDED = {"succeeded", "failed", "cancelled"}
NOT_COUNTED = {"interrupted", "returned"}


def sample_of(attempt: Attempt, settlement: Settlement) -> Sample | None:
    """What is counted of it, beside others of its minute. It runs for every job: the plain success comes first."""
    claimed, ended = attempt.claimed, settlement.finished_at
    began = settlement.started_at or ended
    outcome: str = "succeeded"
    number: int | None = claimed.attempt
    if settlement.transition != "succeed":
        outcome = _outcome(attempt, settlement)
        if outcome in NOT_COUNTED:
            return None
        if outcome not in ENDED:
            number = None
    return Sample(claimed.queue, claimed.task or "", outcome, ended, began - claimed.run_at, ended - began, number)


class Journal:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def settled(self, batch: list[tuple[Attempt, Settlement]], lost: set[int]) -> None:
        for attempt, settlement in batch:
            outcome = "lost" if id(settlement) in lost else _outcome(attempt, settlement)
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


def _outcome(attempt: Attempt, settlement: Settlement) -> str:
    """A retry after the last attempt is a failure."""
    if settlement.transition == "retry" and attempt.claimed.attempt >= attempt.claimed.max_attempts:
        return "failed"
    return EVENTS[settlement.transition]


def _span(microseconds: int) -> str:
    if microseconds < SECOND:
        return f"{microseconds / 1000:.1f} ms"
    return f"{microseconds / SECOND:.1f} s"
