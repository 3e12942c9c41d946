"""Compares what producers and consumers wrote down with what is in the database."""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from soundness import COUNTED, index_events_by_job

from support.child_processes import Member

OUTCOMES = {"ack": {"succeeded"}, "release": {"released", "failed"}}
"""How an attempt must have ended if it was settled so."""


@dataclass
class Report:
    acknowledged: int = 0  # sends that returned
    unacknowledged: int = 0  # messages of a producer that was killed before it could write the id down
    delivered: int = 0
    doubled: int = 0  # delivered more than once, each time because the attempt before had ended: legal
    redelivered_after_kill: int = 0
    redelivered_after_expiry: int = 0
    redelivered_after_release: int = 0
    recoveries: int = 0  # attempts that ended because their lease did
    succeeded: int = 0
    dead_letters: int = 0
    fenced: int = 0  # settles that were told that the lease was lost
    acks_cut_short: int = 0  # acknowledged, but killed before that was written down
    kills: int = 0
    kills_while_holding: int = 0
    # What must never happen: ids, or what was seen.
    lost: list[int] = field(default_factory=list)
    acked_twice: list[int] = field(default_factory=list)
    delivered_twice_as_one_attempt: list[tuple[int, int]] = field(default_factory=list)
    acked_but_not_succeeded: list[int] = field(default_factory=list)
    settled_for_another: list[tuple[int, int]] = field(default_factory=list)  # by an attempt that held it no more
    redelivered_without_reason: list[tuple[int, int]] = field(default_factory=list)
    above_max_attempts: list[int] = field(default_factory=list)
    unsound: list[object] = field(default_factory=list)

    def counters(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}

    def violations(self) -> dict[str, list[object]]:
        return {name: value for name, value in asdict(self).items() if isinstance(value, list) and value}


Attempt = tuple[int, int]  # the id of a message, and which delivery


@dataclass
class Logs:
    """What all members wrote down, the killed ones included."""

    sent: set[int] = field(default_factory=set)
    got: Counter[Attempt] = field(default_factory=Counter)
    acks: Counter[int] = field(default_factory=Counter)
    settled: dict[Attempt, str] = field(default_factory=dict)  # how, by those that were told that it was done
    cut_off: set[Attempt] = field(default_factory=set)  # held by a consumer when it was killed

    def read(self, member: Member, report: Report) -> None:
        holding: set[Attempt] = set()
        for verb, id, *values in member.lines():
            if verb == "sent":
                self.sent.add(int(id))
                continue
            attempt = int(id), int(values[0])
            if verb == "got":
                self.got[attempt] += 1
                holding.add(attempt)
                continue
            holding.discard(attempt)
            done = values[1] == "True"
            report.fenced += not done
            self.acks[int(id)] += done and verb == "ack"
            if done and verb in OUTCOMES:
                self.settled[attempt] = verb
        if member.killed:
            report.kills += 1
            report.kills_while_holding += bool(holding)
            self.cut_off |= holding


def check(database: Path, members: Iterable[Member]) -> Report:
    report = count(database, members)
    with closing(sqlite3.connect(database)) as connection:
        _check_soundness(connection, report)
    return report


def count(database: Path, members: Iterable[Member]) -> Report:
    """Also while they are at work: then what must never happen may seem to, but the counters are right."""
    report, logs = Report(), Logs()
    for member in members:
        logs.read(member, report)
    with closing(sqlite3.connect(database)) as connection:
        _check_messages(connection, logs, report)
        _check_attempts(connection, logs, report)
    return report


def _check_messages(connection: sqlite3.Connection, logs: Logs, report: Report) -> None:
    jobs = connection.execute("SELECT id, status, attempt, max_attempts FROM holdfast_jobs").fetchall()
    status = {id: state for id, state, _, _ in jobs}
    acks = logs.acks
    report.acknowledged, report.unacknowledged = len(logs.sent), len(status.keys() - logs.sent)
    report.succeeded = sum(state == "succeeded" for state in status.values())
    report.dead_letters = sum(state == "failed" for state in status.values())
    report.acks_cut_short = sum(state == "succeeded" and not acks[id] for id, state in status.items())
    report.lost = sorted(id for id in logs.sent if status.get(id) not in ("succeeded", "failed"))
    report.acked_twice = sorted(id for id, count in acks.items() if count > 1)
    report.acked_but_not_succeeded = sorted(id for id, n in acks.items() if n and status.get(id) != "succeeded")
    report.above_max_attempts = [id for id, _, attempt, most in jobs if attempt > most]


def _check_attempts(connection: sqlite3.Connection, logs: Logs, report: Report) -> None:
    rows = connection.execute("SELECT job_id, attempt, outcome, error_code FROM holdfast_attempts").fetchall()
    ends = {(id, attempt): outcome for id, attempt, outcome, _ in rows}
    deliveries = Counter(id for id, _ in logs.got)
    report.delivered = len(deliveries)
    report.doubled = sum(count > 1 for count in deliveries.values())
    report.recoveries = sum(code == "TIMEOUT:VISIBILITY" for *_, code in rows)
    report.delivered_twice_as_one_attempt = sorted(one for one, count in logs.got.items() if count > 1)
    report.settled_for_another = sorted(
        one for one, verb in logs.settled.items() if ends.get(one) not in OUTCOMES[verb]
    )
    for id, attempt in logs.got:
        if attempt == 1:
            continue
        before = (id, attempt - 1)
        outcome = ends.get(before)
        # One that was claimed and not even written down was cut off as well.
        killed = before in logs.cut_off or before not in logs.got
        report.redelivered_after_release += outcome == "released"
        report.redelivered_after_kill += outcome == "recovered" and killed
        report.redelivered_after_expiry += outcome == "recovered" and not killed
        if outcome not in ("released", "recovered"):
            report.redelivered_without_reason.append((id, attempt))


def _check_soundness(connection: sqlite3.Connection, report: Report) -> None:
    """Each of these finds nothing in a sound database."""
    index_events_by_job(connection)
    for question in (
        "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
        "SELECT * FROM pragma_foreign_key_check",
        "SELECT id FROM holdfast_jobs WHERE attempt <> (SELECT count(*) FROM holdfast_attempts WHERE job_id = id)",
        "SELECT job_id FROM holdfast_attempts WHERE outcome = 'running' OR finished_at IS NULL",
        """SELECT id FROM holdfast_jobs WHERE attempt <>
           (SELECT count(*) FROM holdfast_events WHERE job_id = holdfast_jobs.id AND event = 'claimed')""",
        """SELECT id FROM holdfast_jobs WHERE status <>
           (SELECT event FROM holdfast_events WHERE job_id = holdfast_jobs.id ORDER BY id DESC LIMIT 1)""",
        *COUNTED.values(),
    ):
        report.unsound += connection.execute(question).fetchmany(5)
