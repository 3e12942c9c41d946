"""Producers and workers, killed at random with kill -9, stopped past their leases, and cancelled under their hands.

Nothing that was acknowledged is lost, no terminal state is left again, and no job has more attempts than it may.
Chains end, what waits is released once, a batch calls back once, and effects agree with the jobs they came from.
"""

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from soundness import LAST, count, unsound_however_folded
from storm_worker import LEASE_SECONDS

from holdfast import Holdfast
from support.child_processes import Crew, Member
from support.effort import a_part, storm_seconds

SECONDS = storm_seconds(4)
PRODUCERS, WORKERS = 2, 4
ENOUGH_RECOVERIES = a_part(20, 100)
ENOUGH_JOBS = 100
LOST = "outcome = 'lost'"
WITHOUT_EFFECT = ("quick", "slow", "waiting", "flaky", "doubtful", "apart", "link")
LONGEST_OVERTIME_SECONDS = 600  # on a machine that is busy with other things
LONGEST_END_SECONDS = 300

OUTCOMES = {
    "succeeded": {"succeeded"},
    "retry_scheduled": {"retry_scheduled", "failed"},
    "failed": {"failed"},
    "snoozed": {"snoozed"},
    "interrupted": {"interrupted"},
}
"""How an attempt must be recorded if its worker was told that it had settled it so."""


@dataclass
class Report:
    acknowledged: int = 0
    ran: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    recoveries: int = 0  # attempts of workers that died
    lease_ends: int = 0  # attempts of workers that were stopped for too long
    fenced: int = 0  # settlements that were refused: the attempt was another's by then
    refused: int = 0  # completions that were
    kills: int = 0
    stops: int = 0
    graphs: Counter[str] = field(default_factory=Counter)
    # What must never happen.
    lost: list[int] = field(default_factory=list)
    reverted: list[object] = field(default_factory=list)
    above_max_attempts: list[object] = field(default_factory=list)
    ran_twice: list[object] = field(default_factory=list)
    settled_otherwise: list[object] = field(default_factory=list)
    unsound: dict[str, list[object]] = field(default_factory=dict)

    def counters(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if isinstance(value, int)} | self.graphs

    def violations(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if isinstance(value, list) and value} | self.unsound


def test_a_storm_of_kills_loses_no_job_and_reverts_no_end(tmp_path: Path) -> None:
    database = tmp_path / "storm.db"
    report = Report()
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE effects (job_id INTEGER NOT NULL, attempt INTEGER NOT NULL)")
        for role, number in (("storm_producer", PRODUCERS), ("storm_worker", WORKERS)):
            for _ in range(number):
                crew.start(role)
        storm(app, crew, database, report)
        for member in crew.living():
            crew.kill(member)
        crew.start("storm_worker")
        wait_until_all_has_ended(app, crew, database)
        complaints = crew.complaints()
        members = list(crew.members)
    check(database, members, report)
    print(f"\n{SECONDS:g} s of kills:", json.dumps(report.counters()))
    assert complaints == []
    assert report.violations() == {}
    # If the storm was a calm, it has shown nothing.
    assert report.acknowledged > ENOUGH_JOBS and report.succeeded > ENOUGH_JOBS
    assert report.recoveries >= ENOUGH_RECOVERIES
    assert report.fenced + report.refused > 0
    assert all(report.graphs.values())


def storm(app: Holdfast, crew: Crew, database: Path, report: Report) -> None:
    until = time.monotonic() + SECONDS
    stopped: dict[float, Member] = {}
    resumed: dict[float, Member] = {}  # with some time to find out what they have lost
    while time.monotonic() < until or (
        time.monotonic() < until + LONGEST_OVERTIME_SECONDS and not is_enough(database, crew)
    ):
        time.sleep(random.uniform(0.02, 0.15))
        assert not crew.complaints(), crew.complaints()
        for since, member in list(stopped.items()):
            if time.monotonic() - since > LEASE_SECONDS * 1.5:
                os.kill(member.process.pid, signal.SIGCONT)
                resumed[time.monotonic()] = stopped.pop(since)
        resumed = {since: one for since, one in resumed.items() if time.monotonic() - since < LEASE_SECONDS / 2}
        spared = [*stopped.values(), *resumed.values()]
        at_work = [one for one in crew.living() if one.is_at_work() and one not in spared]
        if not stopped:  # one that was stopped may hold the write lock
            cancel_one_that_runs(app)
        if not at_work:
            continue
        victim = random.choice(at_work)
        if victim.role == "storm_worker" and not stopped and random.random() < 0.3:
            os.kill(victim.process.pid, signal.SIGSTOP)
            stopped[time.monotonic()] = victim
            report.stops += 1
        else:
            crew.kill(victim)
            crew.start(victim.role)


def cancel_one_that_runs(app: Holdfast) -> None:
    if random.random() < 0.2:
        for job in app.jobs.list(status="running", limit=1):
            app.jobs.cancel(job.id, reason="the storm")


