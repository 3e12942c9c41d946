"""Pruning of what has a long history: no transaction is long."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from holdfast import Holdfast, Then
from holdfast.testing import FakeClock
from support.finished_jobs import DAY
from support.running_worker import drain
from support.transitions import fold_all

Sql = Callable[..., list[Any]]

MONTH = 31 * DAY


@pytest.mark.parametrize(("jobs", "attempts"), [(40, 120), (3, 1600)], ids=["many tries", "one endless history"])
def test_a_chain_with_a_long_history_goes_in_small_transactions(
    app: Holdfast, clock: FakeClock, sql: Sql, monkeypatch: Any, jobs: int, attempts: int
) -> None:
    """It has thousands of rows, though not many jobs."""

    @app.task(queue="walk")
    def walk(left: int) -> Any:
        return Then(walk, left - 1) if left else "there"

    walk.enqueue(jobs - 1)
    drain(app)
    sql("UPDATE holdfast_jobs SET max_attempts = 5000, attempt = ?", (attempts,))
    for event, claimed_at in (("claimed", "NULL"), ("released", "1")):
        sql(
            f"WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "  # noqa: S608
            f"INSERT INTO holdfast_events (job_id, attempt, at, event, claimed_at) "
            f"SELECT id, n, 1, '{event}', {claimed_at} FROM holdfast_jobs, n",
            (attempts,),
        )
    clock.advance(MONTH)
    largest, commit = 0, app.store.pruning._commit  # type: ignore[attr-defined]
    rows = "SELECT count(*) FROM holdfast_events"
    assert sql(rows)[0][0] > 9000

    def measured(token: str, counts: Any, work: Any) -> Any:
        def counted(connection: Any) -> Any:
            nonlocal largest
            before = connection.execute(rows).fetchone()[0]
            done = work(connection)
            largest = max(largest, before - connection.execute(rows).fetchone()[0])
            return done

        return commit(token, counts, counted)

    monkeypatch.setattr(app.store.pruning, "_commit", measured)
    assert app.prune(hurry=True).jobs == jobs
    assert 0 < largest <= 5000
    assert app.jobs.count() == 0 and sql("SELECT count(*) FROM holdfast_attempts") == [(0,)]


def test_the_index_of_events_by_job_has_those_that_are_folded(app: Holdfast, sql: Sql) -> None:
    """It is filled by the fold, emptied with the events, and the view adds the rest of the log."""
    inbox = app.queue("inbox")
    first, second = inbox.send_many([1, 2])
    fold_all(app)
    message = inbox.receive()
    assert message is not None and message.ack()
    inbox.send(3)
    logged = "SELECT job_id, id FROM holdfast_events WHERE job_id IS NOT NULL ORDER BY 1, 2"
    by_job = "SELECT * FROM holdfast_events_by_job ORDER BY 1, 2"
    blocks = "SELECT DISTINCT job_id / 8, id / 8 FROM holdfast_events"
    folded = f"{blocks} WHERE job_id IS NOT NULL AND id <= ? ORDER BY 1, 2"
    indexed = "SELECT jobs, events FROM holdfast_event_blocks ORDER BY 1, 2"
    assert sql(indexed) == sql(folded, (2,))
    assert sql(by_job) == sql(logged) and len(sql(logged)) == 5
    assert [entry.name for entry in app.jobs.history(first)] == ["enqueued", "claimed", "succeeded", "succeeded"]
    fold_all(app)
    assert sql(indexed) == sql(folded, (5,)) and sql(by_job) == sql(logged)
    app.jobs.delete(second)
    app.jobs.delete(first)
    inbox.send_many(range(20))
    fold_all(app)
    assert sql(indexed) == sql(folded, (2**62,)) and len(sql(indexed)) > 2
    assert sql(by_job) == sql(logged) and len(sql(logged)) == 21
    app.queue("inbox").purge()
    inbox.send("the last")
    fold_all(app)
    assert sql(indexed) == sql(folded, (2**62,)) and len(sql(logged)) == 1


BY_JOB = {
    "events_of": (5000,),
    "attempts_of": (5000,),
    "events_of_job_after": {"job": 5000, "after": 0, "limit": 100},
    "last_events_of_job": {"job": 5000, "before": 2**62, "limit": 100},
    "trim_events": {"job": 5000, "limit": 100, "status": "ready", "until": 2**62},
    "delete_events_of_removed": {"jobs": "[5000]"},
    "delete_orphaned_events": {"jobs": "[5000]"},
    "export_events": {"batch": "[5000]"},
    "export_attempts": {"batch": "[5000]"},
    "footprints": {"batch": "[5000]"},
    "orphaned_events": {"window": 10, "limit": 10},
    "SELECT * FROM holdfast_attempts WHERE job_id = 5000": (),
    "SELECT event_id FROM holdfast_events_by_job WHERE job_id = 5000 AND event_id > 10": (),
    "SELECT event_id FROM holdfast_events_by_job WHERE job_id IN (5000, 5001)": (),
    "DELETE FROM holdfast_jobs WHERE id = 5000": (),
}


@pytest.mark.parametrize("statement", BY_JOB)
def test_the_events_of_a_job_are_read_without_the_rest_of_a_long_log(app: Holdfast, url: str, statement: str) -> None:
    app.queue("inbox").send_many(range(20_000))
    fold_all(app)
    text = statement if " " in statement else getattr(app.store.database.sql, statement)  # type: ignore[attr-defined]
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 10

    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.set_progress_handler(step, 10)
        connection.execute(text.replace("{columns}", "*"), BY_JOB[statement]).fetchall()
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    assert 0 < steps < 5000
