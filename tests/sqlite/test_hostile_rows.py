"""Rows that break a constraint, written with constraints switched off: named by the doctor, and in nobody's way."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.errors import DamagedRow
from holdfast.store.sqlite import constraints
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


@pytest.mark.parametrize(
    ("of_jobs", "of_batches"),
    [
        ("timeout = 'soon'", "deleted = 'many'"),
        ("batch_id = '[1, {}]'", "deleted = 'many'"),
    ],
)
def test_damaged_rows_of_several_tables_keep_no_worker_from_the_other_jobs(
    live: Holdfast, url: str, of_jobs: str, of_batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setting the jobs aside is not enough if there is more, and once is not enough if there are many."""
    monkeypatch.setattr(constraints, "SET_ASIDE_AT_ONCE", 2)

    @live.task
    def work(n: int) -> int:
        return n

    for _ in range(3):
        with live.batch(on_done=work.s(0)) as batch:
            work.using(batch=batch).enqueue(1)
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.executescript("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
        # What a worker looks for first: attempts whose lease has ended. They were the last, so their batches end.
        running = "status = 'running', attempt = max_attempts, worker = 'gone', lease = 1"
        connection.execute(f"UPDATE holdfast_jobs SET {running}, {of_jobs}")  # noqa: S608
        connection.execute(f"UPDATE holdfast_batches SET {of_batches}")  # noqa: S608
    jobs = [work.enqueue(n) for n in range(3)]
    with RunningWorker(live, concurrency=2):
        eventually(lambda: all(job.refresh().status == "succeeded" for job in jobs))


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


@pytest.mark.parametrize("damage", ["[[[]]]", "{", "[" * 5000, '{"jobs": "many"}'])
def test_a_pruning_run_with_damaged_counts_keeps_nobody_from_pruning(live: Holdfast, url: str, damage: str) -> None:
    live.prune()
    by_hand(url, "UPDATE holdfast_upkeep SET last_counts = ?, counts = ?, note = ?, token = 'gone'", *3 * [damage])
    assert live.observe.retention().last_pruned_jobs == 0
    live.prune()  # logs the run that another one did not end
    assert live.observe.retention().last_pruned_jobs == 0


def test_pages_of_finished_jobs_end_with_a_time_that_is_a_fraction(live: Holdfast, url: str) -> None:
    """A position is a whole number, and the same job came after it again and again: pruning never ended."""
    live.task(name="work")(lambda: None).enqueue()
    drain(live)
    by_hand(url, "UPDATE holdfast_jobs SET finished_at = 1.5")
    first = live.store.pruning.finished_after("succeeded", (0, 0), (2**62, 0), 10)
    assert all(job.position != (1, job.id) for job in first)
    live.prune(dry_run=True)


def test_a_schedule_whose_name_is_no_text_keeps_no_worker_busy(live: Holdfast, url: str) -> None:
    """Bytes come after every text, so that each page had another one."""
    work = live.task(name="work")(lambda: None)
    live.schedules.add("good", "@daily", work)
    live.schedules.add("bad", "@daily", work)
    by_hand(url, "UPDATE holdfast_schedules SET name = x'ff', next_at = 1 WHERE name = 'bad'")
    assert [one.name for one in live.store.schedules.list("")] == ["good"]
    due, _ = live.store.schedules.due(["work"], [], 2**60, "", 10)
    assert [one.name for one in due] == ["good"]


@pytest.mark.parametrize(
    ("damage", "command"),
    [
        ("UPDATE holdfast_jobs SET status = 'soon'", "explain 1"),
        ("UPDATE holdfast_jobs SET actor = x'ff'", "explain 1"),
        ("UPDATE holdfast_jobs SET queue = x'ff'", "stats"),
        ("INSERT INTO holdfast_queues (name, paused_at) VALUES (x'ff', 1), ('other', 1)", "queues"),
        ("UPDATE holdfast_upkeep SET last_at = 'soon'", "stats"),
        ("UPDATE holdfast_minutes SET bucket = 9223372036854775807", "stats"),
        ("INSERT INTO holdfast_migrations (name, applied_at) VALUES (x'ff', 1)", "doctor"),
        ("UPDATE holdfast_events SET at = 9e999 WHERE id = 2", "doctor"),
        ("UPDATE holdfast_jobs SET chain_index = 9223372036854775807", "show 1"),
        ("UPDATE holdfast_failures SET n = 'many'", "failures"),
        ("UPDATE holdfast_failures SET last_seen = 'soon'", "stats"),
        ("UPDATE holdfast_failures SET task = 7", "failures --json"),
        ("UPDATE holdfast_failure_minutes SET n = 'many'", "failures --since 1d"),
    ],
)
def test_what_no_constraint_keeps_out_is_shown_without_a_traceback(
    live: Holdfast, url: str, damage: str, command: str
) -> None:
    """Each of these was found by trying every value in every column."""
    work = live.task(name="work")(lambda: None)
    work.enqueue()
    drain(live)
    failing = live.task(name="failing", max_attempts=1)(lambda: 1 / 0)
    failing.enqueue()
    drain(live)
    live.store.statistics.fold()
    live.prune()
    work.enqueue()
    live.queue("unlogged", history=False).send(1)
    by_hand(url, damage)
    result = CliRunner().invoke(main, [*command.split(), "--db", url], prog_name="holdfast")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.output


def test_the_doctor_comes_to_an_end_with_names_of_payloads_that_are_not_utf8(path: Path) -> None:
    """Read as text, such a name is before itself, so that a look at what follows it would find it again for ever."""
    with Holdfast(path, blob_bytes=2000) as app:
        job = app.queue("inbox").send("x" * 5000)
    for name in ("CAST(x'FFFE' AS TEXT)", "x'FFFE'"):
        by_hand(str(path), f"UPDATE holdfast_jobs SET args_blob = {name} WHERE id = ?", job)  # noqa: S608
        found = CliRunner().invoke(main, ["doctor", "--db", str(path), "--deep", "--json"])
        assert '"BLOBS_MISSING"' in found.output, found.output


@pytest.mark.parametrize("name", ["CAST(x'FFFE' AS TEXT)", f"CAST('{'0' * 64}' AS BLOB)"])
def test_housekeeping_forgets_an_unused_payload_whose_name_is_none(app: Holdfast, url: str, name: str) -> None:
    by_hand(url, f"INSERT INTO holdfast_unused_blobs (name) VALUES ({name})")  # noqa: S608
    app.prune()  # comes to an end
    with closing(sqlite3.connect(url)) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_unused_blobs").fetchone() == (0,)


def test_a_negative_count_of_a_histogram_is_ignored(app: Holdfast, url: str) -> None:
    job = app.task(name="work")(lambda: None).enqueue()
    drain(app)
    app.store.statistics.fold()
    by_hand(url, "UPDATE holdfast_minutes SET n = ? WHERE measure IN ('wait', 'run')", -(2**63))
    (latency,) = app.observe.snapshot().latency
    assert job.refresh().status == "succeeded" and latency.wait.p95 is None


def test_the_doctor_names_a_task_of_ready_jobs_that_is_bytes(app: Holdfast, url: str) -> None:
    job = app.task(name="work")(lambda: None).enqueue()
    by_hand(url, "UPDATE holdfast_jobs SET task = x'FFFE' WHERE id = ?", job.id)
    found = CliRunner().invoke(main, ["doctor", "--db", url, "--json"])
    assert '"task":"\ufffd\ufffd"' in found.output.replace(" ", ""), found.output


def test_a_schedule_whose_name_is_not_utf8_comes_once(app: Holdfast, url: str) -> None:
    """Read as text, the name is before itself, so that a look at what follows it would find it again for ever."""

    @app.task
    def work() -> None: ...

    for name in ("damaged", "other"):
        app.schedules.add(name, "* * * * *", work)
    by_hand(url, "UPDATE holdfast_schedules SET name = CAST(x'FF' AS TEXT), next_at = 1 WHERE name = 'damaged'")
    assert [one.name for one in app.schedules.list()] == ["other", "\ufffd"]
    due, _ = app.store.schedules.due(["work"], [], app.store.clock.now(), "", 10)
    assert [one.name for one in due] == ["\ufffd"]
    assert app.store.schedules.due(["work"], [], app.store.clock.now(), due[-1].name, 10)[0] == []


def test_a_status_that_is_bytes_is_shown(app: Holdfast, url: str) -> None:
    first = app.task(name="work")(lambda: None).enqueue()
    second = app.task(name="more")(lambda: None).using(after=[first]).enqueue()
    by_hand(url, "UPDATE holdfast_jobs SET status = x'FFFE' WHERE id = ?", first.id)
    for command in (["show", str(first.id)], ["show", str(second.id)], ["explain", str(second.id)], ["jobs"]):
        shown = CliRunner().invoke(main, [*command, "--db", url], catch_exceptions=False)
        assert shown.exit_code == 0 and "\ufffd" in shown.output, (command, shown.output)


def test_a_count_that_is_null_counts_as_none(app: Holdfast, url: str) -> None:
    app.queue("inbox").send("x")
    app.store.statistics.fold()
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'n      INTEGER NOT NULL', 'n      INTEGER') "
            "WHERE name = 'holdfast_counts'"
        )
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        assert connection.execute("UPDATE holdfast_counts SET n = NULL").rowcount == 1
    assert app.observe.snapshot().counts.items == []
    found = CliRunner().invoke(main, ["doctor", "--db", url, "--deep", "--json"], catch_exceptions=False)
    assert '"COUNTS_WRONG"' in found.output
