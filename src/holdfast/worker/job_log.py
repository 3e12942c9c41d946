"""The log of finished attempts. Payloads and results are never logged.

Each attempt has a line. If there are many successes, the first ones of each second have a line, and the rest of that
second is summed up in one line per task. `holdfast worker` writes them to standard error, as text or as JSON lines.
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Lock
from time import monotonic

import msgspec

from ..clock import SECOND
from ..failure import describe
from ..model.job import Settlement, Transition
from ..model.stats import EventRecord
from ..text import span
from .attempt import Attempt

log = logging.getLogger("holdfast.worker")
MAX_ERRORS = 1000  # remembered
LINES_PER_SECOND = 20  # for successes of all tasks; after that, only the first of each task has a line
SUM_SECONDS = 1.0
ERROR_SECONDS = 60.0  # an error of the worker itself is logged once in this time, for each place
EVENTS: dict[Transition, str] = {
    "succeed": "succeeded",
    "retry": "retry_scheduled",
    "fail": "failed",
    "stop": "cancelled",
    "snooze": "snoozed",
    "interrupt": "interrupted",
    "give_back": "returned",
    "unfit": "unfit",
}
"""The event names, as in the history of a job, where `unfit` is `returned`."""
DESCRIPTIONS = {
    "retry_scheduled": "failed",
    "cancelled": "cancelled itself",
    "interrupted": "was interrupted",
    "unfit": "does not fit the code of this worker and is left to others, see holdfast explain",
    "lost": "lost its lease, outcome discarded",
}
ENDED_FROM_OUTSIDE = {"cancelled", "completed"}
IDS_IN_LINE = 10
EXPECTED = {"succeeded", "snoozed", "cancelled", "returned"}
RESCHEDULED = {"retry_scheduled", "snoozed"}
UNLOGGED = {"returned"}


class JobLog:
    """Counts and logs finished attempts."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        last_events: Callable[[int], Sequence[EventRecord]] = lambda _: (),
    ) -> None:
        """clock: returns monotonic seconds. last_events: reads the last event of a job, by its id."""
        self._last_events = last_events
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._lock = Lock()  # a pool thread settles while housekeeping flushes
        self._window_start = 0.0  # of the second that is summed up
        self._lines = 0  # for successes in this second
        self._sums: dict[str, _Sum] = {}  # by task, for all tasks with a success in this second
        self._errors: dict[str, float] = {}  # when each error of the worker itself was logged
        self._unfit: set[str] = set()  # tasks with a payload that did not fit

    def settled(self, batch: list[tuple[Attempt, Settlement]], lost: set[int]) -> None:
        """Log settled attempts. lost: the `id()` of settlements that the store rejected, as the lease was lost."""
        if lost:
            ended = self.ended_by_others([attempt for attempt, settlement in batch if id(settlement) in lost])
            batch = [one for one in batch if one[0] not in ended]
        with self._lock:
            self._flush_if_due()
            logs_successes, succeeded = log.isEnabledFor(logging.INFO), 0
            for attempt, settlement in batch:
                try:
                    if id(settlement) in lost:
                        self._record(attempt, settlement, "lost")
                    elif settlement.transition != "succeed":
                        self._record(attempt, settlement, _outcome(attempt, settlement))
                    else:
                        succeeded += 1
                        if logs_successes and not self._sum_up(attempt, settlement):
                            self._write(logging.INFO, attempt, settlement, "succeeded")
                except Exception as error:  # noqa: BLE001  a log handler may raise, or the row hold a strange value
                    self.error(f"logging {attempt.handler.name}", error)
            self.counts["succeeded"] += succeeded

    def ended_by_others(self, attempts: Sequence[Attempt]) -> set[Attempt]:
        """Log those whose job was cancelled or completed from outside while they ran, one line for each action.

        Returns them. The others have lost their lease.
        """
        actions: dict[tuple[str, str | None, str | None, str], list[Attempt]] = {}
        for attempt in attempts:
            for one in self._last_events(attempt.claimed.id):
                if one.event in ENDED_FROM_OUTSIDE and one.attempt == attempt.claimed.attempt:
                    action = (one.event, one.actor, one.detail.get("reason"), attempt.handler.name)
                    actions.setdefault(action, []).append(attempt)
        for (event, actor, reason, task), ended in actions.items():
            self.counts["lost"] += len(ended)
            _write_ended(event, actor, reason, task, sorted(attempt.claimed.id for attempt in ended))
        return {attempt for ended in actions.values() for attempt in ended}

    def error(self, what: str, error: BaseException) -> None:
        """Log an error of the worker itself, with its traceback, unless the same one was logged a short time ago.

        Never raises: log handlers are user code, and the thread has other jobs to run.
        """
        with suppress(Exception):
            key, now = f"{what} {type(error).__name__}", self._clock()
            if now - self._errors.get(key, -ERROR_SECONDS) >= ERROR_SECONDS:
                if len(self._errors) > MAX_ERRORS:
                    self._errors.clear()
                self._errors[key] = now
                log.error("error while %s: %s; the worker continues", what, describe(error), exc_info=error)

    def flush_due(self) -> None:
        """Log the sums of a second that is over. Skipped while another thread settles, since that one does it."""
        if self._sums and self._lock.acquire(blocking=False):
            try:
                self._flush_if_due()
            except Exception as error:  # noqa: BLE001  a log handler may raise
                self.error("logging successes", error)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Log the remaining sums."""
        with self._lock:
            try:
                self._flush()
            except Exception as error:  # noqa: BLE001  a log handler may raise
                self.error("logging successes", error)

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
        if outcome == "unfit":  # a warning for the first of each task
            level = logging.DEBUG if attempt.handler.name in self._unfit else logging.WARNING
            self._unfit.add(attempt.handler.name)
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
        if code is not None and outcome != "unfit":
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


def _write_ended(event: str, actor: str | None, reason: str | None, task: str, ids: list[int]) -> None:
    fields = {
        "job": ids[0] if len(ids) == 1 else None,
        "jobs": ids,
        "task": task,
        "outcome": "lost",
        "because": event,
        "actor": actor,
        "reason": reason,
    }
    shown = ", ".join(map(str, ids[:IDS_IN_LINE])) + (", …" if len(ids) > IDS_IN_LINE else "")
    text = f"{task} {shown} was" if len(ids) == 1 else f"{len(ids):,} jobs of {task} were"
    text += f" {event} by {actor or 'an operator'} while running{f' ({reason})' if reason else ''}"
    text += "" if len(ids) == 1 else f": {shown}"
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


LOG_STYLE = "HOLDFAST_LOG_STYLE"  # the environment variable that pool processes read


class TextLines(logging.Formatter):
    """Formats records as lines of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record on one line, with control characters escaped. Only a traceback has more lines."""
        message = record.getMessage()
        if record.name == "holdfast.job":
            fields = getattr(record, "holdfast", {})
            message = f"{fields.get('task')} {fields.get('job')}: {message}"
        if not message.isprintable():
            message = message.encode("unicode_escape").decode()
        record.msg, record.args = message, None
        return super().format(record)


class JsonLines(logging.Formatter):
    """Formats records as JSON objects, one per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "holdfast", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def write_logs_to_stderr(style: str) -> None:
    """Configure logging. style: "text", "json", or "quiet" for warnings and errors only.

    Pool processes inherit the style.
    """
    os.environ[LOG_STYLE] = style
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.WARNING if style == "quiet" else logging.INFO)
