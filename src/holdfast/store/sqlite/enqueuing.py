"""Into the queue: nothing is promised before these return."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeVar

from ...model import Inserted, NewJob
from .criteria import as_json
from .guest import take_part
from .linking import Linking, link_values
from .reading import get_record
from .transaction import Transaction
from .writer import Joinable

T = TypeVar("T")

BATCH_ROWS = 1000
BATCH_CHARACTERS = 1024 * 1024


class Enqueuing(Linking):
    def insert(self, job: NewJob, conn: Any = None) -> Inserted:
        if conn is None and job.key is None and job.links is None:
            self._require_space(len(job.args))
            return self._run(_Insertion(self, job), durable=True, atomic=True, wakes=True)
        return self._write(lambda connection: self._insert_one(connection, job), conn, len(job.args))

    def _insert_one(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        if job.key is None:
            return self._insert_new(connection, job)
        same_key = {"key": job.key, "task": job.task, "queue": job.queue}
        live = connection.execute(self._sql.find_live_key, same_key).fetchone()
        if live is not None:
            if job.on_conflict == "replace":
                self._replace(connection, live[0], job)
            return self._existing(connection, live[0])
        if job.key_window is not None:
            since = {"since": self._clock.now() - job.key_window}
            ended = connection.execute(self._sql.find_finished_key, same_key | since).fetchone()
            if ended is not None:
                return self._existing(connection, ended[0])
        return self._insert_new(connection, job)

    def _existing(self, connection: sqlite3.Connection, job_id: int) -> Inserted:
        return Inserted(job_id, self._clock.now(), existing=get_record(connection, self._sql, job_id))

    def _insert_together(self, connection: sqlite3.Connection, jobs: list[NewJob]) -> list[Inserted]:
        now = self._clock.now()
        head, row = self._sql.insert.split("VALUES")
        values = [value for job in jobs for value in self._values(job, now)]
        statement = f"{head} VALUES {', '.join([row] * len(jobs))} RETURNING id"
        # RETURNING gives rows in any order.
        ids = sorted(found[0] for found in connection.execute(statement, values).fetchall())
        return [Inserted(job_id, now) for job_id in ids]

    def _replace(self, connection: sqlite3.Connection, job_id: int, job: NewJob) -> None:
        now = self._clock.now()
        values = {
            "id": job_id,
            "args": job.args,
            "status": job.first_status(now),
            "run_at": job.due(now),
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "timeout": job.timeout,
            "actor": self._actor,
            "now": now,
        }
        connection.execute(self._sql.replace, values)

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        waiting = _in_batches(payloads)
        first = list(islice(waiting, 2))  # most often all there is, and encoded before the lock is taken

        def work(connection: sqlite3.Connection) -> list[int]:
            return self._insert_all(connection, like, chain(first, waiting))

        size = sum(len(payload) for batch in first for payload in batch)
        if conn is not None or len(first) < 2:
            return self._write(work, conn, size)
        # There is more to come, and what makes it is the caller's: it runs in the caller's thread.
        self._require_space(size)
        return self._with_engine(lambda engine: engine.writer.run_here(work))

    def _insert_all(self, connection: sqlite3.Connection, like: NewJob, batches: Iterable[list[str]]) -> list[int]:
        _, *alike = self._values(like, self._clock.now())
        statement, links = self._sql.insert_many, like.links
        if links is not None:
            self._require_open_batch(connection, links)
            statement, alike = self._sql.insert_many_linked, [*alike, *link_values(links)]
        ids: list[int] = []
        for payloads in batches:
            self._require_space(sum(map(len, payloads)))
            values = (*alike, as_json(payloads))
            # RETURNING gives rows in any order.
            ids += sorted(row[0] for row in connection.execute(statement, values).fetchall())
        if links is not None:
            self._link(connection, ids, links)
        return ids

    def _write(self, work: Callable[[sqlite3.Connection], T], conn: Any, size: int) -> T:
        """In the user's transaction, or in one of our own that is on disk when this returns."""
        self._require_space(size)
        if conn is None:
            return self._run(work, durable=True, wakes=True)
        if isinstance(conn, Transaction):
            return self._take_part(conn, work)
        engine, options = self._ready(), self._options
        engine.writer.refuse_nesting()
        if options.guard_connections:
            engine.look_after_log()
        return take_part(conn, options.path, engine.patience, options.guard_connections, work)

    def _require_space(self, size: int) -> None:
        (self._engine or self._ready()).space.require(size)


def _in_batches(payloads: Iterable[str]) -> Iterator[list[str]]:
    """So many at a time as memory and a statement can bear."""
    batch: list[str] = []
    size = 0
    for payload in payloads:
        batch.append(payload)
        size += len(payload)
        if len(batch) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Insertion(Joinable[Inserted]):
    """One enqueue. Those of several threads are done with one statement."""

    most_together = 16  # each number of rows is a statement of its own, so not too many

    def __init__(self, store: Enqueuing, job: NewJob) -> None:
        self._store, self._job = store, job

    def __call__(self, connection: sqlite3.Connection) -> Inserted:
        return self._store._insert_new(connection, self._job)

    def do_together(self, connection: sqlite3.Connection, works: "list[_Insertion]") -> list[Inserted]:
        return self._store._insert_together(connection, [work._job for work in works])
