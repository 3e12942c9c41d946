"""Read what the doctor and the health check need, and make the doctor's repairs."""

import re
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ...blobs import ListableBlobStore
from ...clock import SECOND, Clock
from ...errors import HoldfastError, StoreBusy, StoreError
from ...model.diagnosis import (
    BlobReferences,
    BlockedJob,
    ClockHistory,
    Diagnosis,
    HealthMetrics,
    PausedQueue,
    ReadyJobs,
    Sample,
    Settings,
    SkippedPart,
    SkipReason,
)
from ...model.stats import WaitingJob
from ..blobs import CheckedBlobs
from ..processes import Slot
from ..statements import Statements, as_json, record
from ..statistics import LONGEST_READY, NO_LIMIT, Statistics, StatisticsReader
from ..workers import present_workers
from .constraints import broken_rows
from .database import Database
from .engine.connection import READ_TEXT, READER_CACHE_KIB, require_usable_sqlite
from .engine.database_file import blob_folder, database_path, require_file
from .engine.errors import SQLITE_ERRORS, code_of, is_busy, translate
from .engine.file_users import LockObserver, has_log, read_file_environment, users_of
from .engine.worker_locks import FileLocks
from .migrate import Migrations, compare, expected

T = TypeVar("T")
SQL = Path(__file__).parent / "sql"
SAMPLES = re.findall(r"^-- name: (\w+)", (SQL / "doctor_samples.sql").read_text(encoding="utf-8"), re.MULTILINE)
LIMIT = 1000  # rows that a query returns
IDS_IN_SAMPLE = 10
WINDOW = 20_000  # rows read at either end of an index
NEWEST = 1000  # jobs or events
MOST_BLOBS = 2000
MOST_DUE = 1000  # jobs that are due and still scheduled, those of paused queues included
MOST_PROBLEMS = 1000  # that SQLite's integrity check reports
_OF_A_ROW = re.compile(r"CHECK constraint failed in |(NULL|TEXT|NUMERIC) value in ")  # see `broken_rows`
SECONDS_PER_QUERY = 0.25  # unless the diagnosis is deep
INSTRUCTIONS_PER_TICK = 10_000  # of SQLite's virtual machine, between two looks at the clock
LARGEST_CHECKED_BYTES = 64 * 1024 * 1024
SWEEP_TOLERANCE = 10 * SECOND  # how late a worker may be to recover a job
DAY = 86_400 * SECOND
CLOCK_TOLERANCE = 60 * SECOND  # between the clocks of two machines
FAR_FUTURE = 10 * 365 * 86_400 * SECOND
EARLIEST = 1_000_000_000 * SECOND  # 2001
BUSY_SECONDS = 2.0
RETRY_SECONDS = 0.01


