"""Assemble the SQLite store from its parts, each of which is given the database. The SQL is in `sql/`."""

from random import Random
from typing import Any

from ...blobs import BlobStore
from ...clock import Clock
from ..blobs import CheckedBlobs, FileBlobs
from ..parts import Parts
from ..protocol import StatementObserver
from ..transaction_owner import Owner
from .constraints import DamagedJobs
from .database import Database
from .diagnose import Diagnostics, Repairs
from .engine.engine import Options
from .engine.files import blob_folder, database_path
from .file import File
from .migrate import DEFAULT_PREFIX


class SqliteStore:
    """Implements Store."""

    def __init__(self, options: Options, clock: Clock, random: Random, token: str, conn: Any = None) -> None:
        self.clock = clock
        self.database = db = Database(options, clock, random, token, conn)
        checked_blobs = CheckedBlobs(
            options.blobs or FileBlobs(blob_folder(options.path, options.prefix)), options.blob_bytes
        )
        file = File(db, Diagnostics(db, checked_blobs), Repairs(db))
        self.parts = parts = Parts(self, db, checked_blobs, random, DamagedJobs(db).guarded, file.size)
        self.jobs, self.workers, self.workflows = parts.jobs, parts.workers, parts.workflows
        self.operations = parts.operations
        self.schedules, self.statistics, self.pruning = parts.schedules, parts.statistics, parts.pruning
        self.waiters, reading = parts.waiters, parts.reading
        self.file = file
        db.fold, db.after_fork = parts.fold, parts.forget_process
        self.transaction, self.snapshot, self.guard = db.transaction, db.reading, db.guard
        self.busy_timeout, self.transaction_age = db.hurried, db.held_for
        self.wait_as_worker = db.wait_as_worker
        self.commits_seen, self.wait_for_commit = reading.commits_seen, reading.wait_for_commit
        self.wake_waiters = reading.wake_waiters

    @property
    def actor(self) -> str:
        return self.database.actor

    @property
    def location(self) -> str:
        options = self.database.options
        prefix = "" if options.prefix == DEFAULT_PREFIX else f" ({options.prefix})"
        return f"{options.path.resolve()}{prefix}"

    def require_no_transaction(self) -> Owner:
        self.database.engine().writer.forbid_self_wait()
        return Owner()

    def close(self) -> None:
        self.database.close()
        self.waiters.close()


def open_store(
    url: str,
    *,
    prefix: str,
    durable_level: str,
    migrate: bool,
    busy_timeout: float,
    worker_busy_timeout: float,
    min_free_bytes: int,
    guard_connections: bool,
    blobs: BlobStore | None,
    blob_bytes: int | None,
    clock: Clock,
    random: Random,
    token: str,
    conn: Any = None,
    observer: StatementObserver | None = None,
) -> SqliteStore:
    """Open the database. conn: use only this connection, for tests; the URL then names a place for blobs."""
    options = Options(
        path=database_path(url),
        prefix=prefix,
        durable_level=durable_level,
        migrate=migrate,
        busy_timeout=busy_timeout,
        worker_busy_timeout=worker_busy_timeout,
        min_free_bytes=min_free_bytes,
        guard_connections=guard_connections,
        blobs=blobs,
        blob_bytes=blob_bytes,
        observer=observer,
    )
    return SqliteStore(options, clock, random, token, conn)
