"""The SQLite store: assemble its parts, each of which is given the database, and operate on the database file.

The SQL is in `sql/`.
"""

import sqlite3
from collections.abc import Callable
from random import Random
from shutil import disk_usage
from time import perf_counter
from typing import Any

from ...blobs import BlobStore
from ...clock import Clock
from ...model.stats import Storage
from ..blobs import CheckedBlobs, FileBlobs
from ..claim import ReadyPairScanner
from ..composition import Parts
from ..diagnose import TABLES_OF_JOBS
from ..move import Side
from ..protocol import Pages, StatementObserver
from ..statements import as_json
from ..transactions import Owner
from .constraints import DamagedJobs
from .database import Database
from .diagnose import Diagnostics, Repairs
from .engine.database_file import blob_folder, database_path, file_size, require_space_for_vacuum
from .engine.engine import Options
from .migrate import DEFAULT_PREFIX
from .moving import SqliteMoving


class SqliteStore:
    """Implements Store."""

    def __init__(self, options: Options, clock: Clock, random: Random, token: str, conn: Any = None) -> None:
        self.clock = clock
        self.database = db = Database(options, clock, random, token, conn)
        checked_blobs = CheckedBlobs(
            options.blobs or FileBlobs(blob_folder(options.path, options.prefix)), options.blob_bytes
        )
        file = File(db, Diagnostics(db, checked_blobs), Repairs(db))
        self.parts = parts = Parts(
            self, db, checked_blobs, random, DamagedJobs(db).guarded, file.size, ReadyPairScanner(db.sql)
        )
        self.jobs, self.workers, self.workflows = parts.jobs, parts.workers, parts.workflows
        self.operations = parts.operations
        self.side = Side(db, SqliteMoving(db), checked_blobs)
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


VACUUM_STEPS = 10_000  # of SQLite's virtual machine, between two calls of `tick`
ORPHAN_SCAN = {"window": 250, "limit": 100}  # rows at either end of each table


class File:
    """Implements StoreFile."""

    shrinks_in_steps = True

    def __init__(self, db: Database, diagnostics: Diagnostics, repairs: Repairs) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock
        self.diagnose, self.health_metrics = diagnostics.diagnose, diagnostics.health_metrics
        self.restore_schema, self.delete_orphaned_rows = repairs.restore_schema, repairs.delete_orphaned_rows
        self.repair_finish_times, self.recount = repairs.repair_finish_times, repairs.recount
        self.insert_missed_endings = repairs.insert_missed_endings

    def checkpoint(self) -> tuple[int, int]:
        return self._db.with_engine(lambda engine: engine.writer.checkpoint())

    def size(self) -> Storage:
        """Return how much space the database takes, for the statistics."""
        path = self._db.options.path

        def work(connection: sqlite3.Connection) -> Storage:
            pages, free, size = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
            log = file_size(path.with_name(f"{path.name}-wal"))
            return Storage(pages * size, log, free * size, size, disk_usage(path.parent).free)

        return self._db.read(work)

    def used_bytes(self) -> int:
        return self.pages().used_bytes

    def pages(self) -> Pages:
        (counts,) = self._db.rows(self._sql.page_counts)
        return Pages(*(*counts, file_size(self._db.options.path)))

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        def work(connection: sqlite3.Connection) -> tuple[int, float]:
            begun = perf_counter()
            for done in range(pages):
                # One statement per page: a step frees one page, and sqlite3 steps a statement without columns once.
                connection.execute("PRAGMA incremental_vacuum(1)")
                if perf_counter() - begun > seconds:
                    return done + 1, perf_counter() - begun
            return pages, perf_counter() - begun

        return self._db.run(work)

    def vacuum(self, tick: Callable[[], None], full: bool = True) -> None:
        assert full, "this rewrites the whole file"
        require_space_for_vacuum(self._db.options.path, self.pages().used_bytes)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA temp_store = FILE")  # the copy may be larger than memory
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            raised: list[BaseException] = []

            def call_tick() -> int:
                try:
                    tick()
                except BaseException as error:  # noqa: BLE001  raised again below
                    raised.append(error)
                    return 1
                return 0

            connection.set_progress_handler(call_tick, VACUUM_STEPS)
            try:
                connection.execute("VACUUM")
            except sqlite3.OperationalError:
                if raised:
                    raise raised[0] from None
                raise
            finally:
                connection.set_progress_handler(None, 0)

        self._db.with_engine(lambda engine: engine.run_without_transaction(work))

    def count_orphaned(self) -> int:
        def work(connection: sqlite3.Connection) -> int:
            found: set[int] = set()
            for table in TABLES_OF_JOBS:
                rows = connection.execute(getattr(self._sql, f"orphaned_{table}"), ORPHAN_SCAN).fetchall()
                found.update(row[0] for row in rows)
            return len(found)

        return self._db.read(work)

    def log_event(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        values = {"now": self._clock.now(), "event": event, "actor": actor, "detail": as_json(detail)}
        self._db.run(lambda connection: connection.execute(self._sql.log_event, values).rowcount, durable=True)
