"""Statistics: counts, rates, failures, sizes and events. Each is a short read, by an index or from a small table."""

import sqlite3
from collections.abc import Collection
from shutil import disk_usage
from typing import Any

from ...model.stats import Counts, EventRecord, FailureRecord, MinuteRecord, Storage, Totals, WaitingJob
from ..rows import record
from ..statements import as_json
from ..statistics import Statistics
from .constraints import DamagedJobs
from .database import Database
from .engine.checkpoint import file_size
from .read import EVENT_COLUMNS, event_record

LAST_EVENT = 2**63 - 1
MAX_RUNNING = 5_000

# The longest waiting ready job is searched among the first jobs of each priority, in a limited number of priorities.
LONGEST_READY = {"each": 100, "most": 1000}
NO_LIMIT = -1
WAITING = ("running", "ready", "scheduled", "blocked")


class SqliteStatistics:
    def __init__(self, db: Database, statistics: Statistics, damaged: DamagedJobs) -> None:
        self._db, self._sql, self._clock, self._statistics = db, db.sql, db.clock, statistics
        self._fold = damaged.guarded(statistics.fold)

    def fold(self) -> int:
        return self._fold() + self._statistics.delete_removed()

    # --- counts ---

    def counts(self, queue: str | None = None) -> Counts:
        def work(connection: sqlite3.Connection) -> Counts:
            rows = connection.execute(self._sql.queues_ever_paused).fetchall()
            return Counts(
                self._statistics.counts(connection, queue), {name: bool(is_paused) for name, is_paused in rows}
            )

        return self._statistics.read(work)

    def oldest(self, limit: int, statuses: Collection[str] = WAITING, queue: str | None = None) -> list[WaitingJob]:
        def work(connection: sqlite3.Connection) -> list[WaitingJob]:
            counts = self._statistics.counts(connection, queue)
            found: list[WaitingJob] = []
            for status in statuses:
                places = as_json([(one.queue, one.task or "") for one in counts if one.status == status])
                given = {"places": places, "limit": limit, "now": self._clock.now()}
                rows = self._oldest(connection, status, given)
                found += [record(WaitingJob, (*row, status)) for row in rows]
            return found

        return self._statistics.read(work)

    def _oldest(self, connection: sqlite3.Connection, status: str, given: dict[str, Any]) -> list[Any]:
        if status == "running":
            return connection.execute(self._sql.longest_running, given | {"most": MAX_RUNNING}).fetchall()
        statement = {"ready": "longest_ready", "blocked": "longest_blocked", "scheduled": "longest_due"}[status]
        return connection.execute(getattr(self._sql, statement), given | LONGEST_READY).fetchall()

    # --- rates and failures ---

    def minutes(
        self, since_minute: int, step: int = 1, task: str | None = None, queue: str | None = None
    ) -> list[MinuteRecord]:
        return self._statistics.read(
            lambda connection: self._statistics.minutes(connection, since_minute, step, task, queue)
        )

    def failures(
        self, since_minute: int | None, limit: int, task: str | None = None, queue: str | None = None
    ) -> list[FailureRecord]:
        return self._statistics.read(
            lambda connection: self._statistics.failures(connection, since_minute, limit, task, queue)
        )

    def totals(self) -> Totals:
        def work(connection: sqlite3.Connection) -> Totals:
            table = f"{self._db.options.prefix}jobs"
            enqueued = connection.execute(self._sql.ever_enqueued, (table,)).fetchone()
            return self._statistics.totals(connection, enqueued[0] if enqueued else 0)

        return self._statistics.read(work)

    def size(self) -> Storage:
        def work(connection: sqlite3.Connection) -> Storage:
            pages, free, size = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
            path = self._db.options.path
            log = file_size(path.with_name(f"{path.name}-wal"))
            return Storage(pages * size, log, free * size, size, disk_usage(path.parent).free)

        return self._db.read(work)

    # --- the event log ---

    def events(
        self, limit: int, *, after: int | None = None, before: int | None = None, job_id: int | None = None
    ) -> list[EventRecord]:
        name = "events" if job_id is None else "events_of_job"
        statement: str = getattr(self._sql, f"{name}_after" if after is not None else f"last_{name}")
        given = {"limit": limit, "job": job_id, "after": after, "before": LAST_EVENT if before is None else before}
        rows = self._db.rows(statement.replace("{columns}", EVENT_COLUMNS), given)
        found = [event_record(*row) for row in rows]
        return found if after is not None else found[::-1]
