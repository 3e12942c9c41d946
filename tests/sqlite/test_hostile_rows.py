"""Rows that break a constraint, written with constraints switched off: named by the doctor, and in nobody's way."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.errors import DamagedRow
from support.running_worker import RunningWorker, drain, eventually


def by_hand(url: str, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, values)


@pytest.mark.parametrize(
    ("column", "value"),
    [("max_attempts", -5), ("attempt", -7), ("max_attempts", "many"), ("status", "soon")],
    ids=str,
)
@pytest.mark.parametrize("delay", [0, 5], ids=["ready", "scheduled"])
def test_a_damaged_row_keeps_no_worker_from_the_other_jobs(
    live: Holdfast, url: str, column: str, value: Any, delay: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One statement claims or promotes many jobs, and SQLite refuses all of it because of one row."""

    @live.task
    def work(n: int) -> int:
        return n

    damaged = work.using(delay=delay).enqueue(1)
    by_hand(url, f"UPDATE holdfast_jobs SET {column} = ?, run_at = run_at - 5000000 WHERE id = ?", value, damaged.id)  # noqa: S608
    jobs = [work.using(delay=delay).enqueue(n) for n in range(3)]
    by_hand(url, "UPDATE holdfast_jobs SET run_at = run_at - 5000000 WHERE id > ?", damaged.id)
    with RunningWorker(live, concurrency=2):
        eventually(lambda: all(job.refresh().status == "succeeded" for job in jobs))
    if (row := live.jobs.get(damaged.id)).status == "failed":
        assert row.error_code == "INTERNAL:DAMAGED_ROW"
        assert f"schema does not allow: {damaged.id}" in caplog.text
        assert live.jobs.history(damaged.id)[-1].name == "failed"


def test_a_damaged_row_keeps_no_consumer_from_the_other_messages(live: Holdfast, url: str) -> None:
    inbox = live.queue("inbox")
    damaged, good = inbox.send_many(["damaged", "good"])
    by_hand(url, "UPDATE holdfast_jobs SET max_attempts = -1 WHERE id = ?", damaged)
    message = inbox.receive(wait=5)
    assert message is not None and (message.id, message.body) == (good, "good")
    assert [letter.id for letter in inbox.dead_letters()] == [damaged]


def test_a_change_that_a_constraint_refuses_is_a_typed_error(live: Holdfast, url: str) -> None:
    live.queue("inbox").send(1)
    with pytest.raises(DamagedRow, match=r"CHECK constraint failed.*holdfast doctor"):
        live.store.database.change("UPDATE holdfast_jobs SET priority = 'high'", ())  # type: ignore[attr-defined]


def test_the_doctor_names_the_table_and_the_constraint(live: Holdfast, url: str) -> None:
    live.task(name="work")(lambda: None)
    drain(live)
    assert live.check().of("ROWS")
    by_hand(url, "UPDATE holdfast_workers SET lease = 'soon', host = 7")
    live.queue("inbox").send(1)
    by_hand(url, "UPDATE holdfast_jobs SET lease = 'soon'")
    found = live.check().of("ROWS_DAMAGED")
    assert found is not None and found.severity == "error"
    assert "1 row of holdfast_jobs (lease_is_an_integer)" in found.meaning
    assert {"table": "holdfast_workers", "constraint": "workers_lease_is_an_integer", "rows": 1} in found.detail[
        "broken"
    ]
    assert live.check().of("DAMAGED") is None, "the file itself is sound"


def test_constraints_that_a_table_has_lost_are_checked_all_the_same(live: Holdfast, url: str) -> None:
    """As in a database that was restored from a dump without them."""
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.executescript(
            "CREATE TABLE other AS SELECT * FROM holdfast_queues; DROP TABLE holdfast_queues;"
            "ALTER TABLE other RENAME TO holdfast_queues;"
            "INSERT INTO holdfast_queues (name, paused_at) VALUES (x'00', 'soon')"
        )
    found = live.check().of("ROWS_DAMAGED")
    assert found is not None and "queues_have_their_types" in found.meaning


@pytest.mark.parametrize("command", ["stats", "jobs", "show 1", "explain 1", "workers", "queues", "cron", "doctor"])
def test_no_command_ends_in_a_traceback(live: Holdfast, url: str, command: str) -> None:
    @live.task
    def work() -> None: ...

    work.enqueue()
    live.schedules.add("nightly", "@daily", work)
    drain(live)
    for table, columns in {
        "jobs": "run_at lease created_at started_at finished_at progress attempt max_attempts priority",
        "workers": "pid host queues tasks limits concurrency lease started_at heartbeat_at ended_at slot memory",
        "schedules": "cron tz args next_at handled_at last_at timeout priority catch_up_limit",
    }.items():
        assigned = ", ".join(f"{column} = 'soon'" for column in columns.split())
        by_hand(url, f"UPDATE holdfast_{table} SET {assigned}")  # noqa: S608
    result = CliRunner().invoke(main, [*command.split(), "--db", url], prog_name="holdfast")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
