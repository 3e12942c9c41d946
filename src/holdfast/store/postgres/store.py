"""Assemble the PostgreSQL store from the parts that both stores share, and from those of the tables as a whole."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, ParamSpec, TypeVar

from ...blobs import BlobStore
from ...clock import SECOND, Clock
from ...errors import BlobMissing, StoreError
from ...model.diagnosis import DatabaseServer, Diagnosis, HealthMetrics
from ...model.stats import Storage
from ..blobs import CheckedBlobs
from ..composition import Parts
from ..move import Side
from ..protocol import Pages
from ..statements import as_json
from ..transactions import Owner
from .connection import target
from .database import PostgresDatabase, PostgresOptions
from .diagnose import ServerDiagnostics, ServerRepairs
from .dialect import Driver
from .migrate import PostgresMigrations
from .moving import PostgresMoving
from .places import PlaceKeeper

P = ParamSpec("P")
T = TypeVar("T")

BUSY_SECONDS = 2.0  # of the doctor
BLOBS_PER_PAGE = 500


class PostgresStore:
    """Implements Store."""

    def __init__(self, options: PostgresOptions, clock: Clock | None, random: Random, token: str) -> None:
        self.database = db = PostgresDatabase(options, clock, token)
        self.clock = db.clock
        blobs = options.blobs or TableBlobs(db)
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


class Tables:
    """Implements StoreFile, as far as it makes sense on a server."""

    shrinks_in_steps = False

    def __init__(
        self,
        db: PostgresDatabase,
        size: Callable[[], Storage],
        diagnostics: ServerDiagnostics,
        repairs: ServerRepairs,
    ) -> None:
        self._db, self._size = db, size
        self.diagnose, self.health_metrics = diagnostics.diagnose, diagnostics.health_metrics
        self.restore_schema, self.delete_orphaned_rows = repairs.restore_schema, repairs.delete_orphaned_rows
        self.repair_finish_times, self.recount = repairs.repair_finish_times, repairs.recount
        self.insert_missed_endings = repairs.insert_missed_endings

    def log_event(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        values = {"now": self._db.clock.now(), "event": event, "actor": actor, "detail": as_json(detail)}
        self._db.change(self._db.sql.log_event, values)

    def count_orphaned(self) -> int:
        return 0  # a trigger deletes what belongs to a job together with it

    # --- space: the server reuses it by itself ---

    def checkpoint(self) -> tuple[int, int]:
        return 0, 0

    def used_bytes(self) -> int:
        """Estimate it from a sample: DELETE gives nothing back, so the sizes of the tables do not tell."""
        return sum(
            int(self._db.rows(self._db.sql.used_bytes.replace("{table}", table))[0][0])
            for (table,) in self._db.rows(self._db.sql.own_tables, self._db.names.given)
        )

    def pages(self) -> Pages:
        size = self._size()
        return Pages(size.database_bytes // size.page_size, 0, size.page_size, 0, size.database_bytes)

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        del pages, seconds
        return 0, 0.0

    def vacuum(self, tick: Callable[[], None], full: bool = True) -> None:
        """Run VACUUM on each table. tick: called before each; an exception from it ends the run."""
        options = "FULL, ANALYZE" if full else "ANALYZE"
        for (table,) in self._db.rows(self._db.sql.own_tables, self._db.names.given):
            tick()
            statement = f"VACUUM ({options}) {table}"
            self._db.with_driver(partial(_execute, statement=statement))


def _execute(driver: Driver, statement: str) -> None:
    driver.execute(statement)


class TableBlobs:
    """A blob store in the database itself. Implements ListableBlobStore."""

    partitions = 1

    def __init__(self, db: PostgresDatabase) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock

    def put(self, name: str, data: bytes) -> None:
        self._db.change_beside(self._sql.put_blob, (name, data))

    def get(self, name: str) -> bytes:
        rows = self._db.rows(self._sql.get_blob, (name,))
        if not rows:
            raise BlobMissing(f"there is no blob {name}")
        return bytes(rows[0][0])

    def delete(self, name: str) -> None:
        self._db.change_beside(self._sql.delete_blob, (name,))

    def has(self, name: str) -> bool:
        return self._db.has_beside(self._sql.has_blob, (name,))

    def older_than(self, seconds: float, partition: int) -> Iterator[str]:
        del partition
        before, after = self._clock.now() - round(seconds * SECOND), ""
        while rows := self._db.rows(self._sql.old_blobs, {"before": before, "after": after, "limit": BLOBS_PER_PAGE}):
            yield from (row[0] for row in rows)
            after = rows[-1][0]


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


class UnopenedServer:
    """A database that is read without opening it as an app does: its tables may be missing or outdated."""

    def __init__(self, url: str, prefix: str, schema: str, clock: Clock | None) -> None:
        self._url, self._clock = target(url), clock
        self._options = PostgresOptions(
            url=url,
            schema=schema,
            prefix=prefix,
            durable_level="FULL",
            migrate=False,
            busy_timeout=BUSY_SECONDS,
            worker_busy_timeout=BUSY_SECONDS,
            blobs=None,
            blob_bytes=None,
            checks_schema=False,
        )

    def diagnose(self, deep: bool = False) -> Diagnosis:
        try:
            db = self._open()
        except StoreError as error:
            server = DatabaseServer(self._url.shown, self._options.schema)
            return Diagnosis(self._options.prefix, 0, deep=deep, server=server, open_error=error)
        try:
            blobs = TableBlobs(db)
            return ServerDiagnostics(db, blobs).diagnose(deep)
        finally:
            db.close()

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        db = self._open()
        try:
            db.with_driver(lambda driver: PostgresMigrations(driver, db.names, db.lock_class).require_current())
            return ServerDiagnostics(db, None).health_metrics(since_minute, queues)
        finally:
            db.close()

    def _open(self) -> PostgresDatabase:
        return PostgresDatabase(self._options, self._clock, f"{Random().randrange(2**32):08x}")
