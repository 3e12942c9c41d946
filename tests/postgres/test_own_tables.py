"""Several sets of tables in one database, and databases and roles with encodings of their own."""

from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidInput, StoreError
from support.blob_stores import large
from support.postgres_backend import PostgresBackend, admin
from support.running_worker import drain

LEFT = """SELECT 'TABLE', relname FROM pg_class WHERE starts_with(relname, 'holdfast_b_') AND relkind = 'r'
    UNION ALL SELECT 'FUNCTION', CAST(CAST(oid AS regprocedure) AS text) FROM pg_proc
    WHERE starts_with(proname, 'holdfast_b_')"""
SETS = [("public", "holdfast_"), ("public", "holdfast_b_"), ("other", "holdfast_"), ("other", "b_")]


@pytest.fixture
def apps(backend: PostgresBackend) -> Iterator[list[Holdfast]]:
    """One for each set of tables. A prefix may begin with another one."""
    opened = [Holdfast(backend.url, schema=schema, prefix=prefix) for schema, prefix in SETS]
    yield opened
    for app in opened:
        app.close()
    admin().execute("DROP SCHEMA other CASCADE")
    for kind, name in admin().execute(LEFT).fetchall():
        admin().execute(f"DROP {kind} {name} CASCADE")


def test_sets_of_tables_in_one_database_do_not_meet(apps: list[Holdfast]) -> None:
    for number, app in enumerate(apps, 1):
        app.task(name="work")(lambda number: number).enqueue_many([{"number": number}] * number)
        app.queue("inbox").send(large(letter="abcde"[number]), key="same")
    assert [app.queue("inbox").stats().ready for app in apps] == [1] * 4
    drain(apps[1])
    assert [len(app.jobs.list(status="succeeded")) for app in apps] == [0, 2, 0, 0]
    apps[0].queue("inbox").purge()
    assert [app.queue("inbox").stats().ready for app in apps] == [0, 1, 1, 1]
    for app in apps:
        found = app.check(deep=True).findings
        assert {one.code for one in found if one.severity == "error"} <= {"FLUSH_OFF"}


def test_a_longer_prefix_does_not_count_as_this_one(apps: list[Holdfast]) -> None:
    database = apps[0].store.database  # type: ignore[attr-defined]
    before, used = apps[0].store.statistics.size(), apps[0].store.file.used_bytes()
    apps[1].queue("inbox").send_many([large()] * 2 + ["x" * 1000] * 1000)
    assert apps[0].store.statistics.size() == before and apps[0].store.file.used_bytes() == used
    for name in ("own_tables", "table_rows"):
        rows = database.rows(getattr(database.sql, name), database.names.given)
        assert len(rows) > 20 and not [row for row in rows if "holdfast_b_" in row[0]]


TEXT = "é €"


def test_the_encoding_of_a_role_does_not_matter(backend: PostgresBackend) -> None:
    url = f"{backend.url}&client_encoding=LATIN1"
    with Holdfast(url) as app:
        assert app.queue("inbox").send(TEXT)
        received = app.queue("inbox").receive()
        assert received is not None and received.body == TEXT
        with psycopg.connect(url) as conn:
            app.queue("inbox").send("é", conn=conn)
            with pytest.raises(InvalidInput, match="SET client_encoding = 'UTF8'"):
                app.queue("inbox").send(TEXT, conn=conn)
            conn.execute("SET client_encoding = 'UTF8'")
            app.queue("inbox").send(TEXT, conn=conn)
        assert [message.body for message in app.queue("inbox").receive_many(10)] == ["é", TEXT]


def test_a_database_that_cannot_store_a_text_says_what_to_do(backend: PostgresBackend) -> None:
    name = f"{admin().info.dbname}_latin"
    admin().execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with Holdfast(backend.url.replace(admin().info.dbname, name)) as app:
            assert app.queue("inbox").send("é")
            with pytest.raises(StoreError, match="create the database with ENCODING 'UTF8'"):
                app.queue("inbox").send(TEXT)
            assert app.queue("inbox").stats().ready == 1
    finally:
        admin().execute(f"DROP DATABASE {name} WITH (FORCE)")
