"""The lease storm: workers are killed and stopped at random, and a checker that knows only their own logs looks
whether two attempts of one job ever held it at once.

Each worker writes when it claims, and each handler when it begins and ends, by the boot clock, which all processes
share. The storm writes when it kills and stops a process. An attempt holds its job until its handler ends, or until
its worker is killed or stopped after the claim. No later attempt of the job may begin before. What Holdfast stores is
not asked.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Holdfast
from holdfast.clock import boot_ns
from support.child_processes import SCRIPTS

from .report import Report

SHORT = 0.05
SECONDS = 120
WORKERS = 3
LEASE_SECONDS = 1.0
NEVER = 2**63
KINDS = {"sleep_a_little": 6, "sleep_later": 4, "sleep_apart": 2}
END_SECONDS = 240.0
OVERTIME_SECONDS = 120.0
ENOUGH = 2


@dataclass
class Attempt:
    job: int
    number: int
    worker: int
    claimed: int  # before the claim, so that it may be too early
    begun: int
    ended: int = NEVER


@dataclass
class Logs:
    """What the workers wrote down, and when the storm killed or stopped each of them."""

    attempts: list[Attempt] = field(default_factory=list)
    hits: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by worker

    def holds_until(self, one: Attempt) -> int:
        """Return until when the attempt has certainly held its job."""
        return min([one.ended, *(at for at in self.hits[one.worker] if at >= one.claimed)])

    def violations(self) -> list[str]:
        by_job: dict[int, list[Attempt]] = defaultdict(list)
        for one in self.attempts:
            by_job[one.job].append(one)
        found = []
        for job, attempts in by_job.items():
            numbers = sorted(one.number for one in attempts)
            if len(numbers) != len(set(numbers)):
                found.append(f"job {job} has the attempts {numbers}")
            for one in attempts:
                for later in attempts:
                    if one.number < later.number and later.begun < self.holds_until(one):
                        found.append(f"attempt {later.number} of job {job} began while attempt {one.number} held it")
        return found


def read_logs(folder: Path, hits: dict[int, list[int]]) -> Logs:
    logs = Logs(hits=hits)
    for file in folder.glob("worker-*.log"):
        claimed: dict[tuple[int, int], int] = {}
        begun: dict[tuple[int, int], Attempt] = {}
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else it was killed in the middle of it
                verb, *numbers = line.split()
                job, number, at = map(int, numbers)
                if verb == "claim":
                    claimed[job, number] = at
                elif verb == "begin":
                    one = Attempt(job, number, int(file.stem.split("-")[1]), claimed[job, number], at)
                    begun[job, number] = one
                    logs.attempts.append(one)
                else:
                    begun[job, number].ended = at
    return logs


class Storm:
    def __init__(self, folder: Path, seed: int, fault: str = "") -> None:
        self._folder, self._random, self._fault = folder, random.Random(seed), fault
        self.database = folder / "storm.db"
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._count = 0
        self.hits: dict[int, list[int]] = defaultdict(list)
        self.counts: dict[str, int] = defaultdict(int)

    def run(self, seconds: float) -> Logs:
        with Holdfast(self.database, durability="normal") as app:
            for _ in range(WORKERS):
                self._start()
            try:
                until = time.monotonic() + seconds
                while time.monotonic() < until or self._is_calm(until):
                    self._enqueue(app)
                    time.sleep(self._random.uniform(0.02, 0.15))
                    if at_work := self._at_work():
                        (self._kill if self._random.random() < 0.5 else self._stop)(self._random.choice(at_work))
                self._wait_for_end(app)
            finally:
                for worker in self._workers.values():
                    worker.kill()
                    worker.wait()
        return self.logs()

    def _start(self) -> None:
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        with open(self._folder / f"worker-{self._count}.stderr", "wb") as stderr:
            self._workers[self._count] = subprocess.Popen(
                [sys.executable, "-c", "from lease_storm_tasks import main; main()"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ
                | {
                    "PYTHONPATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                    "STORM_DATABASE": str(self.database),
                    "STORM_LOG": str(log),
                    "STORM_LEASE": str(LEASE_SECONDS),
                    "STORM_FAULT": self._fault,
                },
            )

    def _enqueue(self, app: Holdfast) -> None:
        with app.transaction() as tx:
            for task in self._random.choices(list(KINDS), list(KINDS.values()), k=3):
                tx.execute("INSERT INTO holdfast_jobs (task, max_attempts) VALUES (?, 1000)", (task,))

    def _at_work(self) -> list[int]:
        return [number for number in self._workers if (self._folder / f"worker-{number}.log").exists()]

    def _is_calm(self, until: float) -> bool:
        """Return whether nothing was cut off so far, as on a busy machine, and there is time for more.

        With a fault: whether the fault has done no harm so far.
        """
        if time.monotonic() > until + OVERTIME_SECONDS:
            return False
        if self._fault:
            return not self.logs().violations()
        return min(self.counts["kills"], self.counts["stops"]) < ENOUGH or not any(
            self.logs().holds_until(one) < one.ended for one in self.logs().attempts
        )

    def logs(self) -> Logs:
        return read_logs(self._folder, self.hits)

    def _kill(self, number: int) -> None:
        self.hits[number].append(boot_ns())  # before the signal: it may act on a lease until then
        worker = self._workers.pop(number)
        worker.kill()
        worker.wait()
        self.counts["kills"] += 1
        self._start()

    def _stop(self, number: int) -> None:
        self.hits[number].append(boot_ns())
        pid = self._workers[number].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._random.choice([0.05, 0.3, LEASE_SECONDS * 1.5, LEASE_SECONDS * 2]))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self.counts["stops"] += 1

    def _wait_for_end(self, app: Holdfast) -> None:
        until = time.monotonic() + END_SECONDS
        while app.jobs.count(status=["ready", "scheduled", "running"]):
            if time.monotonic() > until:
                raise TimeoutError("jobs are left at the end of the storm")
            time.sleep(0.05)


def run(report: Report) -> None:
    storm = Storm(report.folder, report.seed)
    logs = storm.run(max(4.0, SECONDS * report.effort))
    for what, number in storm.counts.items():
        report.count(what, number)
    report.count("attempts", len(logs.attempts))
    report.count(
        "attempts cut off by a kill or a stop", sum(logs.holds_until(one) < one.ended for one in logs.attempts)
    )
    ends = [one for one in logs.attempts if one.ended != NEVER]
    report.count(
        "handlers that ended after another attempt had begun",
        sum(
            any(other.job == one.job and one.begun < other.begun < one.ended for other in logs.attempts)
            for one in ends
        ),
    )
    # Counted, and no violation: a worker that is stopped between asking for its lease and calling the handler cannot
    # know. What such an attempt writes is fenced.
    report.count(
        "handlers that began after a later attempt",
        sum(
            any(
                other.job == one.job and other.number > one.number and other.begun < one.begun
                for other in logs.attempts
            )
            for one in logs.attempts
        ),
    )
    for what in logs.violations():
        report.violation(what)
    report.require("kills", "stops", "attempts cut off by a kill or a stop")
    folder = report.folder / "control"
    folder.mkdir()
    broken = Storm(folder, report.seed, fault="every worker looks dead").run(2.0)
    report.control("workers take the jobs of workers that live", bool(broken.violations()))
