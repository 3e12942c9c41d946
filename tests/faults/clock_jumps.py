"""Clock jumps: the wall clock is set forward and back by hours while workers, consumers and schedules use it.

Leases live on the boot clock, so none may end or be extended. No occurrence of a schedule fires twice, every job
ends, and no duration is negative or longer than the run.
"""

import random
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.clock import SECOND, SystemClock
from holdfast.store.schedules import FIRES_KEPT

from .report import Report

SHORT = 0.02
STEPS_TAKEN = 1500
HOUR = 3600 * SECOND
STEPS = (HOUR, -HOUR, 5 * HOUR, -5 * HOUR, 36 * HOUR, -36 * HOUR, 60 * SECOND, -60 * SECOND)
END_SECONDS = 120.0


class SteppedClock(SystemClock):
    """A clock whose wall time can be set. is_broken: the boot clock is set with it, as the wall clock would be."""

    def __init__(self, is_broken: bool = False) -> None:
        self.offset, self._is_broken = 0, is_broken

    def now(self) -> int:
        return super().now() + self.offset

    def boot_now(self) -> int:
        return super().boot_now() + (self.offset if self._is_broken else 0)


class Jumps:
    def __init__(self, database: Path, seed: int, is_broken: bool = False) -> None:
        self._database, self._random, self._clock = database, random.Random(seed), SteppedClock(is_broken)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._latest = 0

    def run(self, steps: int) -> None:
        began = time.monotonic()
        with Holdfast(self._database, clock=self._clock, durability="normal") as app:
            tasks = self._declare(app)
            worker = app.worker(concurrency=4, lease=60)
            thread = threading.Thread(target=worker.run)
            thread.start()
            held = app.queue("held")
            held.send("held")
            message = held.receive(visibility=3600)
            try:
                for _ in range(steps):
                    self._jump()
                    self._enqueue(tasks)
                    if held.receive(visibility=3600) is not None:
                        self.violations.append("a message was delivered again before its visibility had ended")
                        break
                self._clock.offset = self._latest + 2 * HOUR  # so that all that was delayed is due
                self._wait_for_end(app)
            finally:
                worker.stop()
                thread.join()
            if message is not None and not message.ack():
                self.violations.append("the lease of a message that was held all the time was lost")
        self._check(time.monotonic() - began)

    def _declare(self, app: Holdfast) -> dict[str, Any]:
        @app.task
        def quick() -> None: ...

        @app.task
        def slow() -> None:
            time.sleep(0.05)

        @app.cron("*/10 * * * *")
        def every_ten_minutes() -> None: ...

        @app.cron("0 * * * *", missed="catch_up", catch_up_limit=50)
        def hourly() -> None: ...

        return dict(app.tasks)

    def _jump(self) -> None:
        self._clock.offset += self._random.choice(STEPS)
        self._latest = max(self._latest, self._clock.offset)
        self.counts["steps of the clock"] += 1
        time.sleep(self._random.uniform(0.005, 0.03))

    def _enqueue(self, tasks: dict[str, Any]) -> None:
        for name in ("quick", "slow"):
            tasks[name].using(delay=self._random.choice([0, 0, 0.5, 3000])).enqueue()
            self.counts["jobs"] += 1

    def _wait_for_end(self, app: Holdfast) -> None:
        until = time.monotonic() + END_SECONDS
        while app.jobs.count(status=["ready", "scheduled", "running"], task=["quick", "slow"]):
            if time.monotonic() > until:
                self.violations.append("jobs are left at the end")
                return
            time.sleep(0.02)

    def _check(self, seconds: float) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            for what, question in {
                "an attempt was taken from its worker": "SELECT id FROM holdfast_events WHERE event = 'recovered'",
                # Each schedule remembers its last FIRES_KEPT occurrences.
                "an occurrence fired twice": f"""SELECT task, run_at FROM (
                    SELECT task, run_at, row_number() OVER (PARTITION BY task ORDER BY id) AS number
                    FROM holdfast_jobs WHERE task IN ('every_ten_minutes', 'hourly'))
                    GROUP BY task, run_at HAVING count(*) > 1 AND max(number) - min(number) < {FIRES_KEPT}""",  # noqa: S608
                "a duration is negative, or longer than the run": f"""SELECT id, ran FROM holdfast_events
                    WHERE task IS NOT NULL AND (ran < 0 OR ran > {seconds * SECOND:.0f} OR waited < 0)""",  # noqa: S608
                "a job ran more than once": "SELECT id FROM holdfast_jobs WHERE attempt - uncounted > 1",
            }.items():
                if rows := connection.execute(question).fetchmany(3):
                    self.violations.append(f"{what}: {rows}")
            (fired,) = connection.execute("SELECT count(*) FROM holdfast_fires").fetchone()
            self.counts["occurrences of schedules"] = fired


def run(report: Report) -> None:
    jumps = Jumps(report.folder / "clock.db", report.seed)
    jumps.run(report.scaled(STEPS_TAKEN, at_least=20))
    for what, number in jumps.counts.items():
        report.count(what, number)
    for what in jumps.violations:
        report.violation(what)
    report.require("steps of the clock", "jobs", "occurrences of schedules")
    control = Jumps(report.folder / "control.db", report.seed, is_broken=True)
    control.run(20)
    report.control("leases on the wall clock", bool(control.violations))
