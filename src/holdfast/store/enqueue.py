"""Insert new jobs and messages. They are stored when these methods return, and not before.

`Failures` enqueues the jobs of failure hooks: the cursor of a hook is a row of `meta`, and enqueueing moves it in the
same transaction, unless another process was first.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from msgspec import Struct

from ..blobs import PLACEHOLDER
from ..clock import as_datetime
from ..errors import BlobCollected
from ..model.job import FailureReport, Inserted, NewJob, UnreportedFailures
from .blobs import Blobs
from .database import Combinable, Connection, SharedDatabase, Traceable
from .read import get_record
from .statements import NEW_JOB_ROW, as_json, insert_statement, new_job_values
from .workflow import Workflows

T = TypeVar("T")
CHUNK_ROWS = 1000
CHUNK_CHARACTERS = 1024 * 1024


class Enqueue:
    def __init__(self, db: SharedDatabase, blobs: Blobs, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._insert, self._insert_many = insert_statement(db.sql.insert), insert_statement(db.sql.insert_many)
        self._inserted_id, self.now = db.dialect.inserted_id, db.clock.now

    def insert(self, job: NewJob, conn: Any = None) -> Inserted:
        """Insert one job, or return the one that holds its key."""
        if len(job.args) > self._blobs.store.always_small and self._blobs.store.is_large(job.args):
            return self._insert_large(job, conn)
        if conn is None and job.key is None and job.links is None:
            self._db.require_space(len(job.args))
            return self._db.run(_Insertion(self, job), durable=True, atomic=True, wakes=True)
        work = partial(self.insert_one, job=job)
        return self._db.run_in(conn, work, len(job.args), atomic=job.key is None and job.links is None)

    def _insert_large(self, job: NewJob, conn: Any) -> Inserted:
        while True:
            with_blob = self._blobs.offload_args(job)
            work = partial(self.insert_one, job=with_blob)
            try:
                return self._db.run_in(conn, work, len(with_blob.args))
            except BlobCollected:
                continue

    def insert_one(self, connection: Connection, job: NewJob) -> Inserted:
        if job.key is None:
            return self._workflows.insert_new(connection, job)
        while (inserted := self._insert_keyed(connection, job)) is None:
            pass  # another transaction has taken the key meanwhile
        return inserted

    def _insert_keyed(self, connection: Connection, job: NewJob) -> Inserted | None:
        """Insert the job, or return the one that holds its key. None: look again."""
        same_key = {"key": job.key, "task": job.task, "queue": job.queue}
        live = connection.execute(self._sql.find_live_key, same_key).fetchone()
        if live is not None:
            if job.on_conflict == "replace":
                self._replace(connection, live[0], job)
            return self._existing(connection, live[0], job)
        if job.key_window is not None:
            since = {"since": self._clock.now() - job.key_window}
            finished = connection.execute(self._sql.find_finished_key, same_key | since).fetchone()
            if finished is not None:
                return self._existing(connection, finished[0], job)
        return self._workflows.insert_keyed(connection, job)

    def _existing(self, connection: Connection, job_id: int, instead_of: NewJob) -> Inserted:
        if instead_of.args_blob is not None:  # most likely no job uses it
            connection.execute(self._sql.mark_unused, (instead_of.args_blob,))
        return Inserted(job_id, self._clock.now(), existing=get_record(connection, self._db, job_id))

    def insert_plain(self, connection: Connection, job: NewJob, now: int) -> Inserted:
        """Insert a job without a key, links and a large payload."""
        inserted = connection.execute(self._insert, new_job_values(job, now, self._db.actor))
        return Inserted(self._inserted_id(inserted), now)

    def insert_combined(self, connection: Connection, jobs: list[NewJob]) -> list[Inserted]:
        """Insert jobs without keys and links with one statement."""
        now = self._clock.now()
        flat = [value for job in jobs for value in new_job_values(job, now, self._db.actor)]
        multi_row = f"{self._insert}{f', {NEW_JOB_ROW}' * (len(jobs) - 1)} RETURNING id"
        # RETURNING gives rows in any order.
        ids = sorted(row[0] for row in connection.execute(multi_row, flat).fetchall())
        return [Inserted(job_id, now) for job_id in ids]

    def _replace(self, connection: Connection, job_id: int, job: NewJob) -> None:
        now = self._clock.now()
        if job.args_blob is not None:
            self._blobs.require_blob(connection, job.args_blob)
        bound = {
            "id": job_id,
            "args": job.args,
            "args_blob": job.args_blob,
            "status": job.first_status(now).value,
            "run_at": job.due(now),
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "timeout": job.timeout,
            "expires_at": job.expiry(now),
            "trace": job.trace,
            "version": job.version,
            "actor": self._db.actor,
            "now": now,
        }
        connection.execute(self._sql.mark_args_unused, bound)
        connection.execute(self._sql.replace, bound)

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        """Insert jobs that differ only in their payload, in one transaction."""
        chunks = self._chunks(payloads)
        first = list(islice(chunks, 2))  # most often all there are, and encoded before the write lock is taken
        while len(first) > 1 and first[-1].blobs and (another := next(chunks, None)) is not None:
            first.append(another)  # storing blobs takes long, so it happens before the write lock is taken

        def work(connection: Connection) -> list[int]:
            return self._insert_all(connection, like, chain(first, chunks))

        size = sum(len(payload) for chunk in first for payload in chunk.payloads)
        if conn is not None or len(first) < 2:
            return self._db.run_in(conn, work, size)
        # There are more, and the iterable is the caller's code, so it must run in the caller's thread.
        self._db.require_space(size)
        return self._db.run_in_this_thread(work)

    def _insert_all(self, connection: Connection, like: NewJob, chunks: "Iterable[_Chunk]") -> list[int]:
        _, *shared = new_job_values(like, self._clock.now(), self._db.actor)
        if like.links is not None:
            self._workflows.require_open_batch(connection, like.links)
        ids: list[int] = []
        for chunk in chunks:
            self._db.require_space(sum(map(len, chunk.payloads)))
            # RETURNING gives rows in any order.
            rows = connection.execute(self._insert_many, (*shared, as_json(chunk.payloads))).fetchall()
            new_ids = sorted(row[0] for row in rows)
            for index, name in chunk.blobs.items():
                self._blobs.refer(connection, new_ids[index], name)
            ids += new_ids
        if like.links is not None:
            self._workflows.link(connection, ids, like.links)
        return ids

    def _chunks(self, payloads: Iterable[str]) -> "Iterator[_Chunk]":
        """Split the payloads into chunks for one statement each. Large payloads are stored as blobs at once."""
        small = self._blobs.store.always_small
        chunk, blobs, size = list[str](), dict[int, str](), 0
        for payload in payloads:
            if len(payload) > small and self._blobs.store.is_large(payload):
                blobs[len(chunk)] = self._blobs.put(payload, reserve=True)
                chunk.append(PLACEHOLDER)
            else:
                chunk.append(payload)
                size += len(payload)
            if len(chunk) >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield _Chunk(chunk, blobs)
                chunk, blobs, size = [], {}, 0
        if chunk:
            yield _Chunk(chunk, blobs)


class _Chunk(Struct):
    """The payloads of one statement, and the names of the blobs among them by index."""

    payloads: list[str]
    blobs: dict[int, str]


class _Insertion(Combinable[Inserted], Traceable[Inserted]):
    """One enqueue. Those of several threads are combined into one statement."""

    max_combined = 16  # each number of rows is another statement to prepare and cache

    def __init__(self, enqueue: Enqueue, job: NewJob) -> None:
        self._enqueue, self._job = enqueue, job
        self.leaves_event = job.history and job.actor is None  # with another actor, others may write the same
        self._now = 0

    def __call__(self, connection: Connection) -> Inserted:
        self._now = self._enqueue.now()
        return self._enqueue.insert_plain(connection, self._job, self._now)

    def event_time(self) -> int:
        return self._now

    def result(self, id: int) -> Inserted:
        return Inserted(id, self._now)

    def run_combined(self, connection: Connection, works: "list[_Insertion]") -> list[Inserted]:
        return self._enqueue.insert_combined(connection, [work._job for work in works])


MAX_SCANNED = 10_000  # events in one read
MAX_REPORTED = 100  # failures in one transaction


class Failures:
    def __init__(self, db: SharedDatabase, enqueue: Enqueue) -> None:
        self._db, self._sql, self._enqueue = db, db.sql, enqueue

    def unreported_failures(self, hook: str, after: int) -> UnreportedFailures:
        def work(connection: Connection) -> UnreportedFailures:
            cursor = _stored_cursor(connection.execute(self._sql.get_meta, (hook,)).fetchone())
            (newest,) = connection.execute(self._sql.newest_event).fetchone()
            if cursor is None:
                return UnreportedFailures(None, newest, [], more=False)
            scan = {"after": max(after, cursor), "newest": newest, "scan": MAX_SCANNED}
            (until,) = connection.execute(self._sql.failures_scan_end, scan).fetchone()
            wanted = scan | {"until": until, "limit": MAX_REPORTED}
            rows = connection.execute(self._sql.failures_between, wanted).fetchall()
            until = rows[-1][0] if len(rows) == MAX_REPORTED else until
            return UnreportedFailures(cursor, until, [_failure_report(*row) for row in rows], more=until < newest)

        return self._db.read_snapshot(work)

    def report_failures(self, hook: str, found: UnreportedFailures, jobs: Sequence[NewJob]) -> list[int]:
        def work(connection: Connection) -> list[int]:
            values = {
                "name": hook,
                "old": None if found.cursor is None else str(found.cursor),
                "new": str(found.until),
            }
            statement = self._sql.add_cursor if found.cursor is None else self._sql.move_cursor
            if connection.execute(statement, values).rowcount == 0:
                return []  # another process reports them
            return [self._enqueue.insert_one(connection, job).id for job in jobs]

        # Not flushed: a power cut loses the cursor with the jobs, and the failures are reported again.
        self._db.require_space(sum(len(job.args) for job in jobs))
        return self._db.run(work, wakes=True)


def _stored_cursor(row: tuple[str] | None) -> int | None:
    return int(row[0]) if row is not None and row[0].isdecimal() else None


def _failure_report(
    _event: int,
    id: int,
    task: str | None,
    queue: str,
    attempt: int,
    max_attempts: int,
    error_code: str | None,
    error_detail: str | None,
    at: int,
    worker: str | None,
    fingerprint: str | None,
) -> FailureReport:
    told = (error_code or "", error_detail or "", as_datetime(at))
    return FailureReport(id, task, queue, attempt, max_attempts, *told, worker, fingerprint)
