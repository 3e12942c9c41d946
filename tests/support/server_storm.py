"""Storms on a PostgreSQL server: producers and workers, and what is done to them and to the server meanwhile.

What must never happen is asked at the end: an acknowledged job that is gone or there twice, a job that left a
terminal state, an attempt that was given out twice, an effect that does not agree with its job.
"""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast

from .child_processes import Crew, Member
from .postgres_server import PostgresServer, new_folder

LONGEST_SECONDS = 600.0
OWN = "pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
OUTCOMES = {"succeeded": {"succeeded"}, "retry_scheduled": {"retry_scheduled", "failed"}, "failed": {"failed"}}
REVERTED = """SELECT job_id, event FROM holdfast_events AS later WHERE EXISTS (
    SELECT 1 FROM holdfast_events AS ending WHERE ending.job_id = later.job_id AND ending.id < later.id
    AND ending.event IN ('succeeded', 'failed', 'cancelled'))"""
TWICE_CLAIMED = """SELECT job_id, attempt, count(*) FROM holdfast_events WHERE event = 'claimed'
    GROUP BY 1, 2 HAVING count(*) > 1"""
EFFECTS = """SELECT id, (SELECT count(*) FROM effects WHERE job_id = id) FROM holdfast_jobs WHERE task = 'effect'
    AND (SELECT count(*) FROM effects WHERE job_id = id) <> (status = 'succeeded')::int"""


