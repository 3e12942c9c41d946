"""`holdfast health`: one line and an exit code from waiting jobs, failure rate and workers."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.fold import MINUTE
from support.child_processes import bystander, worker

Run = Callable[..., Result]


@pytest.fixture
def sql(app: Holdfast, url: str) -> Iterator[Callable[..., None]]:
    connection = sqlite3.connect(url, isolation_level=None)
    yield lambda statement, *values: connection.execute(statement, values).fetchall() and None
    connection.close()


def now() -> int:
    return time.time_ns() // 1000


def happened(sql: Callable[..., None], what: str, n: int, minutes_ago: int = 0, queue: str = "default") -> None:
    minute = now() // MINUTE - minutes_ago
    sql("INSERT INTO holdfast_minutes VALUES (?, ?, 'work', ?, 0, ?)", minute, queue, what, n)


def test_an_empty_database_without_a_worker_is_not_healthy(app: Holdfast, on: Run) -> None:
    result = on("health")
    assert (result.exit_code, result.stdout) == (1, "unhealthy: 0 workers, under 1\n")
    assert on("health", "--min-workers", "0").stdout == "healthy: nothing waits; no attempts; 0 workers\n"


def test_a_live_worker_makes_it_healthy_and_a_dead_one_does_not(app: Holdfast, on: Run, url: str) -> None:
    with bystander(worker(url)) as process:
        result = on("health")
        assert (result.exit_code, result.stdout) == (0, "healthy: nothing waits; no attempts; 1 worker\n")
        assert on("health", "--here").exit_code == 0
        assert on("health", "--min-workers", "2").exit_code == 1
        process.kill()
        process.wait()
        assert on("health").stdout == "unhealthy: 0 workers, under 1\n"


def test_workers_of_another_host_do_not_count_here(app: Holdfast, on: Run, url: str, sql: Any) -> None:
    with bystander(worker(url)):
        sql("UPDATE holdfast_workers SET host = 'elsewhere'")
        assert on("health").exit_code == 0
        assert on("health", "--here").stdout == "unhealthy: 0 workers on this host, under 1\n"


def test_a_job_that_is_ready_for_too_long(app: Holdfast, on: Run, sql: Any) -> None:
    app.queue("inbox").send_many([1, 2])
    assert on("health", "--min-workers", "0").exit_code == 0
    sql("UPDATE holdfast_jobs SET created_at = ?1, run_at = ?1 WHERE id = 2", now() - 90 * SECOND)
    late = on("health", "--min-workers", "0", "--max-oldest-ready", "60s")
    assert late.exit_code == 1 and late.stdout.startswith("unhealthy: job 2 has waited for 1m 3")
    assert on("health", "--min-workers", "0", "--max-oldest-ready", "2m").exit_code == 0
    assert on("health", "--min-workers", "0", "--max-oldest-ready", "60s", "--queue", "other").exit_code == 0


def test_a_starving_low_priority_job_is_unhealthy(app: Holdfast, on: Run, sql: Any) -> None:
    work = app.task(name="work")(lambda: None)
    starving = work.using(priority=-5).enqueue()
    work.using(priority=5).enqueue_many([{}] * 200)
    sql("UPDATE holdfast_jobs SET created_at = ?1, run_at = ?1 WHERE id = ?2", now() - 3600 * SECOND, starving.id)
    assert f"job {starving.id} has waited for 1h" in on("health", "--min-workers", "0").stdout


def test_a_scheduled_job_waits_from_its_due_time(app: Holdfast, on: Run, sql: Any) -> None:
    work = app.task(name="work")(lambda: None)
    job = work.using(delay=3600).enqueue()
    sql("UPDATE holdfast_jobs SET created_at = ?", now() - 86_400 * SECOND)
    assert on("health", "--min-workers", "0").stdout.startswith("healthy: nothing waits")
    sql("UPDATE holdfast_jobs SET run_at = ?", now() - 10 * SECOND)
    assert f"job {job.id} has waited longest, 1" in on("health", "--min-workers", "0").stdout
    sql("UPDATE holdfast_jobs SET status = 'ready'")
    assert f"job {job.id} has waited longest, 1" in on("health", "--min-workers", "0").stdout


def test_paused_queues_are_ignored(app: Holdfast, on: Run, sql: Any) -> None:
    app.queue("inbox").send(1)
    app.queue("inbox").send(1, delay=1)
    sql("UPDATE holdfast_jobs SET created_at = ?1, run_at = ?1", now() - 3600 * SECOND)
    app.queue("inbox").pause()
    assert on("health", "--min-workers", "0").exit_code == 0
    app.queue("inbox").resume()
    assert on("health", "--min-workers", "0").exit_code == 1


def test_too_many_failures(app: Holdfast, on: Run, sql: Any) -> None:
    happened(sql, "succeeded", 4)
    happened(sql, "failed", 2)
    happened(sql, "retry_scheduled", 3)
    happened(sql, "recovered", 1)
    happened(sql, "snoozed", 100)
    happened(sql, "failed", 1000, minutes_ago=10)
    health = json.loads(on("health", "--min-workers", "0", "--json").stdout)
    assert (health["failure_rate"], health["attempts"], health["failed_attempts"]) == (0.6, 10, 6)
    result = on("health", "--min-workers", "0")
    assert (result.exit_code, result.stdout) == (1, "unhealthy: 60% of 10 attempts failed, over 50%\n")
    assert on("health", "--min-workers", "0", "--max-failure-rate", "0.7").exit_code == 0
    assert on("health", "--min-workers", "0", "--min-attempts", "11").exit_code == 0
    assert "1,010" in on("health", "--min-workers", "0", "--window", "15m").stdout


def test_only_the_given_queues_are_checked(app: Holdfast, on: Run, sql: Any) -> None:
    happened(sql, "failed", 20, queue="flaky")
    happened(sql, "succeeded", 20, queue="mail")
    assert on("health", "--min-workers", "0", "--queue", "mail").exit_code == 0
    assert on("health", "--min-workers", "0", "-q", "flaky", "-q", "other").exit_code == 1


def test_health_as_json(app: Holdfast, on: Run) -> None:
    app.queue("inbox").send(1)
    result = on("health", "--json")
    found = json.loads(result.stdout)
    assert list(found) == [
        "healthy", "problems", "oldest_ready_age", "oldest_ready_id", "failure_rate", "attempts", "failed_attempts",
        "workers",
    ]  # fmt: skip
    assert (result.exit_code, found["healthy"], found["problems"]) == (1, False, ["0 workers, under 1"])
    assert found["oldest_ready_id"] == 1 and 0 <= found["oldest_ready_age"] < 60


def test_health_of_an_app(run: Run, module: Callable[..., Any], tmp_path: Path) -> None:
    module("tasks.py", f"from holdfast import Holdfast\napp = Holdfast({str(tmp_path / 'a.db')!r})\n")
    assert run("health", "--app", "tasks:app", "--min-workers", "0").exit_code == 0


@pytest.mark.parametrize("name", ["missing.db", "none/app.db", "notes.txt", "theirs.db", ""])
def test_an_unreadable_database_exits_with_3_and_one_line(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_bytes(b"Shopping: bread, milk\n" * 100)
    connection = sqlite3.connect(tmp_path / "theirs.db")
    connection.execute("CREATE TABLE orders (id)")
    connection.close()
    result = run("health", "--db", tmp_path / name)
    assert (result.exit_code, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")


def test_health_writes_nothing(app: Holdfast, on: Run, tmp_path: Path) -> None:
    app.close()
    before = sorted(file.name for file in tmp_path.iterdir())
    assert on("health").exit_code == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_health_imports_neither_rich_nor_the_app_nor_the_store(app: Holdfast, url: str) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom holdfast.cli import main\n"
        f"try: main(['health', '--db', {url!r}])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'asyncio', 'holdfast.store.sqlite.store', 'holdfast.app.app', 'holdfast.cli.top.top'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("rate", ["nan", "NaN", "inf", "-inf", "-0.1", "1.01", "half", ""])
def test_an_invalid_rate_is_refused(app: Holdfast, on: Run, rate: str) -> None:
    result = on("health", "--min-workers", "0", "--max-failure-rate", rate)
    assert result.exit_code == 2 and f"must be a number from 0 to 1, such as 0.05, got {rate!r}" in result.stderr


@pytest.mark.parametrize("rate", ["0", "1", ".5", "1e-3"])
def test_a_rate_is_a_number_from_0_to_1(app: Holdfast, on: Run, rate: str) -> None:
    assert on("health", "--min-workers", "0", "--max-failure-rate", rate).exit_code == 0
