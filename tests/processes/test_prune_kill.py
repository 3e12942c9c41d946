"""kill -9 in the middle of pruning: run it again, and all is as if nothing had happened."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from worker_processes import Processes

from holdfast import Holdfast, Retention

JOBS = 6000
KILLS = 3
ROWS = 250  # of one step: so few that no run comes to its end, however fast the machine is


def fill(app: Holdfast, database: Path) -> None:
    """Ended jobs with a history, some of them in chains and waited for; and some that have not ended."""
    now = app.clock.now()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs)
            INSERT INTO holdfast_jobs (task, status, finished_at, attempt, chain_id, chain_index, continued, awaited)
            SELECT 'work', CASE i % 3 WHEN 0 THEN 'failed' ELSE 'succeeded' END, :now - 1000000 + i, 1,
                   CASE WHEN i % 7 = 2 THEN i - 1 END, i % 7 = 2, i % 7 = 1 AND i < :jobs, i % 7 = 4
            FROM n""",
            {"jobs": JOBS, "now": now},
        )
        connection.execute(
            """INSERT INTO holdfast_events (job_id, attempt, at, claimed_at, event)
            SELECT id, 1, finished_at, finished_at, status FROM holdfast_jobs"""
        )
        connection.execute(
            "INSERT INTO holdfast_blockers SELECT id, 0, id - 1, 'succeeded' FROM holdfast_jobs WHERE id % 7 = 5"
        )
        connection.execute("INSERT INTO holdfast_jobs (task) VALUES ('work'), ('work')")


def read(archive: Path) -> list[int]:
    with gzip.open(archive, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["id"] for line in lines]


@pytest.mark.parametrize("after", [1, 3, 8])
def test_a_killed_run_is_finished_by_the_next_and_no_job_is_in_neither(processes: Processes, after: int) -> None:
    archive = processes.folder / "jobs.jsonl.gz"
    fill(processes.app, processes.database)
    for _ in range(KILLS):
        pruner = processes.crew.start("pruner", str(archive), str(after), str(ROWS))
        for _ in range(after):
            assert pruner.hear().startswith("gone"), processes.crew.complaints()
        pruner.say("go")  # the kill comes while it does the next step, or right before or after it
        processes.crew.kill(pruner)
    left = {job for job in range(1, JOBS + 1) if processes.app.store.jobs.get(job) is not None}
    assert 0 < len(left) < JOBS
    with closing(sqlite3.connect(processes.database)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        halves = """SELECT id FROM holdfast_jobs AS job WHERE continued
            AND NOT EXISTS (SELECT 1 FROM holdfast_jobs WHERE chain_id = job.id)"""
        assert connection.execute(halves).fetchall() == [], "a chain goes as a whole"
    assert processes.app.store.pruning.state().pid is None, "nobody is at it any more"

    processes.app.prune(retention=Retention(succeeded=0, failed=0, cancelled=0), archive=archive, hurry=True)
    assert [job.status for job in processes.app.jobs.list()] == ["ready", "ready"]
    assert processes.app.observe.counts().by_status == {"ready": 2}
    assert processes.app.store.statistics.totals().outcomes == {} and processes.app.check().of("COUNTS") is not None
    assert set(read(archive)) == set(range(1, JOBS + 1)), "twice, perhaps, but never in neither"
    told = [event.detail for event in processes.app.observe.last_events(limit=100) if event.event == "pruned"]
    counts = sum(one.get("succeeded", 0) + one.get("failed", 0) for one in told)
    assert counts == JOBS, "what the dead had deleted is in the log too"
    assert [one.get("interrupted", False) for one in told].count(True) >= 1
