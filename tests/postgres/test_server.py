"""Sessions that end, transactions that overlap, and URLs and options that do not fit."""

import sys
import threading
from contextlib import closing
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CannotOpen, ForeignConnection, InvalidInput, TransactionError
from holdfast.model.job import Sweep
from support.child_processes import bystander, worker
from support.postgres_backend import PostgresBackend, server_url
from support.running_worker import eventually

PASSWORD = "hunter2"


# --- durability ---


@pytest.mark.parametrize(("durability", "enqueue"), [("full", "on"), ("normal", "off")])
def test_only_an_enqueue_may_be_lost_with_the_server(backend: PostgresBackend, durability: Any, enqueue: str) -> None:
    app = backend.open(durability=durability)
    inbox, jobs = app.queue("inbox"), "holdfast_jobs"
    for statement in (
        "CREATE TABLE commits (verb text, flushed text)",
        "CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO commits VALUES "
        "(TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$",
        f"CREATE TRIGGER note_commit AFTER INSERT OR UPDATE ON {jobs} EXECUTE FUNCTION note_commit()",
    ):
        backend.sql(statement)
    try:
        inbox.send("one")
        inbox.send("two", key="two")
        inbox.send_many(["three"])
        inserts = backend.sql("SELECT flushed FROM commits WHERE verb = 'INSERT'")
        backend.sql("DELETE FROM commits")
        message = inbox.receive()
        assert message is not None and message.ack()
        updates = backend.sql("SELECT flushed FROM commits")
    finally:
        backend.sql(f"DROP TRIGGER note_commit ON {jobs}")
        backend.sql("DROP FUNCTION note_commit")
        backend.sql("DROP TABLE commits")
    assert {one for (one,) in inserts} == {enqueue} and len(inserts) >= 3
    assert {one for (one,) in updates} == {"on"}


# --- URLs and options ---


@pytest.mark.parametrize(
    "url", [f"postgresql://ada:{PASSWORD}@127.0.0.1:1/app", f"postgres://ada:{PASSWORD}@127.0.0.1:1/app"]
)
def test_a_server_that_is_not_there_is_a_typed_error_without_the_password(url: str) -> None:
    with pytest.raises(CannotOpen, match=r"cannot connect to postgresql://127\.0\.0\.1:1/app") as caught:
        Holdfast(url)
    assert PASSWORD not in str(caught.value)


def test_a_url_that_cannot_be_read_is_a_typed_error_without_the_password() -> None:
    with pytest.raises(InvalidInput, match="cannot be read") as caught:
        Holdfast(f"postgresql://ada:{PASSWORD}@db/app?nonsense=1")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("option", [{"min_free_bytes": 5}, {"guard_connections": False}])
def test_options_of_a_file_are_refused(backend: PostgresBackend, option: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="for SQLite only"):
        backend.open(**option)


@pytest.mark.parametrize("schema", ["", "Jobs", "pg_jobs", "a; --", 5])
def test_a_bad_name_of_a_schema_is_refused(backend: PostgresBackend, schema: Any) -> None:
    with pytest.raises(InvalidInput, match="schema must be"):
        backend.open(schema=schema)


def test_a_schema_whose_name_is_a_word_of_sql_is_refused(backend: PostgresBackend) -> None:
    with pytest.raises(InvalidInput, match=r"schema='order' cannot be used, since it is a word of SQL .*another"):
        backend.open(schema="order")


def test_a_schema_is_for_postgresql_only(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="for PostgreSQL only"):
        Holdfast(tmp_path / "app.db", schema="jobs")


def test_without_the_driver_the_error_names_the_extra(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidInput, match=r"holdfast\[postgres\]"):
        Holdfast(backend.url)


def test_tables_in_a_schema_of_their_own(backend: PostgresBackend) -> None:
    app, other = backend.open(), backend.open(schema="elsewhere", prefix="jobs_")
    try:
        other.queue("inbox").send("there")
        assert app.queue("inbox").receive() is None
        message = other.queue("inbox").receive()
        assert message is not None and message.body == "there" and message.ack()
        assert backend.sql("SELECT status FROM elsewhere.jobs_jobs") == [("succeeded",)]
    finally:
        other.close()
        backend.sql("DROP SCHEMA elsewhere CASCADE")


# --- sessions ---


def test_a_session_that_the_server_ended_is_replaced(backend: PostgresBackend) -> None:
    app = backend.open()
    inbox = app.queue("inbox")
    inbox.send(1)
    backend.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'holdfast'"
    )
    assert [inbox.stats().ready, app.jobs.count(queue="inbox")] == [1, 1]
    message = inbox.receive()
    assert message is not None and message.ack()


def test_the_jobs_of_a_killed_worker_are_recovered(backend: PostgresBackend) -> None:
    app = backend.open()
    app.task(name="known")(lambda: None).enqueue_many([{}] * 2)
    with bystander(worker(backend.url, claims=2)):
        assert backend.sql("SELECT status FROM holdfast_jobs") == [("running",)] * 2
        assert app.store.jobs.sweep(Sweep.WORKERS) == 0, "it lives"
    eventually(lambda: app.store.jobs.sweep(Sweep.WORKERS))
    assert backend.sql("SELECT DISTINCT status, error_code FROM holdfast_jobs") == [("ready", "INTERNAL:WORKER_LOST")]


