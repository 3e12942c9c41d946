"""Read jobs and their history, and wait for commits."""

import math
from functools import cache
from typing import Any

import msgspec

from ..clock import SECOND
from ..model.job import JobRecord, TimelineEntry
from ..model.stats import EventRecord
from .database import Connection, Dialect, SharedDatabase
from .statements import as_json, decoded, record
from .wake_up import Awaited, Happened

MAX_WAIT_SECONDS = 1.0
LATELY = 2 * SECOND  # ended leases that are waited for; older ones are found by the next look
EVENT_COLUMNS = (
    "id, job_id, at, event, attempt, actor, queue, task, old_status, new_status, run_at, error_code, reason, detail"
)

# Events whose old and new status are always the same, and are therefore not shown.
OBVIOUS_EVENTS = frozenset({"enqueued", "claimed", "succeeded", "removed"})


def event_record(
    id: int,
    job_id: int | None,
    at: int,
    event: str,
    attempt: int | None,
    actor: str | None,
    queue: str | None,
    task: str | None,
    *rest: Any,
) -> EventRecord:
    return record(EventRecord, (id, job_id, at, event, attempt, actor, _detail(event, *rest), queue, task))


def timeline(events: list[EventRecord], attempts: list[Any]) -> list[TimelineEntry]:
    """Merge events and attempts in order of time. An attempt follows the event of its claim."""
    by_number = {row[0]: _attempt(row) for row in attempts}
    entries: list[TimelineEntry] = []
    for one in events:
        entries.append(TimelineEntry(one.at, "event", one.event, one.attempt or 0, one.actor, one.detail))
        if one.event == "claimed" and one.attempt in by_number:
            entries.append(by_number.pop(one.attempt))
    return entries + list(by_number.values())  # the rest was inserted by plain SQL, without events


def _attempt(row: tuple[Any, ...]) -> TimelineEntry:
    attempt, worker, claimed_at, started_at, finished_at, outcome, code, error_detail, fingerprint = row
    known = {
        "started_at": started_at,
        "finished_at": finished_at,
        "error_code": code,
        "error_detail": error_detail,
        "fingerprint": fingerprint,
    }
    detail = {name: value for name, value in known.items() if value is not None}
    return record(TimelineEntry, (claimed_at or 0, "attempt", outcome or "running", attempt, worker, detail))


def _detail(
    event: str,
    old: str | None,
    new: str | None,
    run_at: int | None,
    error_code: str | None,
    reason: str | None,
    text: str | None,
) -> dict[str, Any]:
    if text is not None:
        return read_detail(text)
    detail: dict[str, Any] = {} if event in OBVIOUS_EVENTS else {"from": old, "to": new, "run_at": run_at}
    detail |= {"error_code": error_code, "reason": reason}
    return {name: value for name, value in detail.items() if value is not None}


def read_detail(text: str) -> dict[str, Any]:
    return decoded(text, dict[str, Any], {"text": text})


@cache
def job_columns(dialect: Dialect) -> str:
    """Return the columns of a JobRecord."""
    names = JobRecord.__struct_fields__
    return ", ".join(dialect.encoded(name) if name in ("args", "result", "state") else name for name in names)


def get_record(connection: Connection, db: SharedDatabase, job_id: int) -> JobRecord | None:
    row = connection.execute(db.sql.get.replace("{columns}", job_columns(db.dialect)), (job_id,)).fetchone()
    return None if row is None else record(JobRecord, row)


class ReadJobs:
    """Reads single jobs, and waits for commits."""

    def __init__(self, db: SharedDatabase) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock

    def get(self, job_id: int) -> JobRecord | None:
        return self._db.read(lambda connection: get_record(connection, self._db, job_id))

    def history(self, job_id: int) -> list[TimelineEntry]:
        def work(connection: Connection) -> list[TimelineEntry]:
            events = connection.execute(self._sql.events_of.replace("{columns}", EVENT_COLUMNS), (job_id,)).fetchall()
            attempts = connection.execute(self._sql.attempts_of, (job_id,)).fetchall()
            return timeline([event_record(*row) for row in events], attempts)

        return self._db.read_snapshot(work)

    def traceback(self, fingerprint: str) -> str | None:
        row = self._db.read(lambda connection: connection.execute(self._sql.traceback, (fingerprint,)).fetchone())
        return None if row is None else row[0]

    # --- waiting ---

    def commits_seen(self) -> int:
        return self._db.commits_seen()

    def wait_for_commit(self, seen: int, timeout: float, *, until_due: bool = False) -> int:
        if until_due:
            timeout = min(timeout, self._seconds_until_due())
        if timeout > 0:
            self._db.wait(seen, min(timeout, MAX_WAIT_SECONDS))
        return self._db.deaths_seen()

    def wake_waiters(self) -> None:
        self._db.wake()

    def find_awaited(self, awaited: Awaited) -> Happened:
        values = {
            name: value if isinstance(value, int) else as_json(value)
            for name, value in msgspec.structs.asdict(awaited).items()
        }
        (_, run_at, _), (_, lease, _), *ended = self._db.rows(self._sql.awaited, values)
        seconds = math.inf if run_at is None else (int(run_at) - self._clock.now()) / SECOND
        if lease is not None:
            seconds = min(seconds, (int(lease) - self._clock.boot_now()) / SECOND)
        return Happened([((kind, what if kind == "queue" else int(what)), n) for kind, what, n in ended], seconds)

    def _seconds_until_due(self) -> float:
        boot_now = self._clock.boot_now()
        window = {"since": boot_now - LATELY, "until": boot_now + int(MAX_WAIT_SECONDS * SECOND)}
        ((run_at, expires_at, lease),) = self._db.rows(self._sql.next_due, window)
        seconds = [math.inf]
        seconds += [(moment - self._clock.now()) / SECOND for moment in (run_at, expires_at) if moment is not None]
        if lease is not None:
            seconds.append((lease - self._clock.boot_now()) / SECOND)
        return min(seconds)
