"""Plain SQL from a session whose search_path holds tables and functions with the names of Holdfast's."""

from contextlib import closing

import psycopg
import pytest

from support.postgres_backend import PostgresBackend, admin

FUNCTIONS = ["each_id", "each_text", "each_row", "argument", "next_events", "horizon", "tell_waiting"]


@pytest.mark.parametrize("path", ["''", "trap, public", "pg_temp, trap, public", "trap, public, pg_catalog"])
def test_triggers_write_to_the_tables_of_their_schema_whatever_the_search_path_is(
    backend: PostgresBackend, path: str
) -> None:
    app = backend.open()
    try:
        admin().execute("CREATE SCHEMA trap")
        for (table,) in backend.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
            admin().execute(f"CREATE TABLE trap.{table} (LIKE public.{table})")
        for name in FUNCTIONS:
            for argument in ("text", "bigint", ""):
                admin().execute(
                    f"CREATE FUNCTION trap.holdfast_{name}({argument}) RETURNS bigint LANGUAGE sql AS 'SELECT 1 / 0'"
                )
        for name, argument in (("count", "bigint"), ("json_array_elements_text", "text"), ("pg_notify", "varchar")):
            admin().execute(f"CREATE FUNCTION trap.{name}({argument}) RETURNS bigint LANGUAGE sql AS 'SELECT 1 / 0'")
        with closing(psycopg.connect(backend.url, autocommit=True)) as other:
            other.execute(f"SET search_path = {path}")
            other.execute("CREATE TEMP TABLE old_rows (id int)")
            other.execute("CREATE TEMP TABLE holdfast_events (LIKE public.holdfast_events)")
            statement = "INSERT INTO public.holdfast_jobs (queue, tags) VALUES ('q', '[\"a\"]') RETURNING id"
            (first,), (second,) = (other.execute(statement).fetchone() or () for _ in range(2))
            other.execute("UPDATE public.holdfast_jobs SET status = 'cancelled' WHERE id = %s", (first,))
            other.execute("DELETE FROM public.holdfast_jobs WHERE id = %s", (first,))
            assert other.execute("SELECT count(*) FROM pg_temp.holdfast_events").fetchone() == (0,)
        events = [event.event for event in app.store.statistics.events(10) if event.job_id == first]
        assert events == ["enqueued", "edited", "removed"]
        assert backend.sql("SELECT job_id, tag FROM public.holdfast_tags") == [(second, "a")]
        assert backend.sql("SELECT count(*) FROM trap.holdfast_events") == [(0,)]
    finally:
        admin().execute("DROP SCHEMA trap CASCADE")
