"""How it is doing: counts, rates, failures, the log. Short reads, by an index or of a table that stays small."""

import sqlite3
from collections import Counter, defaultdict
from shutil import disk_usage

from ...observations import (
    EventRecord,
    FailureRecord,
    HistogramRecord,
    Slice,
    StorageRecord,
)
from ...rollup import ACKED, unpacked
from .checkpoint import size_of
from .part import Part
from .timeline import read_detail

LAST_PLACE = 2**63 - 1
LEFT_BEHIND = {"window": 250, "most": 100}


class Observing(Part):
    def longest_running(self, limit: int) -> list[int]:
        values = {"limit": limit}
        rows = self._read(lambda connection: connection.execute(self._sql.longest_running, values).fetchall())
        return [row[0] for row in rows]

    def slices(self, since_minute: int, step_minutes: int) -> list[Slice]:
        values = {"since": since_minute, "step": step_minutes}
        rows = self._read(lambda connection: connection.execute(self._sql.minutes, values).fetchall())
        return [Slice(minute, queue, task or None, what, n) for minute, queue, task, what, n in rows]

    def rollup(self, since_minute: int, task: str | None = None, queue: str | None = None) -> list[HistogramRecord]:
        values = {"since": since_minute, "task": task, "queue": queue}
        rows = self._read(lambda connection: connection.execute(self._sql.rollup, values).fetchall())
        found: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
        for where, whose, what, bucket, n in rows:
            for kind, place in unpacked(bucket) if what == ACKED else ((what, bucket),):
                found[where, whose, kind][place] += n
        return [
            HistogramRecord(where, whose or None, what, buckets) for (where, whose, what), buckets in found.items()
        ]

    def top_failures(
        self, since_minute: int | None, limit: int, task: str | None = None, queue: str | None = None
    ) -> list[FailureRecord]:
        statement = self._sql.top_failures if since_minute is None else self._sql.top_failures_since
        values = {"since": since_minute, "limit": limit, "task": task, "queue": queue}
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [
            FailureRecord(code, queue, task or None, fingerprint or None, *rest)
            for code, queue, task, fingerprint, *rest in rows
        ]

    def storage(self) -> StorageRecord:
        def work(connection: sqlite3.Connection) -> StorageRecord:
            pages, free, size = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
            path = self._options.path
            log = size_of(path.with_name(f"{path.name}-wal"))
            return StorageRecord(pages * size, log, free * size, size, disk_usage(path.parent).free)

        return self._read(work)

    def left_behind(self) -> int:
        def work(connection: sqlite3.Connection) -> int:
            found: set[int] = set()
            for table in ("attempts", "events", "tags", "blockers"):
                rows = connection.execute(getattr(self._sql, f"orphaned_{table}"), LEFT_BEHIND).fetchall()
                found.update(row[0] for row in rows)
            return len(found)

        return self._read(work)

    def running_by_worker(self) -> dict[str, int]:
        rows = self._read(lambda connection: connection.execute(self._sql.running_by_worker).fetchall())
        return dict(rows)

    def events_after(self, after: int, limit: int, job_id: int | None = None) -> list[EventRecord]:
        statement = self._sql.events_after if job_id is None else self._sql.events_of_job_after
        return self._events(statement, {"after": after, "limit": limit, "job": job_id})

    def last_events(self, limit: int, job_id: int | None = None, before: int | None = None) -> list[EventRecord]:
        statement = self._sql.last_events if job_id is None else self._sql.last_events_of_job
        end = LAST_PLACE if before is None else before
        return self._events(statement, {"limit": limit, "job": job_id, "before": end})[::-1]

    def _events(self, statement: str, values: dict[str, int | None]) -> list[EventRecord]:
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [
            EventRecord(place, job, at, event, attempt, actor, read_detail(detail))
            for place, job, at, event, attempt, actor, detail in rows
        ]

    def last_event(self) -> int:
        found = self._read(lambda connection: connection.execute(self._sql.last_event).fetchone())
        return int(found[0])
