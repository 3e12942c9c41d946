"""The server restarts, crashes or is replaced: its workers live, and their jobs stay theirs."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.model.job import Sweep
from holdfast.store.postgres import locks
from support.child_processes import bystander, worker
from support.effort import a_part
from support.postgres_server import CRASHES, PostgresServer, start_server, stop_server
from support.running_worker import eventually
from support.server_storm import Storm

WORKERS = a_part(4, 20)
LOCKED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    one = start_server(CRASHES | {"wal_writer_delay": "10s"})
    yield one
    stop_server(one)


def hold(file: str) -> None:
    """Declares the task of processes/server_storm_tasks.py."""


def test_the_jobs_of_all_workers_stay_theirs_over_restarts_and_crashes(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with closing(Storm(tmp_path, start_server(CRASHES), producers=0, workers=WORKERS)) as storm:
        with Holdfast(storm.url, busy_timeout=60) as app:
            app.task(name="hold")(hold).enqueue_many(
                [{"file": str(go_on)}] * WORKERS * 4
            )  # as many as they run at once
            held = "SELECT worker, count(*) FROM holdfast_jobs WHERE status = 'running' GROUP BY worker"
            eventually(lambda: len(storm.sql(held)) == WORKERS and sum(n for _, n in storm.sql(held)) == WORKERS * 4)
            before = sorted(storm.sql(held))
            for hit in (storm.restart, storm.crash, storm.kill_a_session):
                for member in storm.crew.living():
                    os.kill(member.process.pid, signal.SIGSTOP)  # so that none locks again before the others look
                hit()
                assert [app.store.jobs.sweep(Sweep.WORKERS) for _ in range(3)] == [0, 0, 0]
                for member in storm.crew.living():
                    os.kill(member.process.pid, signal.SIGCONT)
                eventually(lambda: storm.sql(LOCKED) == [(WORKERS,)], "all have locked again")
                assert sorted(storm.sql(held)) == before
            go_on.touch()
            eventually(lambda: storm.sql(held) == [])
            assert storm.sql("SELECT DISTINCT status, attempt FROM holdfast_jobs") == [("succeeded", 1)]
            assert storm.sql("SELECT count(*) FROM holdfast_workers WHERE ended_at IS NOT NULL") == [(0,)]
            print("\n", dict(storm.report.hits), f"{WORKERS} workers, {WORKERS * 4} jobs kept")
        report = storm.end()
        assert report.violations() == {}


def test_without_the_longer_grace_a_restart_would_make_workers_dead(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the locks are gone, and a worker that cannot run does not lock again."""
    with Holdfast(server.url, busy_timeout=60) as app:
        app.task(name="known")(lambda: None).enqueue_many([{}] * 2)
        with bystander(worker(server.url, claims=2)) as process:
            process.send_signal(signal.SIGSTOP)
            server.stop(signal.SIGINT)
            server.start()
            assert [app.store.jobs.sweep(Sweep.WORKERS) for _ in range(2)] == [0, 0]
            monkeypatch.setattr(locks, "RESTART_SECONDS", 0.0)
            assert app.store.jobs.sweep(Sweep.WORKERS) == 2


@pytest.mark.parametrize(("durability", "left"), [("full", 1), ("normal", 0)])
def test_an_acknowledged_job_survives_a_crash_unless_durability_is_normal(
    server: PostgresServer, durability: Literal["full", "normal"], left: int
) -> None:
    with Holdfast(server.url, durability=durability) as app:
        app.queue("inbox").stats()
        app.queue("inbox").send(1)
        server.stop(signal.SIGQUIT)
        server.start()
        assert app.queue("inbox").stats().ready == left


def test_a_claim_survives_a_crash_whatever_the_durability(server: PostgresServer) -> None:
    """The same attempt would be given out twice."""
    with Holdfast(server.url, durability="normal") as app:
        app.queue("inbox").send(1)
        first = app.queue("inbox").receive(visibility=0)
        server.stop(signal.SIGQUIT)
        server.start()
        second = eventually(lambda: app.queue("inbox").receive(visibility=0))
        assert first is not None and (first.id, first.attempt + 1) == (second.id, second.attempt)


@pytest.mark.parametrize("many", [False, True], ids=["one statement", "several"])
def test_an_enqueue_that_lost_its_session_waits_for_the_standby_all_the_same(
    server: PostgresServer, many: bool
) -> None:
    """A session that is ended while it waits for a synchronous standby has committed: others see the job."""
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def sql(statement: str) -> list[Any]:
        with psycopg.connect(server.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def commits_wait() -> bool:
        """The process of the server that lets them wait reads its settings when it likes."""
        probe = pool.submit(sql, "SELECT pg_logical_emit_message(true, 'probe', '')")
        eventually(lambda: probe.done() or sql(waits))
        if probe.done():
            return False
        sql(waits.replace("pid", "pg_cancel_backend(pid)"))
        probe.result()
        return True

    with Holdfast(server.url, busy_timeout=60) as app, ThreadPoolExecutor(1) as pool:
        inbox = app.queue("inbox")
        inbox.stats()
        try:
            sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            sql("SELECT pg_reload_conf()")
            eventually(commits_wait)
            sent = pool.submit(lambda: inbox.send_many([1]) if many else [inbox.send(1)])
            ((first,),) = eventually(lambda: sql(waits))
            sql(f"SELECT pg_terminate_backend({first})")
            eventually(lambda: sent.done() or sql(f"{waits} AND pid <> {first}"), "the question waits, too")
            assert not sent.done()
        finally:
            sql("ALTER SYSTEM RESET synchronous_standby_names")
            sql("SELECT pg_reload_conf()")
        assert sent.result() == [job.id for job in app.jobs.list()]


def test_a_crash_is_told_from_a_cut_connection(server: PostgresServer) -> None:
    """By the same postmaster: a process of the server is killed, and it recovers by itself."""
    with Holdfast(server.url, busy_timeout=60) as app:
        look = app.store.database.locks._look  # type: ignore[attr-defined]
        before = look(1).incarnation
        rows = app.store.database.rows("SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast'")  # type: ignore[attr-defined]
        app.store.database.with_driver(lambda driver: driver.execute("SELECT pg_stat_reset()"))  # type: ignore[attr-defined]
        assert look(1).incarnation == before
        os.kill(rows[0][0], signal.SIGKILL)
        eventually(lambda: look(1).incarnation != before)
