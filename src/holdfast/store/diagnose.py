"""What the doctor and the health check read from the rows of either database, and the repairs of rows."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from ..blobs import ListableBlobStore
from ..clock import SECOND, Clock
from ..model.diagnosis import (
    BlobReferences,
    BlockedJob,
    ClockHistory,
    Diagnosis,
    HealthMetrics,
    PausedQueue,
    ReadyJobs,
    Sample,
    SkipReason,
)
from ..model.stats import WaitingJob
from .blobs import check_blobs
from .database import Connection, SharedDatabase
from .processes import ProcessLocks, Slot
from .statements import Statements, as_json, record
from .statistics import LONGEST_READY, NO_LIMIT, Statistics, StatisticsReader
from .workers import present_workers

LIMIT = 1000  # rows that a query returns
IDS_IN_SAMPLE = 10
WINDOW = 20_000  # rows read at either end of an index
NEWEST = 1000  # jobs or events
MOST_BLOBS = 2000
MOST_DUE = 1000  # jobs that are due and still scheduled, those of paused queues included
SWEEP_TOLERANCE = 10 * SECOND  # how late a worker may be to recover a job
DAY = 86_400 * SECOND
CLOCK_TOLERANCE = 60 * SECOND  # between the clocks of two machines
FAR_FUTURE = 10 * 365 * 86_400 * SECOND
EARLIEST = 1_000_000_000 * SECOND  # 2001
TABLES_OF_JOBS = ("events", "tags", "blockers")
RECOUNT = "recount"  # in the table `meta`: the token of the process that recounts

Part = Callable[[str], AbstractContextManager[None]]
"""Reads one part of the diagnosis in the block; if that fails, it notes why."""


class SkippedError(Exception):
    """A part of the diagnosis is left out."""

    def __init__(self, reason: SkipReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class RowsReader:
    """Reads what rows tell, on a connection that no other thread uses meanwhile."""

    def __init__(
        self,
        connection: Connection,
        sql: Statements,
        clock: Clock,
        locks: ProcessLocks,
        samples: Sequence[str],
        snapshot: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """samples: the names of the queries that return ids. snapshot: all reads in the block see the same state."""
        self._connection, self._sql, self._clock, self._locks = connection, sql, clock, locks
        self._samples, self._snapshot = samples, snapshot
        self._statistics = StatisticsReader(sql)

    def read(self, diagnosis: Diagnosis, part: Part) -> None:
        with part("workers"):
            diagnosis.workers = present_workers(self._connection, self._sql, self._locks)
        values = self._parameters(diagnosis)
        for name in self._samples:
            with part(name):
                diagnosis.samples[name] = self._sample(name, values)
        with part("moved"):
            diagnosis.moved = self.meta("moved_to"), self.meta("moving_from")
        with part("blocked_jobs"):
            rows = self.rows("blocked_by_finished", values)
            diagnosis.blocked_jobs = [
                record(BlockedJob, (*counts, tuple(msgspec.json.decode(ids or "[]")))) for *counts, ids in rows
            ]
        with part("open_batches"):
            diagnosis.open_batches = {
                id: self._locks.state(record(Slot, (number, place)), 0, "")
                for number, place, found in self.rows("open_blocks", {"limit": LIMIT})
                for id in msgspec.json.decode(found)
            }
        with part("endings"):
            diagnosis.endings = self.rows("count_endings", values)[0][0]
        with part("ready_jobs"):
            diagnosis.ready_jobs = [
                record(ReadyJobs, (queue, task, count, count >= LIMIT, version))
                for queue, task, count, version in self.rows("ready_by_queue_and_task", values)
            ]
        with part("paused_queues"):
            diagnosis.paused_queues = [record(PausedQueue, row) for row in self.rows("paused_queues", values)]
        with part("clock"):
            steps = self.rows("clock_steps", values)[0]
            diagnosis.clock = ClockHistory(self.meta("boot_id"), self._clock.boot_id(), *steps)
        with part("counts"), self._snapshot():
            diagnosis.counts = self._statistics.recount(self._connection)[:LIMIT]

    def blob_references(self, blobs: ListableBlobStore | None, deep: bool, deadline: float) -> BlobReferences:
        """blobs: what stores large payloads, if it can list them."""
        store = self.meta("blob_store")
        if store is None:
            return BlobReferences()
        if blobs is None or store != type(blobs).__qualname__:
            raise SkippedError("elsewhere", store)
        return check_blobs(self._connection, self._sql, blobs, NO_LIMIT if deep else MOST_BLOBS, deadline)

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None) -> HealthMetrics:
        now = self._clock.now()
        paused = {name for name, paused_at, _, _ in self.rows("queues_ever_paused", {}) if paused_at is not None}
        with self._snapshot():
            counts = self._statistics.counts(self._connection)
            minutes = self._statistics.minutes(self._connection, since_minute)
        places = as_json([(one.queue, one.task or "") for one in counts if one.status == "ready"])
        ready = self.rows("longest_ready", {"places": places, "limit": NO_LIMIT} | LONGEST_READY)
        due = self.rows("longest_due", {"now": now, "limit": MOST_DUE})
        waiting = [
            record(WaitingJob, (*row, status))
            for status, rows in (("ready", ready), ("scheduled", due))
            for row in rows
            if row[1] not in paused and (queues is None or row[1] in queues)
        ]
        oldest = min(waiting, key=lambda job: job.since, default=None)
        attempts = Counter[str]()
        for minute in minutes:
            if queues is None or minute.queue in queues:
                attempts[minute.measure] += minute.count
        workers = present_workers(self._connection, self._sql, self._locks)
        since, id = (None, None) if oldest is None else (oldest.since, oldest.id)
        return HealthMetrics(now, since, id, attempts, workers)

    def meta(self, name: str) -> str | None:
        row = self._connection.execute(self._sql.get_meta, (name,)).fetchone()
        return None if row is None else str(row[0])

    def rows(self, query: str, values: dict[str, Any]) -> list[Any]:
        return self._connection.execute(getattr(self._sql, query), values).fetchall()

    def _sample(self, query: str, values: dict[str, Any]) -> Sample:
        ids = [row[0] for row in self.rows(query, values)]
        return Sample(len(ids), tuple(sorted(ids[:IDS_IN_SAMPLE])), len(ids) >= LIMIT)

    def _parameters(self, diagnosis: Diagnosis) -> dict[str, Any]:
        """Return the parameters of all queries of the doctor."""
        now = self._clock.now()
        dead = [worker.record.id for worker in diagnosis.workers if worker.is_unnoticed]
        live = [worker.record.id for worker in diagnosis.workers if worker.is_present]
        return {
            "limit": LIMIT,
            "window": NO_LIMIT if diagnosis.deep else WINDOW,
            "newest": NO_LIMIT if diagnosis.deep else NEWEST,
            "recent": NEWEST,
            "live_workers": as_json(live),
            "dead_workers": as_json(dead),
            "expired_before": self._clock.boot_now() - SWEEP_TOLERANCE,
            "late_before": now - CLOCK_TOLERANCE,
            "future": now + CLOCK_TOLERANCE,
            "far_future": now + FAR_FUTURE,
            "earliest": EARLIEST,
            "tolerance": CLOCK_TOLERANCE,
            "yesterday": now - DAY,
        }


class RowRepairs:
    """Repairs of rows that lose nothing."""

    def __init__(self, db: SharedDatabase) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock
        self._statistics = Statistics(db, db.sql, db.clock)

    def delete_orphaned_rows(self) -> int:
        """Delete some events, tags or blockers of deleted jobs. Return how many rows; 0: none is left."""
        self._statistics.fold_all()  # orphaned events still count
        for find, delete in (
            (self._sql.orphaned_events, self._sql.delete_orphaned_events),
            (self._sql.orphaned_tags, self._sql.delete_orphaned_tags),
            (self._sql.orphaned_blockers, self._sql.delete_orphaned_blockers),
        ):
            orphaned = self._db.rows(find, {"window": NO_LIMIT, "limit": LIMIT})
            if orphaned and (deleted := self._change(delete, {"jobs": as_json([row[0] for row in orphaned])})):
                return deleted
        return 0

    def repair_finish_times(self) -> int:
        """Set `finished_at` to now where it is missing or in the future, of some jobs. Return how many; 0: none is
        left."""
        now = self._clock.now()
        future = now + CLOCK_TOLERANCE
        jobs = self._db.rows(self._sql.finished_without_time, {"newest": NO_LIMIT, "limit": LIMIT}) or self._db.rows(
            self._sql.finished_in_future, {"future": future, "limit": LIMIT}
        )
        values = {"future": future, "now": now, "batch": as_json([row[0] for row in jobs])}
        return self._change(self._sql.set_finished_now, values) if jobs else 0

    def recount(self) -> int:
        """Correct wrong counts and return how many. Adds differences only, because jobs may finish meanwhile."""
        token = secrets.token_hex(8)
        self._db.run(lambda connection: connection.execute(self._sql.set_meta, (RECOUNT, token)) and None)
        rows = self._db.read_snapshot(self._statistics.recount)
        changes = [(queue, task, status, actual - counted) for queue, task, status, counted, actual in rows]

        def work(connection: Any) -> int:
            # Of two processes that recount at once, only the last to begin may apply its changes.
            if connection.execute(self._sql.get_meta, (RECOUNT,)).fetchone() != (token,):
                return 0
            connection.execute(self._sql.delete_meta, (RECOUNT,))
            connection.executemany(self._sql.add_counts, changes)
            connection.execute(self._sql.delete_empty_counts)
            return len(changes)

        return self._db.run(work)

    def insert_missed_endings(self) -> int:
        """Record finished jobs that others still wait for, so that a sweep of endings releases those."""
        return self._change(self._sql.insert_missed_endings, {"limit": LIMIT})

    def _change(self, statement: str, values: dict[str, object]) -> int:
        return self._db.run(lambda connection: int(connection.execute(statement, values).rowcount))