def is_enough(database: Path, crew: Crew) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        recoveries, graphs = count(connection, "holdfast_attempts", LOST), count_graphs(connection)
        succeeded = count(connection, "holdfast_jobs", "status = 'succeeded'")
    sent = sum(len(one.lines()) for one in crew.members if one.role == "storm_producer")
    logs = [one.log for one in crew.members if one.role == "storm_worker" and one.log.exists()]
    fenced = any(word in log.read_bytes() for log in logs for word in (b"lost ", b"refused "))
    enough = min(sent, succeeded) > ENOUGH_JOBS and recoveries >= ENOUGH_RECOVERIES
    return enough and fenced and all(graphs.values())


def wait_until_all_has_ended(app: Holdfast, crew: Crew, database: Path) -> None:
    until = time.monotonic() + LONGEST_END_SECONDS
    with closing(sqlite3.connect(database)) as connection:
        while True:
            seen = app.store.commits_seen()
            # In one look: an end that nobody has worked off may make something ready.
            left = connection.execute(
                """SELECT (SELECT count(*) FROM holdfast_endings),
                   (SELECT count(*) FROM holdfast_jobs WHERE status IN ('scheduled', 'ready', 'running')),
                   (SELECT count(*) FROM holdfast_batches WHERE sealed_at IS NULL)"""
            ).fetchone()
            if left == (0, 0, 0):
                return
            assert not crew.complaints(), crew.complaints()
            assert time.monotonic() < until, f"not ended after {LONGEST_END_SECONDS} s: {left}"
            app.store.wait_for_commit(seen, 1)


def check(database: Path, members: list[Member], report: Report) -> None:
    sent: set[int] = set()
    ran: Counter[tuple[int, int]] = Counter()
    told: dict[tuple[int, int], str] = {}
    for member in members:
        report.kills += member.killed
        for verb, id, *rest in member.lines():
            if verb == "sent":
                sent.add(int(id))
            elif verb == "ran":
                ran[int(id), int(rest[0])] += 1
            elif verb in ("lost", "refused"):
                report.fenced += verb == "lost"
                report.refused += verb == "refused"
            elif verb in OUTCOMES:
                told[int(id), int(rest[0])] = verb
    report.acknowledged, report.ran = len(sent), sum(ran.values())
    report.ran_twice = [one for one, count in ran.items() if count > 1]
    report.unsound = unsound_however_folded(database, WITHOUT_EFFECT)
    with closing(sqlite3.connect(database)) as connection:
        compare(connection, sent, told, report)
        report.graphs = count_graphs(connection)


def compare(connection: sqlite3.Connection, sent: set[int], told: dict[tuple[int, int], str], report: Report) -> None:
    jobs = connection.execute("SELECT id, status, attempt, max_attempts FROM holdfast_jobs").fetchall()
    status = {id: state for id, state, *_ in jobs}
    ended = Counter(status.values())
    report.succeeded, report.failed, report.cancelled = ended["succeeded"], ended["failed"], ended["cancelled"]
    # What is blocked to the end must be so for a reason, which is one of the questions.
    report.lost = sorted(id for id in sent if status.get(id) not in ("succeeded", "failed", "cancelled", "blocked"))
    report.above_max_attempts = [job for job in jobs if job[2] > job[3]]
    attempts = connection.execute("SELECT job_id, attempt, outcome, error_code FROM holdfast_attempts").fetchall()
    ends = {(id, attempt): outcome for id, attempt, outcome, _ in attempts}
    report.recoveries = sum(outcome == "lost" for outcome in ends.values())
    report.lease_ends = sum(code == "TIMEOUT:LEASE" for *_, code in attempts)
    report.settled_otherwise = [
        (one, verb, ends.get(one)) for one, verb in told.items() if ends.get(one) not in OUTCOMES[verb]
    ]
    report.reverted = connection.execute(
        """SELECT job_id, event FROM holdfast_events AS later WHERE EXISTS (
               SELECT 1 FROM holdfast_events AS ending WHERE ending.job_id = later.job_id AND ending.id < later.id
               AND ending.event IN ('succeeded', 'failed', 'cancelled'))"""
    ).fetchall()
    if number := count(connection, "holdfast_attempts", f"{LOST} AND error_code <> 'INTERNAL:WORKER_LOST'"):
        report.unsound["a lost attempt with another error"] = [number]


def count_graphs(connection: sqlite3.Connection) -> Counter[str]:
    by_blocker = "attempt = 0 AND status IN ('failed', 'cancelled') AND on_blocker_failure IN ('fail', 'cancel')"
    return Counter(
        effects=count(connection, "effects"),
        continuations=count(connection, "holdfast_jobs", "chain_id IS NOT NULL"),
        released=count(connection, "holdfast_events", "event = 'unblocked'"),
        held_by_what_failed=count(connection, "holdfast_blockers AS edge", f"outcome IS NULL AND {LAST} = 'failed'"),
        ended_by_what_failed=count(connection, "holdfast_jobs", by_blocker),
        batches_done=count(connection, "holdfast_batches", "done_job_id IS NOT NULL"),
        batches_well_done=count(connection, "holdfast_batches", "success_job_id IS NOT NULL"),
    )
