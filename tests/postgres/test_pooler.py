"""Behind a pooler that gives each transaction to another session, as pgbouncer does with pool_mode = transaction."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.model.job import Sweep
from holdfast.store.postgres import locks
from support.child_processes import bystander, worker
from support.postgres_backend import ADVISORY_LOCKS, PostgresBackend
from support.postgres_proxy import Pooler, pooled
from support.running_worker import RunningWorker, comes_true, eventually


@pytest.fixture
def pooler(backend: PostgresBackend) -> Iterator[Pooler]:
    with pooled(backend.url) as one:
        yield one


@pytest.fixture
def far(backend: PostgresBackend, pooler: Pooler) -> Iterator[Holdfast]:
    """An app behind the pooler."""
    with Holdfast(pooler.url(), busy_timeout=60) as app:
        yield app


def held_locks(backend: PostgresBackend) -> list[int]:
    return [row[0] for row in backend.sql(f"SELECT objid::bigint FROM {ADVISORY_LOCKS}")]  # noqa: S608


def test_a_pooler_is_found_out_by_itself(backend: PostgresBackend, far: Holdfast) -> None:
    direct = backend.open()
    assert far.store.is_pooled and not direct.store.is_pooled  # type: ignore[attr-defined]


def test_jobs_run_without_listening_and_without_locks(
    backend: PostgresBackend, far: Holdfast, pooler: Pooler
) -> None:
    ran = threading.Event()
    far.task(name="job")(lambda: ran.set())
    sender = backend.open()
    with RunningWorker(far):
        eventually(lambda: backend.sql("SELECT 1 FROM holdfast_workers"))
        before = pooler.transactions
        sender.task(name="job")(lambda: None).enqueue()
        comes_true(ran, "the poll finds it")
        eventually(lambda: backend.sql("SELECT status FROM holdfast_jobs") == [("succeeded",)])
        assert held_locks(backend) == []
        assert pooler.transactions > before
        ((slot,),) = backend.sql("SELECT slot FROM holdfast_workers")
        assert slot >= locks.FIRST_WITHOUT_LOCK
    assert backend.sql("SELECT DISTINCT ending FROM holdfast_workers") == [("stopped",)]


def test_nothing_is_left_in_the_sessions_that_others_use(
    backend: PostgresBackend, far: Holdfast, pooler: Pooler
) -> None:
    inbox = far.queue("inbox")
    for number in range(12):
        inbox.send(number)
        inbox.send_many([number])
    while (message := inbox.receive()) is not None:
        assert message.ack()
    with far.transaction() as tx:
        inbox.send("last", conn=tx)
    with psycopg.connect(pooler.url(application_name="holdfast"), autocommit=True, prepare_threshold=None) as other:
        for _ in range(6):  # each is in another session
            row = other.execute(
                "SELECT current_setting('lock_timeout'), coalesce(current_setting('holdfast.notify', true), ''), "
                "current_setting('synchronous_commit'), (SELECT count(*) FROM pg_prepared_statements)"
            ).fetchone()
            assert row == ("0", "", "on", 0)
    sessions = backend.sql("SELECT count(*) FROM pg_listening_channels()")
    assert sessions == [(0,)]
    assert backend.sql("SELECT count(*), count(DISTINCT id) FROM holdfast_jobs") == [(25, 25)]


def test_a_commit_behind_a_pooler_is_flushed_whatever_the_database_says(
    backend: PostgresBackend, pooler: Pooler
) -> None:
    """A pooled session cannot keep the setting, so each transaction has it."""
    name = backend.sql("SELECT current_database()")[0][0]
    backend.sql("CREATE TABLE flushed (setting text)")
    backend.create_trigger(
        "note", "holdfast_jobs", "INSERT INTO flushed VALUES (current_setting('synchronous_commit'))"
    )
    backend.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        with Holdfast(pooler.url()) as far, Holdfast(backend.url) as direct:
            for app in (far, direct):
                app.queue("inbox").send(1)
                app.queue("inbox").send_many([1])
    finally:
        backend.sql(f"ALTER DATABASE {name} RESET synchronous_commit")
    assert backend.sql("SELECT setting FROM flushed") == [("on",)] * 4


def test_a_worker_behind_a_pooler_is_dead_when_its_heartbeat_is_old(
    backend: PostgresBackend, far: Holdfast, pooler: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = backend.open()
    app.task(name="known")(lambda: None).enqueue_many([{}] * 2)
    with bystander(worker(pooler.url(), claims=2)):
        assert backend.sql("SELECT status FROM holdfast_jobs") == [("running",)] * 2
    for one in (app, far):
        assert one.store.jobs.sweep(Sweep.WORKERS) == 0, "its heartbeat is new"
    backend.sql("UPDATE holdfast_workers SET heartbeat_at = heartbeat_at - 61000000")
    assert far.store.jobs.sweep(Sweep.WORKERS) == 2
    assert backend.sql("SELECT DISTINCT status, error_code FROM holdfast_jobs") == [("ready", "INTERNAL:WORKER_LOST")]


def test_the_block_of_a_batch_is_not_taken_for_abandoned(
    backend: PostgresBackend, far: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = far.task(name="job")(lambda: None)
    direct = backend.open()
    with far.batch() as batch:
        task.using(batch=batch).enqueue()
        for one in (direct, far):
            one.store.jobs.sweep(Sweep.WORKERS)
        assert backend.sql("SELECT count(*) FROM holdfast_batches WHERE sealed_at IS NULL") == [(1,)]
    assert backend.sql("SELECT count(*) FROM holdfast_batches WHERE sealed_at IS NULL") == [(0,)]
