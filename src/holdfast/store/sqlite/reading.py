"""Looking at jobs, and waiting for something to look at."""

import math
import sqlite3

from ...clock import SECOND
from ...model import JobRecord, TimelineEntry
from ..statements import Statements
from .database import Database
from .timeline import EVENT_COLUMNS, event_record, timeline

LONGEST_WAIT_SECONDS = 1.0

COLUMNS = ", ".join(
    f"CAST({name} AS BLOB)" if name in ("args", "result") else name for name in JobRecord.__struct_fields__
)


def get_record(connection: sqlite3.Connection, sql: Statements, job_id: int) -> JobRecord | None:
    row = connection.execute(sql.get.replace("{columns}", COLUMNS), (job_id,)).fetchone()
    return None if row is None else JobRecord(*row)


class Reading:
    def __init__(self, db: Database) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock

    def get(self, job_id: int) -> JobRecord | None:
        return self._db.read(lambda connection: get_record(connection, self._sql, job_id))

    def history(self, job_id: int) -> list[TimelineEntry]:
        def work(connection: sqlite3.Connection) -> list[TimelineEntry]:
            events = connection.execute(self._sql.events_of.replace("{columns}", EVENT_COLUMNS), (job_id,)).fetchall()
            attempts = connection.execute(self._sql.attempts_of, (job_id,)).fetchall()
            return timeline([event_record(*row) for row in events], attempts)

        return self._db.read_snapshot(work)

    def traceback(self, fingerprint: str) -> str | None:
        row = self._db.read(lambda connection: connection.execute(self._sql.traceback, (fingerprint,)).fetchone())
        return None if row is None else row[0]

    # --- waiting ---

    def commits_seen(self) -> int:
        return self._db.engine().watcher.count()

    def wait_for_commit(self, seen: int, timeout: float, *, until_due: bool = False) -> int:
        watcher = self._db.engine().watcher
        if until_due:
            timeout = min(timeout, self._seconds_until_due())
        if timeout > 0:
            watcher.wait(seen, min(timeout, LONGEST_WAIT_SECONDS))
        return watcher.endings

    def wake_waiting(self) -> None:
        self._db.engine().watcher.notify()

    def _seconds_until_due(self) -> float:
        run_at, timeout_at, lease = self._db.read(
            lambda connection: connection.execute(self._sql.next_due).fetchone()
        )
        moments = [math.inf]
        moments += [(moment - self._clock.now()) / SECOND for moment in (run_at, timeout_at) if moment is not None]
        if lease is not None:
            moments.append((lease - self._clock.boot_now()) / SECOND)
        return min(moments)
