"""Looking at jobs, and waiting for something to look at."""

import builtins
import math
import sqlite3

from ...clock import SECOND
from ...model import Criteria, Cursor, JobRecord, TimelineEntry
from ..statements import Statements
from .criteria import where
from .part import Part
from .timeline import timeline

LONGEST_WAIT_SECONDS = 1.0

COLUMNS = ", ".join(
    f"CAST({name} AS BLOB)" if name in ("args", "result") else name for name in JobRecord.__struct_fields__
)


def get_record(connection: sqlite3.Connection, sql: Statements, job_id: int) -> JobRecord | None:
    row = connection.execute(sql.get.replace("{columns}", COLUMNS), (job_id,)).fetchone()
    return None if row is None else JobRecord(*row)


class Reading(Part):
    def get(self, job_id: int) -> JobRecord | None:
        return self._read(lambda connection: get_record(connection, self._sql, job_id))

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> list[JobRecord]:
        clause, values = where(criteria, self._options.prefix)
        newer = cursor is not None and cursor.newer
        if cursor is not None:
            clause += " AND id > :cursor" if newer else " AND id < :cursor"
            values["cursor"] = cursor.id
        template = self._sql.list_newer if newer else self._sql.list_older
        statement = template.replace("{columns}", COLUMNS).replace("{where}", clause)
        values["limit"] = limit
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [JobRecord(*row) for row in (reversed(rows) if newer else rows)]

    def history(self, job_id: int) -> builtins.list[TimelineEntry]:
        def work(connection: sqlite3.Connection) -> builtins.list[TimelineEntry]:
            events = connection.execute(self._sql.events_of, (job_id,)).fetchall()
            attempts = connection.execute(self._sql.attempts_of, (job_id,)).fetchall()
            return timeline(events, attempts)

        return self._read(work)

    def traceback(self, fingerprint: str) -> str | None:
        row = self._read(lambda connection: connection.execute(self._sql.traceback, (fingerprint,)).fetchone())
        return None if row is None else row[0]

    def count(self, criteria: Criteria) -> int:
        clause, values = where(criteria, self._options.prefix)
        statement = self._sql.count.replace("{where}", clause)
        found = self._read(lambda connection: connection.execute(statement, values).fetchone())
        return int(found[0])

    # --- waiting ---

    def commits_seen(self) -> int:
        return self._ready().watcher.count()

    def wait_for_commit(self, seen: int, timeout: float) -> None:
        if timeout > 0:
            self._ready().watcher.wait(seen, min(timeout, LONGEST_WAIT_SECONDS))

    def wake_waiting(self) -> None:
        self._ready().watcher.notify()

    def seconds_until_due(self) -> float:
        run_at, timeout_at, lease = self._read(lambda connection: connection.execute(self._sql.next_due).fetchone())
        moments = [math.inf]
        moments += [(moment - self._clock.now()) / SECOND for moment in (run_at, timeout_at) if moment is not None]
        if lease is not None:
            moments.append((lease - self._clock.boot_now()) / SECOND)
        return min(moments)
