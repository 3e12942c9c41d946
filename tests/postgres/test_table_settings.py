"""How the tables are made: few indexes and triggers, no foreign keys on jobs, names by their bytes, VACUUM."""

from typing import Any

import pytest

from support.postgres_backend import PostgresBackend

OWN = "relnamespace = 'public'::regnamespace AND starts_with(relname, 'holdfast_')"


def test_autovacuum_and_fillfactor_are_set_where_rows_change_often(backend: PostgresBackend) -> None:
    rows = backend.sql(f"SELECT relname, unnest(reloptions) FROM pg_class WHERE {OWN} AND relkind = 'r'")  # noqa: S608
    settings = {(table.removeprefix("holdfast_"), option.partition("=")[0]) for table, option in rows}
    assert settings == {
        *(("jobs", f"autovacuum_vacuum_{name}") for name in ("scale_factor", "threshold", "cost_delay")),
        *(("endings", f"autovacuum_vacuum_{name}") for name in ("scale_factor", "threshold")),
        *(("workers", f"autovacuum_vacuum_{name}") for name in ("scale_factor", "threshold")),
        ("workers", "fillfactor"),
    }


def test_rows_of_jobs_pay_for_no_trigger_and_no_foreign_key(backend: PostgresBackend) -> None:
    """Row triggers have a condition, which only plain SQL meets. Events and the like refer to jobs by no key."""
    triggers = """SELECT tgname FROM pg_trigger WHERE tgrelid = 'holdfast_jobs'::regclass
        AND tgtype & 1 = 1 AND tgqual IS NULL"""
    assert backend.sql(triggers) == []
    keys = "SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
    assert backend.sql(keys) == [("holdfast_fires", "holdfast_schedules")]


def test_triggers_that_join_rows_keep_no_plan_for_one_row(backend: PostgresBackend) -> None:
    rows: list[Any] = backend.sql("""SELECT proname, coalesce(proconfig, '{}') FROM pg_proc
        WHERE oid IN (SELECT tgfoid FROM pg_trigger WHERE tgrelid = 'holdfast_jobs'::regclass AND tgtype & 1 = 0)""")
    assert len(rows) == 3 and all(config == ["enable_nestloop=off"] for _, config in rows), rows


def test_one_index_on_jobs_is_full(backend: PostgresBackend) -> None:
    full = """SELECT indexrelid::regclass::text FROM pg_index
        WHERE indrelid = 'holdfast_jobs'::regclass AND indpred IS NULL"""
    assert backend.sql(full) == [("holdfast_one_row_per_job",)]


@pytest.mark.parametrize("table", ["jobs", "events", "queues", "schedules", "counts", "minutes", "tags"])
def test_names_are_compared_by_their_bytes(backend: PostgresBackend, table: str) -> None:
    names = ("queue", "task", "key", "status", "name", "tag", "measure", "error_code")
    rows = backend.sql(
        "SELECT attname, attcollation::regcollation::text FROM pg_attribute "
        "WHERE attrelid = ?::regclass AND attnum > 0",
        (f"holdfast_{table}",),
    )
    wanted = {name: collation for name, collation in rows if name in names and collation is not None}
    if table == "schedules":
        wanted.pop("key")  # it is copied into a job and not compared
    assert wanted and set(wanted.values()) == {'"C"'}, wanted
