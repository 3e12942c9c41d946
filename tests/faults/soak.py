"""The soak: mixed load with pruning, vacuum, cron, kills and backups beside it, for an hour: `make soak MINUTES=60`.

Memory, open files, the size of the database and of its log, and the latency must be flat: see `growth`. Each backup
must open and be consistent in itself.

Of memory, there is what a process holds (objects of Python, bytes from malloc) and what the system has given it. The
second grows longer: malloc keeps freed memory, and the peaks of several threads fall together only now and then.
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.errors import HoldfastError
from support.child_processes import SCRIPTS

SAMPLE_SECONDS = 2.0
BACKUP_SECONDS = 20.0
VACUUM_SECONDS = 15.0
PROBE_SECONDS = 0.1
PROBE_TIMEOUT = 300
ROLES = {"work": 2, "produce": 1, "consume": 1}
WARM_UP = 0.25  # of the samples: caches fill, and the first rows must grow old before they are pruned
PARTS = 4  # the rest is cut into so many parts, whose medians are compared


@dataclass(frozen=True)
class Tolerance:
    """How much larger the last part may be than the first: by this factor, and by so much in addition."""

    factor: float
    plus: float


TOLERANCES = {
    "worker_bytes": Tolerance(1.10, 4e6),
    "program_bytes": Tolerance(1.10, 4e6),
    "worker_blocks": Tolerance(1.05, 5000),
    "worker_malloc_bytes": Tolerance(1.05, 5e5),
    "program_blocks": Tolerance(1.05, 5000),
    "program_malloc_bytes": Tolerance(1.05, 5e5),
    "worker_files": Tolerance(1.1, 2),
    "program_files": Tolerance(1.1, 2),
    "database_bytes": Tolerance(1.15, 1e6),
    "log_bytes": Tolerance(1.5, 4e6),
    "jobs": Tolerance(1.25, 500),
    "latency_ms": Tolerance(1.5, 5),
}


def growth(samples: Sequence[dict[str, float]]) -> dict[str, str]:
    """Return what is not flat, in words, by name.

    The first quarter of the samples is the warm-up. The rest is cut into four parts of equal length. A figure is flat
    if the median of the last part is at most the median of the first, times a factor, plus an amount (`TOLERANCES`).
    The median of a part does not depend on single peaks, such as those after a kill. A figure also counts as flat if
    its median does not rise from each part to the next: a leak does, noise does not.
    """
    found: dict[str, str] = {}
    for name, allowed in TOLERANCES.items():
        parts = medians(samples, name)
        if not parts:
            return {"samples": f"{len(samples)} are too few"}
        rises = all(later > earlier for earlier, later in pairwise(parts))
        if rises and parts[-1] > parts[0] * allowed.factor + allowed.plus:
            found[name] = " -> ".join(f"{median:,.0f}" for median in parts)
    return found


def medians(samples: Sequence[dict[str, float]], name: str) -> list[float]:
    """Return the median of a figure in each part of the run after the warm-up; none if there are too few samples."""
    warm = samples[int(len(samples) * WARM_UP) :]
    size = len(warm) // PARTS
    parts = [warm[part * size : (part + 1) * size] for part in range(PARTS)] if size else []
    return [statistics.median(one[name] for one in part) for part in parts]


@dataclass
class Report:
    seconds: float = 0
    cpu_seconds: float = 0  # of all processes
    samples: list[dict[str, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, str]:
        """Return for each figure: the medians of the parts of the run after the warm-up, and the largest value."""
        return {
            name: " -> ".join(f"{median:,.1f}" for median in medians(self.samples, name))
            + f" (largest {max(one[name] for one in self.samples):,.1f})"
            for name in TOLERANCES
            if self.samples
        }


class Soak:
    """One run. Its processes end with it."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self._folder, self._seconds, self._random = folder, seconds, random.Random(seed)
        self.database = folder / "soak.db"
        self.report = Report()
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._latencies: list[float] = []
        self._stop = threading.Event()

    def run(self) -> Report:
        began = time.monotonic()
        os.environ["SOAK_DATABASE"] = str(self.database)
        sys.path.append(str(SCRIPTS))
        import soak_load

        soak_load.create_tables()
        with soak_load.app as app:
            elder = self._start("work_watched")  # never killed, so that its memory can be followed
            for role, count in ROLES.items():
                for _ in range(count):
                    self._processes.append((role, self._start(role)))
            loops = [self._kill, self._back_up, lambda: self._vacuum(app), lambda: self._probe(soak_load.probe)]
            threads = [threading.Thread(target=self._guarded, args=(loop,)) for loop in loops]
            try:
                for thread in threads:
                    thread.start()
                while time.monotonic() - began < self._seconds and not self.report.problems:
                    self._stop.wait(SAMPLE_SECONDS)
                    self._sample(app, elder, soak_load)
                    self._look_for_tracebacks()
                if elder.poll() is not None:
                    self.report.problems.append(f"the worker that is never killed ended with {elder.returncode}")
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()
                for _, process in [*self._processes, ("worker", elder)]:
                    process.kill()
                    process.wait()
            self.report.counts["jobs enqueued"] = app.store.statistics.totals().enqueued
        self.report.seconds = time.monotonic() - began
        self.report.cpu_seconds = sum(os.times()[:4])
        return self.report

    # --- the processes ---

    def _start(self, role: str) -> "subprocess.Popen[bytes]":
        with open(self._folder / f"{role}.stderr", "ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-c", f"import soak_load; soak_load.{role}()"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": f"{SCRIPTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            )

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # noqa: BLE001  it ends the run
            self.report.problems.append(f"{type(error).__name__}: {error}")

    def _kill(self) -> None:
        while not self._stop.wait(self._random.uniform(1, 6)):
            index = self._random.randrange(len(self._processes))
            role, process = self._processes[index]
            if self._random.random() < 0.2:  # stopped for longer than its lease
                os.kill(process.pid, signal.SIGSTOP)
                self._stop.wait(self._random.uniform(0.5, 4))
                os.kill(process.pid, signal.SIGCONT)
                self.report.counts["stops"] += 1
            else:
                process.kill()
                process.wait()
                self._processes[index] = role, self._start(role)
                self.report.counts["kills"] += 1

    # --- beside the load ---

    def _vacuum(self, app: Holdfast) -> None:
        while not self._stop.wait(VACUUM_SECONDS):
            try:
                app.prune()
                app.vacuum()
                self.report.counts["vacuums"] += 1
            except HoldfastError as error:  # a worker may be pruning
                self.report.counts[type(error).__name__] += 1

    def _probe(self, task: Any) -> None:
        while not self._stop.wait(PROBE_SECONDS):
            began = time.monotonic()
            job = task.using(priority=100).enqueue()
            try:
                job.wait(timeout=PROBE_TIMEOUT)
            except HoldfastError as error:
                self.report.problems.append(f"the probe {job.id} did not end: {error}")
                return
            self._latencies.append((time.monotonic() - began) * 1000)
            self.report.counts["probes"] += 1

    def _back_up(self) -> None:
        while not self._stop.wait(BACKUP_SECONDS):
            target = self._folder / "backup.db"
            remove_backup(target)
            blobs = Path(f"{self.database}-blobs"), Path(f"{target}-blobs")
            copy_blobs(*blobs)
            with closing(sqlite3.connect(self.database)) as source, closing(sqlite3.connect(target)) as copy:
                source.execute("PRAGMA wal_autocheckpoint = 0")
                source.backup(copy, pages=500, sleep=0.001)
            copy_blobs(*blobs)
            self.report.problems += check_backup(target)
            self.report.counts["backups"] += 1

    # --- measuring ---

    def _sample(self, app: Holdfast, elder: "subprocess.Popen[bytes]", load: Any) -> None:
        latencies, self._latencies = self._latencies, []
        if not load.memory_file().exists():
            return  # the worker is starting
        in_use = {"worker": json.loads(load.memory_file().read_text()), "program": load.memory_in_use()}
        sample = {
            **{f"{who}_{what}": number for who, one in in_use.items() for what, number in one.items()},
            "worker_bytes": float(resident_bytes(elder.pid)),
            "program_bytes": float(resident_bytes(os.getpid())),
            "worker_files": float(open_files(elder.pid)),
            "program_files": float(open_files(os.getpid())),
            "database_bytes": float(self.database.stat().st_size),
            "log_bytes": float(Path(f"{self.database}-wal").stat().st_size),
            "jobs": float(sum(one.count or 0 for one in app.store.statistics.counts().items)),
            "latency_ms": statistics.median(latencies) if latencies else 0.0,
            "slowest_ms": max(latencies, default=0.0),
        }
        if latencies:
            self.report.samples.append(sample)

    def _look_for_tracebacks(self) -> None:
        for file in self._folder.glob("*.stderr"):
            text = file.read_text(errors="replace")
            if (at := text.find("Traceback (most recent call last)")) >= 0:
                self.report.problems.append(f"{file.name}: {text[max(0, at - 500) : at + 4000]}")


def remove_backup(target: Path) -> None:
    shutil.rmtree(f"{target}-blobs", ignore_errors=True)
    for file in target.parent.glob(f"{target.name}*"):
        file.unlink()


def copy_blobs(source: Path, target: Path) -> None:
    """Copy the files of large payloads: before and after the database, since some may be pruned meanwhile."""
    with suppress(FileNotFoundError, shutil.Error):
        shutil.copytree(source, target, dirs_exist_ok=True)


def check_backup(backup: Path) -> list[str]:
    """Return what is wrong with a backup: it must open, and agree with itself."""
    with closing(sqlite3.connect(backup)) as connection:
        found = [f"backup: {what}" for what in _contradictions(connection)]
    with Holdfast(backup) as app:
        app.jobs.list(limit=10)
        bad = [one for one in app.check().findings if one.severity == "error"]
        found += [f"backup: {one}" for one in bad]
    return found


def _contradictions(connection: sqlite3.Connection) -> Iterator[str]:
    questions = {
        "a damaged file": "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
        "a dangling reference": "SELECT * FROM pragma_foreign_key_check",
        "effects and the sum that is stored with each of them differ": """
            SELECT total, trimmed, (SELECT count(*) FROM effects) FROM ledger
            WHERE total <> trimmed + (SELECT count(*) FROM effects)""",
        "a job succeeded without its effect": """
            SELECT id FROM holdfast_jobs WHERE task = 'pay' AND status = 'succeeded'
            AND id > (SELECT trimmed_id FROM ledger)
            AND NOT EXISTS (SELECT 1 FROM effects WHERE job_id = holdfast_jobs.id)""",
        "an effect without a success": """
            SELECT job_id FROM effects JOIN holdfast_jobs ON id = job_id WHERE status <> 'succeeded'""",
        "a job with two effects": "SELECT job_id FROM effects GROUP BY job_id HAVING count(*) > 1",
    }
    for what, question in questions.items():
        if rows := connection.execute(question).fetchmany(3):
            yield f"{what}: {rows}"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main(minutes: float, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder:
        report = Soak(Path(folder), minutes * 60, seed).run()
    rising = growth(report.samples)
    print(f"soak, seed {seed}, {report.seconds:,.0f} s, {len(report.samples)} samples:", json.dumps(report.counts))
    print(f"  {report.cpu_seconds / report.seconds:.0%} of a processor")
    for name, figure in report.figures().items():
        print(f"  {name:15} {figure}{'   NOT FLAT: ' + rising[name] if name in rising else ''}")
    for problem in report.problems:
        print(f"  PROBLEM {problem}")
    return 1 if rising or report.problems else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
