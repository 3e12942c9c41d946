"""`app.check()` on a server: settings, what holds up VACUUM, drift of the schema, and a server out of reach."""

import struct
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import pq

from holdfast import Holdfast
from holdfast.cli.commands.doctor import check_database, read_health_metrics
from holdfast.errors import CannotOpen, SchemaOutdated
from holdfast.model.diagnosis import Connections, Diagnosis, TableRows
from holdfast.store.postgres.diagnose import SAMPLES
from holdfast.upkeep.doctor.doctor import SECTIONS, diagnose
from support.backend import NEVER_SECONDS
from support.doctor import finding_of, problems
from support.postgres_backend import PostgresBackend, admin, server_url

PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def any_age_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds up VACUUM is told at once, and that the test server does not flush is not."""
    monkeypatch.setattr("holdfast.store.postgres.diagnose.SECONDS_PER_QUERY", NEVER_SECONDS)
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.HELD_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.HELD_TRANSACTIONS", -1)
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.MUST_BE_ON", ())


@pytest.fixture
def app(backend: PostgresBackend) -> Holdfast:
    return backend.open()


@pytest.fixture
def diagnosis(app: Holdfast) -> Diagnosis:
    return app.store.file.diagnose()


def severities(diagnosis: Diagnosis, **changes: Any) -> dict[str, str]:
    changed = msgspec.structs.replace(diagnosis, **changes)
    return {finding.code: finding.severity for finding in diagnose(changed)}


def of_server(diagnosis: Diagnosis, **changes: Any) -> dict[str, str]:
    assert diagnosis.server is not None
    return severities(diagnosis, server=msgspec.structs.replace(diagnosis.server, **changes))


# --- a sound database ---


def test_every_part_is_read(diagnosis: Diagnosis) -> None:
    of_a_file = {"foreign_keys", "broken_rows", "settings", "integrity"}
    parts = {part for checks in SECTIONS.values() for check in checks for part in check.parts} - of_a_file
    assert set(SAMPLES) <= parts <= diagnosis.examined and diagnosis.skipped == []


def test_a_sound_database_passes_every_check(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.HELD_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.HELD_TRANSACTIONS", 2**31)  # other tests hold some
    checkup = app.check()
    passed = {finding.code for finding in checkup.findings if finding.severity == "ok"}
    assert {"CONNECTED", "COMMITS", "VACUUM_FREE", "VACUUMED", "POOLER", "CONNECTIONS", "SCHEMA"} <= passed
    assert checkup.ok, checkup.summary


# --- settings ---


def test_a_server_that_does_not_flush_is_an_error(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.MUST_BE_ON", ("fsync", "full_page_writes"))
    one = finding_of(app, "FLUSH_OFF", "error")
    assert one.detail == {"off": ["fsync", "full_page_writes"]}
    assert one.fix is not None and "ALTER SYSTEM SET fsync = on" in one.fix


def test_a_server_that_acknowledges_before_it_flushes(backend: PostgresBackend) -> None:
    backend.sql(f"ALTER DATABASE {admin().info.dbname} SET synchronous_commit = off")
    try:
        finding_of(backend.open(), "COMMITS_NOT_FLUSHED", "warning")
    finally:
        backend.sql(f"ALTER DATABASE {admin().info.dbname} RESET synchronous_commit")
    finding_of(backend.open(), "COMMITS", "ok")


def test_a_database_that_only_reads_is_an_error(backend: PostgresBackend) -> None:
    app = backend.open()
    assert "NOT_WRITABLE" not in problems(app)
    backend.sql(f"ALTER DATABASE {admin().info.dbname} SET default_transaction_read_only = on")
    try:
        checkup = check_database(backend.url, prefix="holdfast_", repair=True)
        found = {one.code: one.severity for one in checkup.findings}
        assert found["NOT_WRITABLE"] == "error" and found["NOT_REPAIRED"] == "error"
    finally:
        admin().execute("SET default_transaction_read_only = off")
        admin().execute(f"ALTER DATABASE {admin().info.dbname} RESET default_transaction_read_only")


def test_a_clock_that_differs_is_a_warning(diagnosis: Diagnosis) -> None:
    assert "CLOCK_OFFSET" not in severities(diagnosis)
    for offset in (120_000_000, -120_000_000):
        assert of_server(diagnosis, clock_offset=offset)["CLOCK_OFFSET"] == "warning"


def test_a_pooler_is_a_note(diagnosis: Diagnosis) -> None:
    assert severities(diagnosis)["POOLER"] == "ok" and of_server(diagnosis, pooled=True)["POOLER"] == "note"


def test_few_free_connections_are_a_warning(diagnosis: Diagnosis) -> None:
    assert severities(diagnosis)["CONNECTIONS"] == "ok"
    assert severities(diagnosis, connections=Connections(95, 97, 80))["CONNECTIONS_LOW"] == "warning"


# --- what holds up VACUUM ---


def test_an_old_transaction_is_named_with_its_session(backend: PostgresBackend, app: Holdfast) -> None:
    with closing(psycopg.connect(backend.url, application_name="report")) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM holdfast_jobs").fetchall()
        one = finding_of(app, "HELD_BY_TRANSACTION", "warning")
        pid = str(other.info.backend_pid)
        assert pid in one.detail["held_by"] and "report" in one.meaning
        assert one.fix is not None and "pg_terminate_backend(" in one.fix
    eventually_gone(app, "HELD_BY_TRANSACTION")


def test_a_transaction_in_another_database_holds_up_nothing(app: Holdfast) -> None:
    with closing(psycopg.connect(server_url(), application_name="report")) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM pg_class").fetchall()
        horizon = app.store.file.diagnose().horizon
        assert str(other.info.backend_pid) not in [one.name for one in horizon]


def test_a_prepared_transaction_is_named(backend: PostgresBackend, app: Holdfast) -> None:
    with closing(psycopg.connect(backend.url, autocommit=True)) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO holdfast_queues (name) VALUES ('left')")
        other.execute("PREPARE TRANSACTION 'left behind'")
        try:
            one = finding_of(app, "HELD_BY_PREPARED", "warning")
            assert one.fix is not None and "ROLLBACK PREPARED 'left behind'" in one.fix
        finally:
            other.execute("ROLLBACK PREPARED 'left behind'")
    assert "HELD_BY_PREPARED" not in problems(app)


@pytest.mark.parametrize(("slot", "code"), [(None, "HELD_BY_STANDBY"), ("spare", "HELD_BY_SLOT")])
def test_a_standby_with_an_old_query_and_its_slot_are_named(app: Holdfast, slot: str | None, code: str) -> None:
    with closing(psycopg.connect(server_url(), autocommit=True)) as own:
        (xmin,) = own.execute("SELECT txid_current()").fetchone() or (0,)
        if slot is not None:
            own.execute("SELECT pg_create_physical_replication_slot('spare')")
        try:
            with Standby(int(xmin), slot):
                one = until_found(app, code)
                assert one.severity == "warning"
        finally:
            if slot is not None:
                drop_slot(own, slot)
    eventually_gone(app, code)


class Standby:
    """A connection that says it is a standby whose oldest query began with this transaction."""

    def __init__(self, xmin: int, slot: str | None) -> None:
        self._connection = pq.PGconn.connect(f"{server_url()}&replication=true&application_name=spare".encode())
        assert self._connection.status == pq.ConnStatus.OK, self._connection.error_message
        position = self._connection.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2) or b""
        with_slot = b"SLOT spare " if slot else b""
        result = self._connection.exec_(b"START_REPLICATION " + with_slot + b"PHYSICAL " + position)
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        self._connection.put_copy_data(b"h" + struct.pack("!qIIII", 0, xmin, 0, 0, 0))
        self._connection.flush()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._connection.finish()


def drop_slot(own: psycopg.Connection[Any], name: str) -> None:
    while True:  # its connection is about to end
        try:
            own.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            return
        except psycopg.errors.ObjectInUse:
            time.sleep(0.01)


def until_found(app: Holdfast, code: str) -> Any:
    while (found := app.check().of(code)) is None:
        time.sleep(0.01)
    return found


def eventually_gone(app: Holdfast, code: str) -> None:
    while app.check().of(code) is not None:
        time.sleep(0.01)


# --- dead rows ---


def test_dead_rows_are_told_by_their_share(diagnosis: Diagnosis) -> None:
    assert severities(diagnosis)["VACUUMED"] == "ok"
    few = TableRows("holdfast_jobs", 5_000_000, 60_000, True)
    assert severities(diagnosis, tables=[few])["VACUUMED"] == "ok"
    many = TableRows("holdfast_jobs", 10_000, 60_000, True)
    assert severities(diagnosis, tables=[many])["DEAD_ROWS"] == "warning"


def test_dead_rows_are_read_and_vacuum_removes_them(
    backend: PostgresBackend, app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.upkeep.doctor.checks_postgres.DEAD_ROWS", 100)
    backend.sql("ALTER TABLE holdfast_jobs SET (autovacuum_enabled = off)")
    try:
        app.queue("inbox").send_many(range(500))
        backend.sql("DELETE FROM holdfast_jobs")
        one = until_found(app, "DEAD_ROWS")
        assert "holdfast_jobs" in one.detail["tables"] and "holdfast vacuum --db" in one.fix
        app.vacuum()
        eventually_gone(app, "DEAD_ROWS")
    finally:
        backend.sql("ALTER TABLE holdfast_jobs RESET (autovacuum_enabled)")


def test_a_table_without_autovacuum_is_an_error(backend: PostgresBackend, app: Holdfast) -> None:
    backend.sql("ALTER TABLE holdfast_events SET (autovacuum_enabled = false)")
    one = finding_of(app, "AUTOVACUUM_OFF", "error")
    assert one.detail == {"tables": ["holdfast_events"]}
    backend.sql("ALTER TABLE holdfast_events RESET (autovacuum_enabled)")
    finding_of(app, "VACUUMED", "ok")


def test_a_server_without_autovacuum_is_an_error(diagnosis: Diagnosis) -> None:
    assert of_server(diagnosis, off=("autovacuum",))["AUTOVACUUM_OFF"] == "error"


# --- the schema ---


@pytest.fixture
def apart(backend: PostgresBackend) -> Iterator[Holdfast]:
    """Tables of their own, which a test may change."""
    app = backend.open(schema="apart")
    yield app
    app.close()
    backend.sql("DROP SCHEMA apart CASCADE")


DRIFT = [
    ("DROP INDEX apart.holdfast_jobs_ready", "holdfast_jobs_ready"),
    ("DROP TRIGGER holdfast_jobs_changed ON apart.holdfast_jobs", "holdfast_jobs_changed"),
    ("DROP FUNCTION apart.holdfast_jobs_deleted CASCADE", "holdfast_jobs_deleted"),
    ("DROP VIEW apart.holdfast_attempts", "holdfast_attempts"),
]


@pytest.mark.parametrize(("statement", "name"), DRIFT)
def test_what_was_dropped_is_named_and_made_again(
    backend: PostgresBackend, apart: Holdfast, statement: str, name: str
) -> None:
    finding_of(apart, "SCHEMA", "ok")
    backend.sql(statement)
    one = finding_of(apart, "SCHEMA_PARTS_MISSING", "error")
    assert name in one.detail["names"] and one.fix is not None and "--schema apart" in one.fix
    checkup = apart.check(repair=True)
    assert checkup.of("SCHEMA") is not None and f"Created {name}" in "".join(checkup.repaired)
    apart.queue("inbox").send(1)
    message = apart.queue("inbox").receive()
    assert message is not None and message.ack()
    events = backend.sql("SELECT event FROM apart.holdfast_events WHERE job_id IS NOT NULL ORDER BY id")
    assert events == [("enqueued",), ("claimed",), ("succeeded",)]


CHANGED = [
    ("ALTER TABLE apart.holdfast_jobs DISABLE TRIGGER holdfast_jobs_changed", "holdfast_jobs_changed"),
    ("ALTER TABLE apart.holdfast_jobs ALTER COLUMN queue SET DEFAULT 'other'", "holdfast_jobs.queue"),
    (
        "CREATE OR REPLACE FUNCTION apart.holdfast_jobs_enqueued() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NULL; END $$",
        "holdfast_jobs_enqueued",
    ),
]


@pytest.mark.parametrize(("statement", "name"), CHANGED)
def test_what_was_changed_is_named(backend: PostgresBackend, apart: Holdfast, statement: str, name: str) -> None:
    backend.sql(statement)
    assert finding_of(apart, "SCHEMA_CHANGED", "error").detail["names"] == [name]


def test_a_dropped_constraint_or_table_is_not_made_again(backend: PostgresBackend, apart: Holdfast) -> None:
    backend.sql("ALTER TABLE apart.holdfast_jobs DROP CONSTRAINT task_is_a_name")
    assert finding_of(apart, "TABLES_MISSING", "error").detail["names"] == ["task_is_a_name"]
    backend.sql("DROP TABLE apart.holdfast_tags")
    found = finding_of(apart, "TABLES_MISSING", "error").detail["names"]
    assert set(found) == {"task_is_a_name", "holdfast_tags"}


def test_what_others_added_is_named(backend: PostgresBackend, apart: Holdfast) -> None:
    backend.sql("CREATE INDEX mine ON apart.holdfast_jobs (created_at)")
    one = finding_of(apart, "SCHEMA_ADDED", "note")
    assert one.detail["names"] == ["mine"] and one.fix is not None and "DROP INDEX apart.mine" in one.fix
    backend.sql("DROP INDEX apart.mine")
    finding_of(apart, "SCHEMA", "ok")


# --- a database that cannot be used ---


def test_a_server_that_does_not_answer_is_a_finding_without_the_password() -> None:
    url = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/app"
    (one,) = [one for one in check_database(url, prefix="holdfast_").findings if one.severity == "error"]
    assert one.code == "CANNOT_CONNECT" and PASSWORD not in str(one)
    with pytest.raises(CannotOpen):
        read_health_metrics(url, prefix="holdfast_", window=60)


def test_a_database_without_tables_is_a_finding(backend: PostgresBackend) -> None:
    found = check_database(backend.url, prefix="absent_")
    one = found.of("NO_TABLES")
    assert one is not None and one.detail == {"prefixes": ["holdfast_"]} and backend.sql("SELECT 1") == [(1,)]
    with pytest.raises(SchemaOutdated):
        read_health_metrics(backend.url, prefix="absent_", window=60)


@pytest.mark.parametrize("full", [False, True])
def test_vacuum_is_a_vacuum_of_every_table(backend: PostgresBackend, app: Holdfast, full: bool) -> None:
    app.queue("inbox").send_many(range(500))
    backend.sql("DELETE FROM holdfast_jobs")
    report = app.vacuum(full=full)
    assert report.full is full and report.before_bytes > 0
    assert full is (report.after_bytes < report.before_bytes) or not full
    assert app.observe.last_events(1)[0].event == "vacuumed"
