"""Assemble the PostgreSQL store from the parts that both stores share. The SQL is in `sql/`."""

from collections.abc import Callable
from random import Random
from typing import ParamSpec, TypeVar

from ...blobs import BlobStore
from ...clock import Clock
from ...model.stats import Storage
from ..blobs import CheckedBlobs
from ..move import Side
from ..parts import Parts
from ..transactions import Owner
from .database import PostgresDatabase, PostgresOptions
from .diagnose import ServerDiagnostics, ServerRepairs
from .moving import PostgresMoving
from .places import PlaceKeeper
from .table_blobs import TableBlobs
from .tables import Tables

P = ParamSpec("P")
T = TypeVar("T")


class PostgresStore:
    """Implements Store."""

    def __init__(self, options: PostgresOptions, clock: Clock | None, random: Random, token: str) -> None:
        self.database = db = PostgresDatabase(options, clock, token)
        self.clock = db.clock
        blobs = options.blobs or TableBlobs(db.rows, db.change_beside, db.sql, db.clock)
        checked = CheckedBlobs(blobs, options.blob_bytes)
        self.parts = parts = Parts(self, db, checked, random, _unguarded, self._size, PlaceKeeper(db.sql))
        self.jobs, self.workers, self.workflows = parts.jobs, parts.workers, parts.workflows
        self.schedules, self.statistics, self.pruning = parts.schedules, parts.statistics, parts.pruning
        self.waiters, reading = parts.waiters, parts.reading
        self.operations = parts.operations
        self.side = Side(db, PostgresMoving(db), checked)
        self.file = Tables(db, self._size, ServerDiagnostics(db, checked.listable), ServerRepairs(db))
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
    def is_pooled(self) -> bool:
        """Whether a pooler stands between this process and the server: no LISTEN and no advisory locks then."""
        return self.database.sessions.is_pooled

    @property
    def location(self) -> str:
        return f"{self.database.where.shown} ({self.database.tables})"

    def require_no_transaction(self) -> Owner:
        return self.database.require_no_transaction()

    def _size(self) -> Storage:
        db = self.database
        ((size, page),) = db.rows(db.sql.table_sizes, db.names.given)
        return Storage(size, 0, 0, page, 0)

    def close(self) -> None:
        self.database.close()
        self.waiters.close()


def _unguarded(function: Callable[P, T], /) -> Callable[P, T]:
    """Constraints of PostgreSQL cannot be switched off, so no row breaks them."""
    return function


def open_store(
    url: str,
    *,
    schema: str,
    prefix: str,
    durable_level: str,
    migrate: bool,
    busy_timeout: float,
    worker_busy_timeout: float,
    blobs: BlobStore | None,
    blob_bytes: int | None,
    notify: bool,
    clock: Clock | None,
    random: Random,
    token: str,
) -> PostgresStore:
    options = PostgresOptions(
        url=url,
        schema=schema,
        prefix=prefix,
        durable_level=durable_level,
        migrate=migrate,
        busy_timeout=busy_timeout,
        worker_busy_timeout=worker_busy_timeout,
        blobs=blobs,
        blob_bytes=blob_bytes,
        notify=notify,
    )
    return PostgresStore(options, clock, random, token)
