"""Read what the doctor and the health check need, and make the doctor's repairs."""

import re
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
from ...clock import Clock
from ...errors import HoldfastError, StoreBusy, StoreError
from ...model.diagnosis import (
    Diagnosis,
    HealthMetrics,
    Settings,
    SkippedPart,
    SkipReason,
)
from ..blobs import CheckedBlobs
from ..diagnose import LIMIT, WINDOW, RowRepairs, RowsReader, SkippedError
from ..statements import Statements
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
MOST_PROBLEMS = 1000  # that SQLite's integrity check reports
_OF_A_ROW = re.compile(r"CHECK constraint failed in |(NULL|TEXT|NUMERIC) value in ")  # see `broken_rows`
SECONDS_PER_QUERY = 0.25  # unless the diagnosis is deep
INSTRUCTIONS_PER_TICK = 10_000  # of SQLite's virtual machine, between two looks at the clock
LARGEST_CHECKED_BYTES = 64 * 1024 * 1024
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
        self._rows = RowsReader(connection, sql, clock, FileLocks(path), SAMPLES, self._one_transaction)
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
        self._rows.read(diagnosis, part)
        with part("large_payloads"):
            diagnosis.large_payloads = self._rows.blob_references(self._blobs, diagnosis.deep, self._deadline)
        if diagnosis.deep:
            with part("foreign_keys"):
                rows = self._connection.execute("PRAGMA foreign_key_check").fetchmany(LIMIT)
                diagnosis.foreign_keys = dict(sorted(Counter(row[0] for row in rows).items()))
        with part("integrity"):
            self._check_integrity(diagnosis)

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None) -> HealthMetrics:
        return self._rows.health_metrics(since_minute, queues)

    # --- parts ---

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

    def _check_integrity(self, diagnosis: Diagnosis) -> None:
        size = diagnosis.file.database_bytes + diagnosis.file.log_bytes
        if not diagnosis.deep and size > LARGEST_CHECKED_BYTES:
            raise SkippedError("large", str(size))
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
        except SkippedError as skip:
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

    def _pragma(self, name: str) -> Any:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]


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

    def __init__(self, url: str, prefix: str, clock: Clock, min_free_bytes: int) -> None:
        self.path, self._prefix, self._clock = database_path(url), prefix, clock
        self._sql, self._min_free_bytes = Statements(SQL, prefix), min_free_bytes

    def diagnose(self, deep: bool = False) -> Diagnosis:
        from ..blobs import FileBlobs

        diagnosis = _new_diagnosis(
            self.path, self._prefix, self._min_free_bytes, self._clock, deep, LockObserver(self.path)
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


class Repairs(RowRepairs):
    """Also repairs the schema."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._prefix = db.options.prefix

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers and return their names. Changed ones are left as they are."""

        def work(connection: sqlite3.Connection) -> list[str]:
            wanted = expected(self._sql, self._prefix)
            differences = compare(connection, self._sql, self._prefix).differences
            names = [part.name for part in differences if part.how == "missing" and part.kind in ("index", "trigger")]
            for name in names:
                connection.execute(wanted[name].sql)
            return names

        return self._db.run(work)