class DiagnosisReader:
    """Reads a diagnosis or the health metrics on a connection that no other thread uses meanwhile."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Statements,
        path: Path,
        clock: Clock,
        blobs: ListableBlobStore | None = None,
    ) -> None:
        """blobs: what stores large payloads, if it can list them."""
        self._connection, self._sql, self._clock, self._blobs = connection, sql, clock, blobs
        self._locks = FileLocks(path)
        self._statistics = StatisticsReader(sql)
        self._deadline = float("inf")

    def read(self, diagnosis: Diagnosis, *, is_open: bool) -> None:
        """Fill in every part that can be read. is_open: other connections exist, so the journal mode is visible."""
        self._connection.set_progress_handler(
            lambda: int(time.monotonic() > self._deadline), INSTRUCTIONS_PER_TICK
        )  # interrupts a query that takes too long
        try:
            self._read_parts(diagnosis, is_open)
        finally:
            self._connection.set_progress_handler(None, 0)

    def _read_parts(self, diagnosis: Diagnosis, is_open: bool) -> None:
        from .migrate import compare

        part = partial(self._part, diagnosis)
        with part("settings"):
            diagnosis.settings = self._settings(is_open)
        with part("schema"):
            diagnosis.schema = compare(self._connection, self._sql, diagnosis.prefix)
        with part("broken_rows"):
            window = -1 if diagnosis.deep else WINDOW
            diagnosis.broken_rows = broken_rows(self._connection, self._sql, diagnosis.prefix, window)
        with part("workers"):
            diagnosis.workers = present_workers(self._connection, self._sql, self._locks)
        values = self._parameters(diagnosis)
        for name in SAMPLES:
            with part(name):
                diagnosis.samples[name] = self._sample(name, values)
        with part("blocked_jobs"):
            rows = self._rows("blocked_by_finished", values)
            diagnosis.blocked_jobs = [
                BlockedJob(id, policy, succeeded, failed, deleted, tuple(msgspec.json.decode(ids or "[]")))
                for id, policy, succeeded, failed, deleted, ids in rows
            ]
        with part("open_batches"):
            rows = self._rows("open_blocks", {"limit": LIMIT})
            diagnosis.open_batches = {
                id: self._locks.state(record(Slot, (number, place)), 0, "")
                for number, place, found in rows
                for id in msgspec.json.decode(found)
            }
        with part("endings"):
            diagnosis.endings = self._rows("count_endings", values)[0][0]
        with part("ready_jobs"):
            rows = self._rows("ready_by_queue_and_task", values)
            diagnosis.ready_jobs = [
                ReadyJobs(queue, task, count, count >= LIMIT, version) for queue, task, count, version in rows
            ]
        with part("paused_queues"):
            rows = self._rows("paused_queues", values)
            diagnosis.paused_queues = [record(PausedQueue, row) for row in rows]
        with part("clock"):
            steps = self._rows("clock_steps", values)[0]
            diagnosis.clock = ClockHistory(self._meta("boot_id"), self._clock.boot_id(), *steps)
        with part("counts"), self._one_transaction():
            diagnosis.counts = self._statistics.recount(self._connection)[:LIMIT]
        with part("large_payloads"):
            diagnosis.large_payloads = self._blob_references(diagnosis.deep)
        if diagnosis.deep:
            with part("foreign_keys"):
                rows = self._connection.execute("PRAGMA foreign_key_check").fetchmany(LIMIT)
                diagnosis.foreign_keys = dict(sorted(Counter(row[0] for row in rows).items()))
        with part("integrity"):
            self._check_integrity(diagnosis)

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None) -> HealthMetrics:
        now = self._clock.now()
        paused = {name for name, paused_at, _, _ in self._rows("queues_ever_paused", {}) if paused_at is not None}
        with self._one_transaction():
            counts = self._statistics.counts(self._connection)
            minutes = self._statistics.minutes(self._connection, since_minute)
        places = as_json([(one.queue, one.task or "") for one in counts if one.status == "ready"])
        ready = self._rows("longest_ready", {"places": places, "limit": NO_LIMIT} | LONGEST_READY)
        due = self._rows("longest_due", {"now": now, "limit": MOST_DUE})
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

    # --- parts ---

    def _parameters(self, diagnosis: Diagnosis) -> dict[str, Any]:
        """Return the parameters of all queries of the doctor."""
        now = self._clock.now()
        dead = [worker.record.id for worker in diagnosis.workers if worker.is_unnoticed]
        live = [worker.record.id for worker in diagnosis.workers if worker.is_present]
        return {
            "limit": LIMIT,
            "window": -1 if diagnosis.deep else WINDOW,
            "newest": -1 if diagnosis.deep else NEWEST,
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

    def _settings(self, is_open: bool) -> Settings:
        self._connection.execute("PRAGMA foreign_keys = ON")
        return Settings(
            journal_mode=str(self._pragma("journal_mode")) if is_open else None,
            page_size=self._pragma("page_size"),
            pages=self._pragma("page_count"),
            free_pages=self._pragma("freelist_count"),
            auto_vacuum=self._pragma("auto_vacuum"),
            encoding=self._pragma("encoding"),
            foreign_keys=bool(self._pragma("foreign_keys")),
        )

    def _blob_references(self, deep: bool) -> BlobReferences:
        from ..blobs import check_blobs

        store = self._meta("blob_store")
        if store is None:
            return BlobReferences()
        if self._blobs is None or store != type(self._blobs).__qualname__:
            raise _Skip("elsewhere", store)
        return check_blobs(self._connection, self._sql, self._blobs, -1 if deep else MOST_BLOBS, self._deadline)

    def _check_integrity(self, diagnosis: Diagnosis) -> None:
        size = diagnosis.file.database_bytes + diagnosis.file.log_bytes
        if not diagnosis.deep and size > LARGEST_CHECKED_BYTES:
            raise _Skip("large", str(size))
        began = time.monotonic()
        check = "integrity_check" if diagnosis.deep else "quick_check"
        rows = self._connection.execute(f"PRAGMA {check}({MOST_PROBLEMS})").fetchmany(MOST_PROBLEMS)
        diagnosis.integrity = [str(row[0]) for row in rows if row[0] != "ok" and not _OF_A_ROW.match(str(row[0]))]
        diagnosis.integrity_seconds = time.monotonic() - began

    # --- reading ---

    @contextmanager
    def _part(self, diagnosis: Diagnosis, name: str) -> Iterator[None]:
        """Read one part within the time limit; if that fails, note why and go on."""
        self._deadline = float("inf") if diagnosis.deep else time.monotonic() + SECONDS_PER_QUERY
        try:
            yield
        except _Skip as skip:
            diagnosis.skipped.append(SkippedPart(name, skip.reason, skip.detail))
        except (*SQLITE_ERRORS, HoldfastError, msgspec.DecodeError) as error:
            diagnosis.skipped.append(SkippedPart(name, _skip_reason(error), str(error)))
        else:
            diagnosis.examined.add(name)

    @contextmanager
    def _one_transaction(self) -> Iterator[None]:
        begun = not self._connection.in_transaction
        if begun:
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if begun and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _sample(self, query: str, values: dict[str, Any]) -> Sample:
        ids = [row[0] for row in self._rows(query, values)]
        return Sample(len(ids), tuple(sorted(ids[:IDS_IN_SAMPLE])), len(ids) >= LIMIT)

    def _rows(self, query: str, values: dict[str, Any]) -> list[Any]:
        return self._connection.execute(getattr(self._sql, query), values).fetchall()

    def _meta(self, name: str) -> str | None:
        row = self._connection.execute(self._sql.get_meta, (name,)).fetchone()
        return None if row is None else str(row[0])

    def _pragma(self, name: str) -> Any:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]


class _Skip(Exception):
    def __init__(self, reason: SkipReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def _skip_reason(error: Exception) -> SkipReason:
    if isinstance(error, UnicodeDecodeError):
        return "damaged"
    if not isinstance(error, sqlite3.Error):
        return "busy" if isinstance(error, StoreBusy) else "other"
    if is_busy(error):
        return "busy"
    reasons: dict[int | None, SkipReason] = {
        sqlite3.SQLITE_INTERRUPT: "slow",
        sqlite3.SQLITE_CORRUPT: "damaged",
        sqlite3.SQLITE_NOTADB: "damaged",
        sqlite3.SQLITE_ERROR: "schema",
    }
    return reasons.get(code_of(error), "other")


def _new_diagnosis(
    path: Path, prefix: str, min_free_bytes: int, clock: Clock, deep: bool, locks: LockObserver
) -> Diagnosis:
    """Return a diagnosis that has only what is known without opening the database."""
    file = read_file_environment(path, blob_folder(path, prefix), min_free_bytes, locks)
    return Diagnosis(prefix, clock.now(), sqlite3.sqlite_version, sqlite3.sqlite_version_info, file, deep)


class OfflineDatabase:
    """A database file that is read without opening it as an app does: it may be damaged, locked or outdated."""

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self.path, self._prefix, self._clock = database_path(url), prefix, clock
        self._sql = Statements(SQL, prefix)

    def diagnose(self, min_free_bytes: int, deep: bool = False) -> Diagnosis:
        from ..blobs import FileBlobs

        diagnosis = _new_diagnosis(
            self.path, self._prefix, min_free_bytes, self._clock, deep, LockObserver(self.path)
        )
        if diagnosis.file.kind == "file" and not diagnosis.file.unsafe:
            blobs = FileBlobs(blob_folder(self.path, self._prefix))
            try:
                self._read(lambda reader, is_open: reader.read(diagnosis, is_open=is_open), blobs)
            except StoreError as error:
                diagnosis.open_error = error
        return diagnosis

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        require_file(self.path)
        return self._read(lambda reader, _: reader.health_metrics(since_minute, queues))

    def _read(self, use: Callable[[DiagnosisReader, bool], T], blobs: ListableBlobStore | None = None) -> T:
        require_usable_sqlite()
        # A read-only connection would create -wal and -shm files and leave them behind. If there are none, no
        # process has the database open, and it can be read as a file that does not change.
        is_open = has_log(self.path) or bool(users_of(self.path))
        try:
            with closing(_connect(self.path, immutable=not is_open)) as connection:
                try:
                    return use(DiagnosisReader(connection, self._sql, self.path, self._clock, blobs), is_open)
                except sqlite3.OperationalError as error:
                    if code_of(error) == sqlite3.SQLITE_ERROR:  # most likely a missing table
                        Migrations(connection, self._prefix).require_current()
                    raise
        except SQLITE_ERRORS as error:
            raise translate(error, self.path) from error


def _connect(path: Path, immutable: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    connection.text_factory = READ_TEXT
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        for pragma in ("trusted_schema = OFF", "mmap_size = 0", f"cache_size = -{READER_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        while True:
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                return connection
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)
    except BaseException:
        connection.close()
        raise


class Diagnostics:
    """Reads diagnosis and health metrics of a database that an app has open."""

    def __init__(self, db: Database, blobs: CheckedBlobs) -> None:
        self._db, self._blobs = db, blobs

    def diagnose(self, deep: bool = False) -> Diagnosis:
        options = self._db.options
        locks = LockObserver(options.path)  # before this process begins to read

        def work(connection: sqlite3.Connection) -> Diagnosis:
            diagnosis = _new_diagnosis(
                options.path, options.prefix, options.min_free_bytes, self._db.clock, deep, locks
            )
            self._reader(connection).read(diagnosis, is_open=True)
            return diagnosis

        return self._db.read(work)

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        return self._db.read(lambda connection: self._reader(connection).health_metrics(since_minute, queues))

    def _reader(self, connection: sqlite3.Connection) -> DiagnosisReader:
        db = self._db
        return DiagnosisReader(connection, db.sql, db.options.path, db.clock, self._blobs.listable)


TABLES_OF_JOBS = ("events", "tags", "blockers")
RECOUNT = "recount"  # in the table `meta`: the token of the process that recounts


class Repairs:
    def __init__(self, db: Database) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock
        self._statistics = Statistics(db, db.sql, db.clock)

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers and return their names. Changed ones are left as they are."""

        def work(connection: sqlite3.Connection) -> list[str]:
            wanted = expected(self._sql, self._db.options.prefix)
            differences = compare(connection, self._sql, self._db.options.prefix).differences
            names = [part.name for part in differences if part.how == "missing" and part.kind in ("index", "trigger")]
            for name in names:
                connection.execute(wanted[name].sql)
            return names

        return self._db.run(work)

    def delete_orphaned_rows(self) -> int:
        """Delete some events, tags or blockers of deleted jobs. Return how many rows; 0: none is left."""
        self._statistics.fold_all()  # orphaned events still count
        for find, delete in (
            (self._sql.orphaned_events, self._sql.delete_orphaned_events),
            (self._sql.orphaned_tags, self._sql.delete_orphaned_tags),
            (self._sql.orphaned_blockers, self._sql.delete_orphaned_blockers),
        ):
            orphaned = self._db.rows(find, {"window": -1, "limit": LIMIT})
            if orphaned and (deleted := self._change(delete, {"jobs": as_json([row[0] for row in orphaned])})):
                return deleted
        return 0

    def repair_finish_times(self) -> int:
        """Set `finished_at` to now where it is missing or in the future, of some jobs. Return how many; 0: none is
        left."""
        now = self._clock.now()
        values = {"future": now + CLOCK_TOLERANCE, "newest": -1, "limit": LIMIT}
        jobs = self._db.rows(self._sql.finished_without_time, values) or self._db.rows(
            self._sql.finished_in_future, values
        )
        batch = as_json([row[0] for row in jobs])
        return self._change(self._sql.set_finished_now, values | {"now": now, "batch": batch}) if jobs else 0

    def recount(self) -> int:
        """Correct wrong counts and return how many. Adds differences only, because jobs may finish meanwhile."""
        token = secrets.token_hex(8)
        self._db.run(lambda connection: connection.execute(self._sql.set_meta, (RECOUNT, token)) and None)
        rows = self._db.read_snapshot(self._statistics.recount)
        changes = [(queue, task, status, actual - counted) for queue, task, status, counted, actual in rows]

        def work(connection: sqlite3.Connection) -> int:
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
        return self._db.run(lambda connection: connection.execute(statement, values).rowcount)
