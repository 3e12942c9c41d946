"""Statistics: counts, rates, failures, sizes and events. Each is a short read, by an index or from a small table."""

from collections.abc import Callable, Collection
from typing import Any

from ..model.stats import Counts, EventRecord, FailureRecord, MinuteRecord, Pause, Storage, Totals, WaitingJob
from .database import Connection, DamageGuard, SharedDatabase
from .read import EVENT_COLUMNS, event_record
from .rows import record, text
from .statements import as_json
from .statistics import Statistics

LAST_EVENT = 2**63 - 1
MAX_RUNNING = 5_000

# The longest waiting ready job is searched among the first jobs of each priority, in a limited number of priorities.
LONGEST_READY = {"each": 100, "most": 1000}
NO_LIMIT = -1
WAITING = ("running", "ready", "scheduled", "blocked")


class StoredStatistics:
    """Implements StatisticsStore."""

    def __init__(
        self, db: SharedDatabase, statistics: Statistics, guarded: DamageGuard, size: Callable[[], Storage]
    ) -> None:
        self._db, self._sql, self._clock, self._statistics = db, db.sql, db.clock, statistics
        self._fold, self.size = guarded(statistics.fold), size

    def fold(self) -> int:
        return self._fold() + self._statistics.delete_removed()

    # --- counts ---

    def counts(self, queue: str | None = None) -> Counts:
        def work(connection: Connection) -> Counts:
            rows = connection.execute(self._sql.queues_ever_paused).fetchall()
            return Counts(
                self._statistics.counts(connection, queue),
                {text(name): at is not None for name, at, _, _ in rows},
                {text(name): record(Pause, (at, by, reason)) for name, at, by, reason in rows if at is not None},
            )

        return self._statistics.read(work)

    def oldest(self, limit: int, statuses: Collection[str] = WAITING, queue: str | None = None) -> list[WaitingJob]:
        def work(connection: Connection) -> list[WaitingJob]:
            counts = self._statistics.counts(connection, queue)
            found: list[WaitingJob] = []
            for status in statuses:
                places = as_json([(one.queue, one.task or "") for one in counts if one.status == status])
                given = {"places": places, "limit": limit, "now": self._clock.now()}
                rows = self._oldest(connection, status, given)
                found += [record(WaitingJob, (*row, status)) for row in rows]
            return found

        return self._statistics.read(work)

    def _oldest(self, connection: Connection, status: str, given: dict[str, Any]) -> list[Any]:
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
        self,
        since_minute: int | None,
        limit: int,
        task: str | None = None,
        queue: str | None = None,
        trend: tuple[int, int] | None = None,
    ) -> list[FailureRecord]:
        return self._statistics.read(
            lambda connection: self._statistics.failures(connection, since_minute, limit, task, queue, trend)
        )

    def totals(self) -> Totals:
        def work(connection: Connection) -> Totals:
            table = f"{self._db.tables}jobs"
            enqueued = connection.execute(self._sql.ever_enqueued, (table,)).fetchone()
            return self._statistics.totals(connection, enqueued[0] if enqueued else 0)

        return self._statistics.read(work)

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
