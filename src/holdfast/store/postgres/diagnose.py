"""Read what the doctor and the health check need from a server, and make the doctor's repairs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import psycopg

from ...blobs import ListableBlobStore
from ...errors import HoldfastError, StoreBusy
from ...model.diagnosis import (
    Connections,
    DatabaseServer,
    Diagnosis,
    HealthMetrics,
    SkippedPart,
    SkipReason,
    TableRows,
    XminHolder,
)
from ..diagnose import RowRepairs, RowsReader, SkippedError
from ..statements import record
from ..workers import present_workers
from .connection import rollback
from .database import PostgresDatabase
from .dialect import Driver, Handle
from .locks import GRACE_SECONDS
from .migrate import compare, restore

T = TypeVar("T")
SAMPLES = re.findall(
    r"^-- name: (\w+)",
    (Path(__file__).parent / "sql" / "doctor_samples.sql").read_text(encoding="utf-8"),
    re.MULTILINE,
)
SECONDS_PER_QUERY = 2.0  # unless the diagnosis is deep
READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class ServerReader:
    """Reads a diagnosis or the health metrics on a connection that no other thread uses meanwhile."""

    def __init__(self, db: PostgresDatabase, driver: Driver, blobs: ListableBlobStore | None = None) -> None:
        """blobs: what stores large payloads, if it can list them."""
        self._db, self._driver, self._blobs = db, driver, blobs
        self._handle = Handle(driver)
        self._rows = RowsReader(self._handle, db.sql, db.clock, db.locks, SAMPLES, self._same_transaction)

    def read(self, diagnosis: Diagnosis) -> None:
        """Fill in every part that can be read, each in a transaction of its own."""

        def part(name: str, begin: str = READ_ONLY) -> _OnePart:
            return _OnePart(diagnosis, self._driver, name, begin)

        with part("server"):
            diagnosis.server = self._server()
        with part("horizon"):
            diagnosis.horizon = [record(XminHolder, row) for row in self._rows.rows("xmin_holders", {})]
        with part("connections"):
            diagnosis.connections = Connections(*self._rows.rows("connections", {})[0])
        with part("schema", "BEGIN"):  # it creates temporary tables and rolls back
            diagnosis.schema = compare(self._driver, self._db.sql, self._db.names)
        if "schema" in diagnosis.examined and diagnosis.schema.state == "absent":
            return
        with part("tables"):
            rows = self._rows.rows("table_rows", self._db.names.given)
            diagnosis.tables = [TableRows(name, live, dead, bool(on)) for name, live, dead, on in rows]
        self._wait_for_locks()
        self._rows.read(diagnosis, part)
        with part("large_payloads"):
            deadline = float("inf") if diagnosis.deep else time.monotonic() + SECONDS_PER_QUERY
            diagnosis.large_payloads = self._rows.blob_references(self._blobs, diagnosis.deep, deadline)

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None) -> HealthMetrics:
        self._wait_for_locks()
        self._driver.execute(READ_ONLY)
        try:
            return self._rows.health_metrics(since_minute, queues)
        finally:
            rollback(self._driver)

    def _wait_for_locks(self) -> None:
        """Look for dead workers twice: one whose lock is gone may be about to take it again."""
        if any(one.state == "unknown" for one in present_workers(self._handle, self._db.sql, self._db.locks)):
            time.sleep(GRACE_SECONDS)

    def _server(self) -> DatabaseServer:
        version, writable, synchronous_commit = self._rows.rows("server_settings", {})[0]
        return DatabaseServer(
            shown=self._db.where.shown,
            schema=self._db.names.schema,
            version=version,
            writable=bool(writable),
            synchronous_commit=synchronous_commit,
            off=tuple(row[0] for row in self._rows.rows("settings_that_are_off", {})),
            pooled=self._db.sessions.is_pooled,
            clock_offset=self._clock_offset(),
        )

    def _clock_offset(self) -> int:
        before = time.time_ns()
        ((server,),) = self._rows.rows("server_clock", {})
        return int(server) - (before + time.time_ns()) // 2000

    @contextmanager
    def _same_transaction(self) -> Iterator[None]:
        """Each part has a transaction of its own."""
        yield


class _OnePart:
    """Reads one part in a transaction, within the time limit; if that fails, notes why."""

    def __init__(self, diagnosis: Diagnosis, driver: Driver, name: str, begin: str) -> None:
        self._diagnosis, self._driver, self._name, self._begin = diagnosis, driver, name, begin

    def __enter__(self) -> None:
        milliseconds = 0 if self._diagnosis.deep else round(SECONDS_PER_QUERY * 1000)
        if not self._driver.closed:
            self._driver.execute(f"{self._begin}; SET LOCAL statement_timeout = {milliseconds:d}")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        rollback(self._driver)
        if error is None:
            self._diagnosis.examined.add(self._name)
            return True
        if not isinstance(error, (SkippedError, psycopg.Error, HoldfastError, msgspec.DecodeError)):
            return False
        self._diagnosis.skipped.append(_skipped(self._name, error))
        return True


def _skipped(name: str, error: Exception) -> SkippedPart:
    if isinstance(error, SkippedError):
        return SkippedPart(name, error.reason, error.detail)
    reasons: dict[str | None, SkipReason] = {"57014": "slow", "55P03": "busy", "42P01": "schema", "42703": "schema"}
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if (state or "").startswith("XX"):
        return SkippedPart(name, "damaged", str(error))
    reason: SkipReason = "busy" if isinstance(error, StoreBusy) else reasons.get(state, "other")
    return SkippedPart(name, reason, str(error))


class ServerDiagnostics:
    """Reads diagnosis and health metrics of a database that is open."""

    def __init__(self, db: PostgresDatabase, blobs: ListableBlobStore | None) -> None:
        self._db, self._blobs = db, blobs

    def diagnose(self, deep: bool = False) -> Diagnosis:
        diagnosis = new_diagnosis(self._db, deep)
        self._db.with_driver(lambda driver: ServerReader(self._db, driver, self._blobs).read(diagnosis))
        return diagnosis

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        return self._db.with_driver(
            lambda driver: ServerReader(self._db, driver).health_metrics(since_minute, queues)
        )


def new_diagnosis(db: PostgresDatabase, deep: bool) -> Diagnosis:
    server = DatabaseServer(db.where.shown, db.names.schema)
    return Diagnosis(db.names.prefix, db.clock.now(), deep=deep, server=server)


class ServerRepairs:
    """Repairs of rows and of the schema."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db, rows = db, RowRepairs(db)
        self.delete_orphaned_rows, self.repair_finish_times = rows.delete_orphaned_rows, rows.repair_finish_times
        self.recount, self.insert_missed_endings = rows.recount, rows.insert_missed_endings

    def restore_schema(self) -> list[str]:
        return self._db.run(lambda handle: restore(handle.driver, self._db.sql, self._db.names))