# --- transactions that overlap ---


def test_a_follower_misses_no_event_although_transactions_commit_in_any_order(backend: PostgresBackend) -> None:
    app = backend.open()
    inbox = app.queue("inbox")
    with closing(backend.connect()) as first, closing(backend.connect()) as second:
        inbox.send("early", conn=first)
        inbox.send("late", conn=second)
        second.commit()
        assert app.store.statistics.events(10, after=0) == [], "an event may still come before it"
        app.store.statistics.fold()
        assert app.queue("inbox").stats().ready == 1, "readers count what is committed"
        first.commit()
    events = app.store.statistics.events(10, after=0)
    assert [event.job_id for event in events] == [1, 2]
    assert app.store.statistics.events(10, after=events[0].id) == events[1:]
    assert app.store.statistics.fold() == 2
    assert app.queue("inbox").stats().ready == 2


def test_a_fold_does_not_wait_for_another_one(backend: PostgresBackend) -> None:
    app = backend.open(busy_timeout=30)
    app.queue("inbox").send(1)
    with closing(backend.connect()) as other:
        other.execute("UPDATE holdfast_fold SET folded_at = folded_at")
        assert app.store.statistics.fold() == 0
        other.rollback()
    assert app.store.statistics.fold() == 1


def test_a_key_is_taken_by_one_of_two_transactions(backend: PostgresBackend) -> None:
    app = backend.open()
    inbox, found = app.queue("inbox"), list[int]()
    with closing(backend.connect()) as first:
        winner = inbox.send("a", key="k", conn=first)
        second = threading.Thread(target=lambda: found.append(inbox.send("b", key="k")))
        second.start()
        eventually(lambda: backend.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"))
        first.commit()
        second.join()
    assert found == [winner]
    assert backend.sql("SELECT args FROM holdfast_jobs") == [('"a"',)]


def test_two_blockers_that_end_at_once_release_the_job_once(backend: PostgresBackend) -> None:
    """Each of two transactions would see the other blocker unfinished."""
    app = backend.open()
    task = app.task(name="job")(lambda: None)
    blockers = [task.enqueue() for _ in range(2)]
    waiting = task.using(after=blockers).enqueue()
    with closing(backend.connect()) as first:
        first.execute("SELECT pg_advisory_xact_lock(%s::int, 1)", (app.store.database.lock_class,))  # type: ignore[attr-defined]
        ends = [threading.Thread(target=lambda one=one: app.jobs.complete(one.id)) for one in blockers]
        for end in ends:
            end.start()
        eventually(
            lambda: len(backend.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory'")) == 2, "both wait"
        )
        first.rollback()
        for end in ends:
            end.join()
    assert app.jobs.get(waiting.id).status == "ready"
    assert backend.sql("SELECT count(*) FROM holdfast_events WHERE event = 'unblocked'") == [(1,)]


# --- connections of the caller ---


def test_a_connection_to_another_database_is_refused(backend: PostgresBackend) -> None:
    import psycopg

    inbox = backend.open().queue("inbox")
    with closing(psycopg.connect(server_url())) as elsewhere, pytest.raises(ForeignConnection, match="same database"):
        inbox.send(1, conn=elsewhere)


def test_a_connection_that_commits_each_statement_is_refused(backend: PostgresBackend) -> None:
    inbox = backend.open().queue("inbox")
    with closing(backend.connect()) as connection:
        connection.autocommit = True
        with pytest.raises(TransactionError, match="no open transaction"):
            inbox.send(1, conn=connection)


def test_an_aborted_transaction_is_refused(backend: PostgresBackend) -> None:
    inbox = backend.open().queue("inbox")
    with closing(backend.connect()) as connection:
        with pytest.raises(backend.DatabaseError):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(TransactionError, match="roll it back first"):
            inbox.send(1, conn=connection)


def test_what_is_not_a_connection_of_psycopg_is_refused(backend: PostgresBackend, tmp_path: Any) -> None:
    import sqlite3

    inbox = backend.open().queue("inbox")
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, pytest.raises(InvalidInput, match="psycopg"):
        inbox.send(1, conn=connection)


def test_events_of_a_statement_are_written_at_once_and_in_order(backend: PostgresBackend) -> None:
    app = backend.open()
    app.queue("inbox").send_many(range(50))
    backend.sql("UPDATE holdfast_jobs SET status = 'cancelled', finished_at = created_at WHERE id <= 30")
    rows = backend.sql("SELECT event, job_id FROM holdfast_events ORDER BY id")
    assert rows == [("enqueued", id) for id in range(1, 51)] + [("edited", id) for id in range(1, 31)]
    assert app.queue("inbox").stats().ready == 20
