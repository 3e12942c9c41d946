"""PostgreSQL for the conformance suite: one server for the test run, one database for each test process."""

import functools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import Holdfast
from holdfast.model.stats import EventRecord
from holdfast.store.postgres.database import PostgresDatabase
from holdfast.store.postgres.pool import MAX_CONNECTIONS
from holdfast.store.statistics import StoredStatistics

from .backend import NEVER_SECONDS, Backend, Values, WriteLock
from .postgres_server import start_server, stop_server

TABLES = """jobs tags events tracebacks counts minutes rollups totals failures failure_minutes error_totals zones
    blockers batches endings unused_blobs blobs queues workers fires schedules upkeep operations meta"""
EMPTY = "; ".join(
    [
        "SET session_replication_role = replica",  # without triggers
        *(f"DELETE FROM holdfast_{table}" for table in TABLES.split()),  # noqa: S608
        "UPDATE holdfast_fold SET cursor = 0, folded_at = 0, rolled = 0",
        *(f"SELECT setval('holdfast_{table}_id_seq', 1, false)" for table in ("jobs", "batches", "operations")),
    ]
)
OWN_THINGS = """SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger
    WHERE NOT tgisinternal AND tgname LIKE 'user_%'
    UNION ALL SELECT format('DROP TABLE %s CASCADE', oid::regclass) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname NOT LIKE 'holdfast_%'
    UNION ALL SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND proname NOT LIKE 'holdfast_%'"""
"""What a test has created itself."""
ADVISORY_LOCKS = """pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""Of this database: other test processes have others on the same server."""
HIDDEN_BY_OTHERS = """SELECT 1 FROM {tables}events
    WHERE id > ? AND coalesce(job_id, 0) = coalesce(CAST(? AS bigint), job_id, 0) AND NOT EXISTS (
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL) LIMIT 1"""
ORPHANS = "SELECT 1 FROM holdfast_{} WHERE job_id NOT IN (SELECT id FROM holdfast_jobs)"


@functools.cache
def server_url() -> str:
    """The server of this test run. `HOLDFAST_TEST_POSTGRES` names it, also for the processes of pytest-xdist."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        return given
    server = start_server()
    import atexit

    atexit.register(stop_server, server)
    return server.url


@functools.cache
def database_url() -> str:
    """A database of this process, without tables."""
    name = f"holdfast_test_{os.getpid()}"
    with psycopg.connect(server_url(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    parts = psycopg.conninfo.conninfo_to_dict(server_url())
    host = f"host={parts['host']}&" if parts.get("host") else ""
    return f"postgresql:///{name}?{host}user={parts.get('user', '')}&password={parts.get('password', '')}"


@functools.cache
def admin() -> psycopg.Connection[Any]:
    """A connection of this process, to empty the tables."""
    return psycopg.connect(database_url(), autocommit=True)


def see_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reader of the log look again if only transactions of other databases keep events from it.

    Such a transaction counts as one of this database if it ends while the log is read. That passes with the next
    look, and is rare, unless other test processes keep their databases on the same server busy.
    """
    read = StoredStatistics.events

    def events(
        self: StoredStatistics, limit: int, *, after: int | None = None, job_id: int | None = None, **given: Any
    ) -> list[EventRecord]:
        while True:
            found = read(self, limit, after=after, job_id=job_id, **given)
            if after is None or len(found) == limit or not isinstance(self._db, PostgresDatabase):
                return found
            last = found[-1].id if found else after
            hidden = HIDDEN_BY_OTHERS.replace("{tables}", self._db.tables)
            if not self._db.rows(hidden, (last, job_id)):
                return found

    monkeypatch.setattr(StoredStatistics, "events", events)


class PostgresBackend(Backend):
    name = "postgres"
    DatabaseError = psycopg.DatabaseError
    IntegrityError = psycopg.IntegrityError
    ends_leases_at_boot = False

    def __init__(self, folder: Path, template: str) -> None:
        super().__init__(folder, template)
        self.url = template

    @classmethod
    def make_template(cls, folder: Path) -> str:
        Holdfast(database_url()).close()
        return database_url()

    @classmethod
    def relax(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.store.postgres.diagnose.SECONDS_PER_QUERY", NEVER_SECONDS)
        monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.MUST_BE_ON", ())  # this server does not flush
        monkeypatch.setattr("holdfast.store.postgres.places.LOOK_SECONDS", 0)  # claims in the exact order
        see_the_whole_log(monkeypatch)

    def create_tables(self) -> None:
        """They are there."""

    def close(self) -> None:
        super().close()
        admin().execute(EMPTY)
        for (statement,) in admin().execute(OWN_THINGS).fetchall():
            admin().execute(statement)

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def execute(self, on: Any, statement: str, values: Values = ()) -> list[Any]:
        plain = tuple(int(value) if isinstance(value, bool) else value for value in values)  # as sqlite3 binds them
        cursor = on.execute(statement.replace("%", "%%").replace("?", "%s"), plain)
        return cursor.fetchall() if cursor.description is not None else []

    def create_trigger(self, name: str, table: str, statement: str) -> None:
        self.sql(
            f"CREATE OR REPLACE FUNCTION user_{name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {statement}; RETURN NULL; END $$"
        )
        self.sql(f"CREATE TRIGGER user_{name} AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION user_{name}()")

    def stop_polling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.store.read.MAX_WAIT_SECONDS", NEVER_SECONDS)

    def hold_write_lock(self) -> WriteLock:
        connection = psycopg.connect(self.url)
        tables = ", ".join(f"holdfast_{table}" for table in TABLES.split())
        connection.execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE")
        return WriteLock(connection.rollback, connection.close)

    def hold_transactions(self, app: Holdfast) -> WriteLock:
        """Take all connections of the pool."""
        pool, lent = app.store.database.pool, ExitStack()  # type: ignore[attr-defined]
        for _ in range(MAX_CONNECTIONS):
            lent.enter_context(pool.lend(0))
        return WriteLock(lent.close, lent.close)

    def make_read_only(self, app: Holdfast) -> None:
        database = app.store.database  # type: ignore[attr-defined]
        for driver in database.pool._free:
            driver.execute("SET default_transaction_read_only = on")
        database.pool._size = len(database.pool._free)

    def check_consistency(self) -> None:
        for table in ("tags", "blockers"):
            assert self.sql(ORPHANS.format(table)) == []

    def bury_workers(self) -> None:
        self.sql("UPDATE holdfast_workers SET slot = -1")

    def bury_creators(self) -> None:
        self.sql("UPDATE holdfast_batches SET slot = -1 WHERE sealed_at IS NULL")

    def blob_names(self) -> list[str]:
        return [row[0] for row in self.sql("SELECT name FROM holdfast_blobs ORDER BY name")]
