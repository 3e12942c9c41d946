"""Into the queue: nothing is promised before these return."""

import sqlite3
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from msgspec import Struct

from ...blobs import PLACEHOLDER
from ...errors import BlobCollected
from ...model.job import Inserted, NewJob
from ..statements import as_json
from .blobs import Blobs
from .database import Database
from .engine.writer import Joinable
from .job_columns import ROW, statement, values
from .read import get_record
from .workflow import Workflows

T = TypeVar("T")
BATCH_ROWS = 1000
BATCH_CHARACTERS = 1024 * 1024


class Enqueue:
    def __init__(self, db: Database, blobs: Blobs, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._insert, self._insert_many = statement(db.sql.insert), statement(db.sql.insert_many)

    def insert(self, job: NewJob, conn: Any = None) -> Inserted:
        if len(job.args) > self._blobs.store.always_small and self._blobs.store.is_large(job.args):
            return self._insert_large(job, conn)
        if conn is None and job.key is None and job.links is None:
            self._db.require_space(len(job.args))
            return self._db.run(_Insertion(self, self._workflows, job), durable=True, atomic=True, wakes=True)
        return self._db.run_in(conn, lambda connection: self.insert_one(connection, job), len(job.args))

    def _insert_large(self, job: NewJob, conn: Any) -> Inserted:
        while True:
            kept = self._blobs.offload_args(job)
            work = partial(self.insert_one, job=kept)
            try:
                return self._db.run_in(conn, work, len(kept.args))
            except BlobCollected:
                continue

    def insert_one(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        if job.key is None:
            return self._workflows.insert_new(connection, job)
        same_key = {"key": job.key, "task": job.task, "queue": job.queue}
        live = connection.execute(self._sql.find_live_key, same_key).fetchone()
        if live is not None:
            if job.on_conflict == "replace":
                self._replace(connection, live[0], job)
            return self._existing(connection, live[0], job)
        if job.key_window is not None:
            since = {"since": self._clock.now() - job.key_window}
            ended = connection.execute(self._sql.find_finished_key, same_key | since).fetchone()
            if ended is not None:
                return self._existing(connection, ended[0], job)
        return self._workflows.insert_new(connection, job)

    def _existing(self, connection: sqlite3.Connection, job_id: int, instead_of: NewJob) -> Inserted:
        if instead_of.args_blob is not None:  # which was put for nothing, most likely
            connection.execute(self._sql.mark_unused, (instead_of.args_blob,))
        return Inserted(job_id, self._clock.now(), existing=get_record(connection, self._sql, job_id))

    def insert_together(self, connection: sqlite3.Connection, jobs: list[NewJob]) -> list[Inserted]:
        now = self._clock.now()
        flat = [value for job in jobs for value in values(job, now, self._db.actor)]
        together = f"{self._insert}{f', {ROW}' * (len(jobs) - 1)} RETURNING id"
        # RETURNING gives rows in any order.
        ids = sorted(found[0] for found in connection.execute(together, flat).fetchall())
        return [Inserted(job_id, now) for job_id in ids]

    def _replace(self, connection: sqlite3.Connection, job_id: int, job: NewJob) -> None:
        now = self._clock.now()
        if job.args_blob is not None:
            self._blobs.require_blob(connection, job.args_blob)
        given = {
            "id": job_id,
            "args": job.args,
            "args_blob": job.args_blob,
            "status": job.first_status(now).value,
            "run_at": job.due(now),
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "timeout": job.timeout,
            "trace": job.trace,
            "actor": self._db.actor,
            "now": now,
        }
        connection.execute(self._sql.mark_args_unused, given)
        connection.execute(self._sql.replace, given)

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        waiting = self._gathered(payloads)
        first = list(islice(waiting, 2))  # most often all there is, and encoded before the lock is taken
        while len(first) > 1 and first[-1].blobs and (another := next(waiting, None)) is not None:
            first.append(another)  # large ones take long to be put away, and little room then

        def work(connection: sqlite3.Connection) -> list[int]:
            return self._insert_all(connection, like, chain(first, waiting))

        size = sum(len(payload) for batch in first for payload in batch.payloads)
        if conn is not None or len(first) < 2:
            return self._db.run_in(conn, work, size)
        # There is more to come, and what makes it is the caller's: it runs in the caller's thread.
        self._db.require_space(size)
        return self._db.run_here(work)

    def _insert_all(self, connection: sqlite3.Connection, like: NewJob, batches: "Iterable[_Batch]") -> list[int]:
        _, *alike = values(like, self._clock.now(), self._db.actor)
        if like.links is not None:
            self._workflows.require_open_batch(connection, like.links)
        ids: list[int] = []
        for batch in batches:
            self._db.require_space(sum(map(len, batch.payloads)))
            # RETURNING gives rows in any order.
            rows = connection.execute(self._insert_many, (*alike, as_json(batch.payloads))).fetchall()
            made = sorted(row[0] for row in rows)
            for place, name in batch.blobs.items():
                self._blobs.refer(connection, made[place], name)
            ids += made
        if like.links is not None:
            self._workflows.link(connection, ids, like.links)
        return ids

    def _gathered(self, payloads: Iterable[str]) -> "Iterator[_Batch]":
        """So many at a time as memory and a statement can bear. Large ones are put away at once."""
        small = self._blobs.store.always_small
        batch, blobs, size = list[str](), dict[int, str](), 0
        for payload in payloads:
            if len(payload) > small and self._blobs.store.is_large(payload):
                blobs[len(batch)] = self._blobs.put(payload, reserve=True)
                batch.append(PLACEHOLDER)
            else:
                batch.append(payload)
                size += len(payload)
            if len(batch) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
                yield _Batch(batch, blobs)
                batch, blobs, size = [], {}, 0
        if batch:
            yield _Batch(batch, blobs)


class _Batch(Struct):
    """Payloads of one statement. Of those that are kept by reference, their names, by place."""

    payloads: list[str]
    blobs: dict[int, str]


class _Insertion(Joinable[Inserted]):
    """One enqueue. Those of several threads are done with one statement."""

    most_together = 16  # each number of rows is a statement of its own, so not too many

    def __init__(self, enqueue: Enqueue, workflows: Workflows, job: NewJob) -> None:
        self._enqueue, self._workflows, self._job = enqueue, workflows, job

    def __call__(self, connection: sqlite3.Connection) -> Inserted:
        return self._workflows.insert_new(connection, self._job)

    def do_together(self, connection: sqlite3.Connection, works: "list[_Insertion]") -> list[Inserted]:
        return self._enqueue.insert_together(connection, [work._job for work in works])