@dataclass
class StormReport:
    """What was hit, and what must not have happened."""

    hits: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What producers were told, by the name of the exception."""
    acknowledged: int = 0
    doubts: int = 0
    succeeded: int = 0
    recovered: int = 0
    lost_acknowledged: list[Any] = field(default_factory=list)
    stored_twice: list[Any] = field(default_factory=list)
    reverted: list[Any] = field(default_factory=list)
    double_leases: list[Any] = field(default_factory=list)
    settled_otherwise: list[Any] = field(default_factory=list)
    wrong_effects: list[Any] = field(default_factory=list)

    def counters(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        return dict(self.hits) | plain | {"errors": dict(self.errors)}

    def violations(self) -> dict[str, Any]:
        return {name: value[:5] for name, value in vars(self).items() if isinstance(value, list) and value}


class Storm:
    """A server with a database, producers and workers on it."""

    def __init__(self, folder: Path, server: PostgresServer, producers: int, workers: int) -> None:
        self.server, self.report = server, StormReport()
        self.spare: PostgresServer | None = None  # a synchronous standby
        self.url = f"postgresql:///postgres?host={server.folder}&user=holdfast"
        self._prepare()
        self.crew = Crew(folder, self.url)
        self._names = 0
        for _ in range(producers):
            self.start("server_storm_producer")
        for _ in range(workers):
            self.start("server_storm_worker")

    def _prepare(self) -> None:
        Holdfast(self.url).close()
        self.sql("CREATE TABLE IF NOT EXISTS effects (job_id bigint NOT NULL, attempt bigint NOT NULL)")

    def use_standby(self) -> None:
        """Give the server a synchronous standby, and the programs that start from now on both hosts."""
        self.spare = self._standby()
        self.crew._database = f"postgresql:///postgres?host={self.server.folder},{self.spare.folder}&user=holdfast"

    def _standby(self, folder: Path | None = None) -> PostgresServer:
        spare = self.server.copy_to(folder or new_folder())
        spare.start()
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        wait_for(lambda: self.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        return spare

    def start(self, role: str) -> Member:
        self._names += 1
        return self.crew.start(role, *([f"p{self._names}"] if role == "server_storm_producer" else []))

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    # --- hits ---

    def terminate(self) -> None:
        """End some sessions, or all of them."""
        share = random.choice([0.2, 0.5, 1.0])
        rows = self.sql(f"SELECT pg_terminate_backend(pid) FROM {OWN} AND random() < {share}")  # noqa: S608
        self.report.hits["sessions terminated"] += len(rows)

    def cancel(self) -> None:
        """Cancel what some sessions do."""
        rows = self.sql(f"SELECT pg_cancel_backend(pid) FROM {OWN} AND state = 'active'")  # noqa: S608
        self.report.hits["statements cancelled"] += len(rows)

    def crash(self) -> None:
        """Let the server die at once, as pg_ctl stop -m immediate does, and start it again."""
        self.server.stop(signal.SIGQUIT)
        self.server.start()
        self.report.hits["immediate crashes"] += 1

    def restart(self) -> None:
        """Shut the server down as pg_ctl restart does."""
        self.server.stop(signal.SIGINT)
        self.server.start()
        self.report.hits["restarts"] += 1

    def kill_a_session(self) -> None:
        """kill -9 of one process of the server: all others end, and it recovers by itself."""
        rows = self.sql(f"SELECT pid FROM {OWN} ORDER BY random() LIMIT 1")  # noqa: S608
        if rows:
            with suppress(ProcessLookupError):
                os.kill(rows[0][0], signal.SIGKILL)
                self.report.hits["sessions killed with -9"] += 1
            wait_for(self._answers)

    def kill_a_program(self) -> None:
        """kill -9 of a worker or a producer, which is replaced."""
        at_work = [one for one in self.crew.living() if one.is_at_work()]
        if at_work:
            victim = random.choice(at_work)
            self.crew.kill(victim)
            self.start(victim.role)
            self.report.hits[f"{victim.role.rpartition('_')[2]}s killed"] += 1

    def fail_over(self) -> None:
        """The primary dies, its synchronous standby is promoted, and the old one becomes the standby."""
        assert self.spare is not None
        old, self.server = self.server, self.spare
        old.stop(signal.SIGQUIT)
        self.sql("SELECT pg_promote()")
        wait_for(lambda: self.sql("SELECT NOT pg_is_in_recovery()") == [(True,)])
        self.report.hits["promotions"] += 1
        shutil.rmtree(old.folder / "data")
        self.spare = self._standby(old.folder)

    def _answers(self) -> bool:
        try:
            self.sql("SELECT 1")
        except psycopg.Error:
            return False
        return True

    # --- the run ---

    def rage(self, seconds: float, hits: list[Callable[[], None]], is_enough: Callable[[StormReport], bool]) -> None:
        """Hit for some seconds, and then on until enough was hit."""
        begun = last_hit = time.monotonic()
        wait_for(lambda: all(one.is_at_work() for one in self.crew.living()))
        while (now := time.monotonic()) - begun < seconds or not (
            is_enough(self.report) and self._acknowledged() > 50
        ):
            assert now - last_hit < LONGEST_SECONDS, "nothing was hit any more"
            before = self.report.hits.total()
            time.sleep(random.uniform(0.05, 0.4))
            assert not self.crew.complaints(), self.crew.complaints()
            with suppress(psycopg.Error):  # of this connection, which is hit as well
                random.choice(hits)()
            if self.report.hits.total() > before:
                last_hit = time.monotonic()
            if random.random() < 0.3:
                self._wait_for_work()

    def _wait_for_work(self) -> None:
        """Let something be acknowledged, so that what is hit is at work."""
        before = self._acknowledged()
        wait_for(lambda: self._acknowledged() > before + 3, 30, fail=False)

    def _acknowledged(self) -> int:
        return sum(len(one.lines()) for one in self.crew.members if one.role == "server_storm_producer")

    def end(self) -> StormReport:
        """Let everything end, and ask what must not have happened."""
        for member in self.crew.living("server_storm_producer"):
            self.crew.stop(member)
        unfinished = "SELECT count(*) FROM holdfast_jobs WHERE status IN ('ready', 'running', 'scheduled')"
        wait_for(lambda: self.sql(unfinished) == [(0,)], LONGEST_SECONDS)
        time.sleep(0.2)  # so that the last settlements are written down
        for member in self.crew.living():
            self.crew.stop(member)
        self._check()
        print("\n" + json.dumps(self.report.counters()), flush=True)
        return self.report

    def _check(self) -> None:
        report = self.report
        sent: dict[str, int] = {}
        ran: Counter[tuple[int, int]] = Counter()
        told: dict[tuple[int, int], str] = {}
        for verb, *rest in (line for member in self.crew.members for line in member.lines()):
            if verb == "sent":
                sent[rest[1]] = int(rest[0])
            elif verb == "error":
                report.errors[rest[0]] += 1
            elif verb == "doubt":
                report.doubts += 1
            elif verb == "ran":
                ran[int(rest[0]), int(rest[1])] += 1
            elif verb in OUTCOMES:
                told[int(rest[0]), int(rest[1])] = verb
        jobs = self.sql("SELECT args::json->>0, args::json->>'token', id, status, attempt FROM holdfast_jobs")
        status = {id: state for *_, id, state, _ in jobs}
        tokens = Counter(second or first for first, second, *_ in jobs if second or first)
        report.acknowledged = len(sent)
        report.succeeded = Counter(status.values())["succeeded"]
        report.lost_acknowledged = [one for one in sent.items() if status.get(one[1]) != "succeeded"]
        report.stored_twice = [token for token, count in tokens.items() if count > 1]
        report.reverted = self.sql(REVERTED)
        report.double_leases = self.sql(TWICE_CLAIMED) + [one for one, count in ran.items() if count > 1]
        ends = {
            (id, attempt): outcome
            for id, attempt, outcome in self.sql("SELECT job_id, attempt, outcome FROM holdfast_attempts")
        }
        report.settled_otherwise = [
            (one, verb, ends.get(one)) for one, verb in told.items() if ends.get(one) not in OUTCOMES[verb]
        ]
        report.wrong_effects = self.sql(EFFECTS)
        ((report.recovered,),) = self.sql("SELECT count(*) FROM holdfast_events WHERE event = 'recovered'")

    def close(self) -> None:
        for member in self.crew.living():
            self.crew.stop(member)
        for server in (self.server, self.spare):
            if server is not None:
                server.stop()
                shutil.rmtree(server.folder, ignore_errors=True)


def wait_for(look: Callable[[], Any], seconds: float = 120.0, fail: bool = True) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(psycopg.Error):
            if look():
                return True
        time.sleep(0.03)
    assert not fail, f"still not true after {seconds:g} s: {look}"
    return False
