"""Into the queue: nothing is promised before these return."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec

from ...model import Inserted, JobRecord, NewJob
from .criteria import as_json
from .engine import Engine
from .guest import take_part
from .part import Part
from .reading import get_record
from .transaction import Transaction

T = TypeVar("T")

INSERT_ROWS = 1000


class Enqueuing(Part):
    def insert(self, job: NewJob, conn: Any = None) -> Inserted:
        if conn is None and job.key is None:
            engine = self._ready_to_grow()
            return engine.writer.run(
                lambda connection: self._insert_new(connection, job), durable=True, atomic=True, wakes=True
            )
        return self._write(lambda connection: self._insert_one(connection, job), conn)

    def _insert_one(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        if job.key is None:
            return self._insert_new(connection, job)
        same_key = {"key": job.key, "task": job.task, "queue": job.queue}
        if job.key_window is not None:
            since = {"since": self._clock.now() - job.key_window}
            ended = connection.execute(self._sql.find_finished_key, same_key | since).fetchone()
            if ended is not None:
                return Inserted(self._existing(connection, ended[0]), deduplicated=True)
        live = connection.execute(self._sql.find_live_key, same_key).fetchone()
        if live is None:
            return self._insert_new(connection, job)
        if job.on_conflict == "replace":
            self._replace(connection, live[0], job)
        return Inserted(self._existing(connection, live[0]), deduplicated=True)

    def _existing(self, connection: sqlite3.Connection, job_id: int) -> JobRecord:
        record = get_record(connection, self._sql, job_id)
        assert record is not None  # it was found in this transaction
        return record

    def _insert_new(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        now = self._clock.now()
        record = _new_record(job, now)
        cursor = connection.execute(self._sql.insert, self._insert_values(record, job.args))
        assert cursor.lastrowid is not None
        return Inserted(msgspec.structs.replace(record, id=cursor.lastrowid))

    def _insert_values(self, record: JobRecord, args: str) -> tuple[Any, ...]:
        return (
            record.queue,
            record.task,
            args,
            record.status,
            record.priority,
            record.run_at,
            record.created_at,
            record.max_attempts,
            record.timeout,
            record.key,
            record.tags,
            record.history,
            self._actor,
        )

    def _replace(self, connection: sqlite3.Connection, job_id: int, job: NewJob) -> None:
        now = self._clock.now()
        record = _new_record(job, now)
        connection.execute(
            self._sql.replace,
            {
                "id": job_id,
                "args": job.args,
                "status": record.status,
                "run_at": record.run_at,
                "priority": job.priority,
                "max_attempts": job.max_attempts,
                "timeout": job.timeout,
                "actor": self._actor,
                "now": now,
            },
        )

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        waiting = iter(payloads)
        first = list(islice(waiting, INSERT_ROWS))  # most often all of them, and encoded before the lock is taken
        return self._write(lambda connection: self._insert_all(connection, like, first, waiting), conn)

    def _insert_all(
        self, connection: sqlite3.Connection, like: NewJob, first: list[str], rest: Iterator[str]
    ) -> list[int]:
        record = _new_record(like, self._clock.now())
        queue, task, _, *others = self._insert_values(record, "")
        ids: list[int] = []
        payloads = first
        while payloads:
            values = (queue, task, *others, as_json(payloads))
            # RETURNING gives rows in any order.
            ids += sorted(row[0] for row in connection.execute(self._sql.insert_many, values).fetchall())
            payloads = list(islice(rest, INSERT_ROWS))
        return ids

    def _write(self, work: Callable[[sqlite3.Connection], T], conn: Any) -> T:
        """In the user's transaction, or in one of our own that is on disk when this returns."""
        engine = self._ready_to_grow()
        if conn is None:
            return engine.writer.run(work, durable=True, wakes=True)
        connection = conn.connection if isinstance(conn, Transaction) else conn
        before = getattr(connection, "total_changes", 0)
        result = take_part(connection, self._options.path, engine.patience, self._options.guard_connections, work)
        if not isinstance(conn, Transaction):
            engine.guest_wrote(connection.total_changes - before)
        return result

    def _ready_to_grow(self) -> Engine:
        engine = self._ready()
        engine.space.require()
        return engine


def _new_record(job: NewJob, now: int) -> JobRecord:
    run_at = now + job.delay if job.run_at is None else job.run_at
    return JobRecord(
        id=0,
        queue=job.queue,
        task=job.task,
        args=job.args.encode(),
        status="scheduled" if run_at > now else "ready",
        priority=job.priority,
        run_at=run_at,
        created_at=now,
        claimed_at=None,
        started_at=None,
        finished_at=None,
        heartbeat_at=None,
        attempt=0,
        max_attempts=job.max_attempts,
        timeout=job.timeout,
        worker=None,
        error_code=None,
        error_detail=None,
        result=None,
        key=job.key,
        tags=as_json(job.tags) if job.tags else None,
        progress=None,
        progress_text=None,
        history=int(job.history),
    )
