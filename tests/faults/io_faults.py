"""Errors of the disk: one call after the other fails, in stages that together use everything that writes.

A stage is a step or two on a copy of a database that a killed process has left, with jobs in every state. Each call
of the disk that the stage makes fails once, and the app is used further. Each step must raise a typed error or
succeed, and nothing that was acknowledged may be missing afterwards.
"""

import ctypes
import errno
import json
import logging
import os
import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.checkers import PROCESSES, Checkers, Ended
from faults.commands import last_line
from faults.report import Report
from holdfast import Holdfast, Retention
from holdfast.errors import HoldfastError
from holdfast.store.sqlite.engine import failed_flush, worker_locks
from holdfast.store.sqlite.engine.writer import Writer
from holdfast.worker import dispatcher
from support.child_processes import compile_shim

SHORT = 0.001
REPEATED = 0.4  # of the calls: they also fail together with the three after them
THOROUGH = 10  # one in so many cases goes through all steps after the fault
STAGES = {
    "create": ("open", "send"),  # in an empty folder
    "open": ("open",),
    "send": ("send", "send_many"),
    "large": ("send_large",),
    "enqueue": ("enqueue",),
    "receive": ("receive",),
    "work": ("work",),
    "transaction": ("transaction",),
    "checkpoint": ("checkpoint",),
    "prune": ("prune",),
    "vacuum": ("vacuum",),
    "full vacuum": ("vacuum_fully",),
    "close": ("close", "open"),
}
AFTERWARDS = ("send", "receive", "checkpoint", "close")
ALL = (
    "send",
    "send_many",
    "enqueue",
    "send_large",
    "receive",
    "work",
    "transaction",
    "checkpoint",
    "prune",
    "vacuum",
)
TEMPLATE = "template"  # the case that makes the copy
FAULTS = {
    "a write fails": ("w", errno.EIO, False),
    "the disk is full": ("wtom", errno.ENOSPC, False),
    "a write is short": ("w", errno.ENOSPC, True),
    "a flush fails": ("s", errno.EIO, False),
    "a truncation fails": ("t", errno.EIO, False),
    "a creation fails": ("om", errno.EACCES, False),
    "a rename or removal fails": ("ru", errno.EIO, False),
    "a lock fails": ("l", errno.EIO, False),
    "locks run out": ("l", errno.ENOLCK, False),
    "a read fails": ("p", errno.EIO, False),
}


@dataclass
class Case:
    number: int
    folder: str
    stage: str
    fault: str
    call: int = 0  # 0: only count the calls
    repeat: int = 0
    control: str = ""

    def describe(self) -> str:
        return f"{self.stage}: {self.fault} at call {self.call}" + (f" and {self.repeat} more" if self.repeat else "")


@dataclass
class Found:
    counters: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    calls: int = 0


def run(report: Report) -> None:
    shim, folder = compile_shim("fault_shim.c", report.folder), str(report.folder)
    report.require("faults that surfaced", "faults that were survived", *(f"fired: {fault}" for fault in FAULTS))
    processes = PROCESSES if report.effort == 1 else 1
    with _environment(LD_PRELOAD=shim, FAULT_DIR=folder), Checkers(check, processes) as checkers:
        list(checkers.each([Case(0, folder, TEMPLATE, "a write fails")]))
        kinds = {kind: fault for fault, (kind, _, _) in FAULTS.items()}  # several faults are of the same calls
        counting = [] if report.only is not None else [(stage, fault) for stage in STAGES for fault in kinds.values()]
        counted = {
            (case.stage, FAULTS[case.fault][0]): found.calls
            for case, found in checkers.each(Case(0, folder, *one) for one in counting)
        }
        calls = {
            (stage, fault): counted.get((stage, kind), 0)
            for stage in STAGES
            for fault, (kind, _, _) in FAULTS.items()
        }
        if report.has_controls:
            for (_, fault), number in calls.items():
                report.count(f"calls where {fault}", number)
        for case, found in checkers.each(_cases(report, calls)):
            report.count("faults")
            if isinstance(found, Ended):
                report.violation(f"{case.describe()}: {found}", case.number)
                continue
            report.counters.update(found.counters)
            for what in found.violations:
                report.violation(f"{case.describe()}: {what}", case.number)
        if report.has_controls:
            _control(report, checkers)


def _cases(report: Report, calls: dict[tuple[str, str], int]) -> list[Case]:
    """Every call fails once; and some fail together with the three after them.

    How many calls there are depends a little on chance, so the number of a case is made of what it is.
    """
    rng, every, kinds = random.Random(report.seed), list[tuple[str, str, int, int]](), list(calls)
    for stage, fault in kinds:
        mine = [(stage, fault, call, 0) for call in report.mine(range(1, calls[stage, fault] + 1))]
        every += [*mine, *((stage, fault, call, 3) for *_, call, _ in mine if rng.random() < REPEATED)]
    if report.effort < 1:  # some of each, however few calls it has, and the rest from all of them
        some = [rng.choice([one for one in every if one[1] == fault]) for fault in FAULTS]
        every = [*some, *rng.sample(every, report.scaled(len(every)))]
    if report.only is not None:
        call, kind = divmod(report.only, 2 * len(kinds))
        every = [(*kinds[kind // 2], call, kind % 2 * 3)]
    numbers = [
        (call * len(kinds) + kinds.index((stage, fault))) * 2 + (more > 0) for stage, fault, call, more in every
    ]
    return [Case(number, str(report.folder), *one) for number, one in zip(numbers, every, strict=True)]


def _control(report: Report, checkers: Checkers) -> None:
    folder = str(report.folder)
    controls = {
        "an acknowledged job that was not stored": ("forget", "lost"),
        "an error of SQLite that is not translated": ("raw", "OperationalError"),
    }
    for what, (control, expected) in controls.items():
        cases = [Case(0, folder, "send", "a write fails", call, 50, control) for call in (1, 2, 3)]
        results = [one for _, one in checkers.each(cases) if not isinstance(one, Ended)]
        report.control(what, caught=any(expected in text for one in results for text in one.violations))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


# --- in a process with the shim ---


def check(case: Case) -> Found:
    """Run a stage with one fault, use the app further, then see what is there."""
    logging.disable(logging.CRITICAL)
    dispatcher.MAX_BACKOFF_SECONDS, failed_flush.RETRY_SECONDS = 0.2, 0.0
    worker_locks._files.clear()
    if case.stage == TEMPLATE:
        return _make_template(Path(case.folder))
    place = Path(case.folder) / f"place-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    found, shim = Found(), ctypes.CDLL(None)
    scenario = _Scenario(place, found)
    threading.excepthook = lambda args: found.violations.append(f"thread ended: {args.exc_value!r}")
    original = Writer.raise_for
    if case.stage == "create":
        place.mkdir()
    else:
        shutil.copytree(Path(case.folder) / TEMPLATE, place)
        scenario.acknowledged = {
            int(id): body for id, body in json.loads((place / "acknowledged").read_text()).items()
        }
        if case.stage != "open":
            scenario.open()
    if case.control == "raw":
        Writer.raise_for = _raise_raw  # type: ignore[method-assign, assignment]
    kinds, number, is_short = FAULTS[case.fault]
    shim.fault_arm(kinds.encode(), case.call, number, case.repeat, int(is_short))
    try:
        scenario.run(STAGES[case.stage])
        found.calls = shim.fault_calls()
        if case.call:
            scenario.run((*(ALL if case.number % THOROUGH == 0 else ()), *AFTERWARDS))
    finally:
        fired = shim.fault_failures()
        shim.fault_arm(b"", 0, 0, 0, 0)
        Writer.raise_for = original  # type: ignore[method-assign]
    if case.control == "forget":
        scenario.acknowledged[10_000] = "never stored"
    if fired:
        found.counters[f"fired: {case.fault}"] += 1
        found.counters[f"fired in {case.stage}"] += 1
        found.counters["faults that surfaced" if scenario.typed else "faults that were survived"] += 1
    scenario.verify()
    return found


def _make_template(folder: Path) -> Found:
    """Make the database that the stages begin with: jobs of every kind, some pruned, and a log, as after a kill."""
    found, place = Found(), folder / "made"
    place.mkdir()
    scenario = _Scenario(place, found)
    scenario.run(("open", *ALL, "vacuum_fully", "send", "send_many", "enqueue", "send_large"))
    (place / "acknowledged").write_text(json.dumps(scenario.acknowledged))
    shutil.copytree(place, folder / TEMPLATE, ignore=shutil.ignore_patterns("*-shm"))
    scenario.run(("close",))
    assert not found.violations and not scenario.typed
    return found


def _raise_raw(self: Writer, error: Exception) -> None:
    raise error


class _Scenario:
    def __init__(self, place: Path, found: Found) -> None:
        self.place, self.found, self.path = place, found, place / "app.db"
        self.acknowledged: dict[int, Any] = {}
        self.app: Holdfast | None = None
        self.typed = 0

    def run(self, steps: Sequence[str]) -> None:
        for name in steps:
            self.attempt(name, getattr(self, name))

    def attempt(self, name: str, step: Callable[[], object]) -> None:
        try:
            if name == "open" or self.app is not None:
                step()
        except HoldfastError:
            self.typed += 1
        except Exception as error:  # noqa: BLE001  this is what the part looks for
            self.found.violations.append(f"{name}: {error!r:.150} at {last_line(error.__traceback__)}")

    def open(self) -> None:
        self.app = Holdfast(self.path, min_free_bytes=0)
        self.app.task(name="work")(lambda n: n * 2)

    @property
    def _app(self) -> Holdfast:
        assert self.app is not None
        return self.app

    def send(self) -> None:
        for number in range(3):
            self.acknowledged[self._app.queue("kept").send(number)] = number

    def send_many(self) -> None:
        self._app.queue("taken").send_many(range(5))
        self.acknowledged.update(zip(self._app.queue("kept").send_many(["a", "b"]), ["a", "b"], strict=True))

    def enqueue(self) -> None:
        self.acknowledged[self._app.tasks["work"].enqueue(21).id] = {"n": 21}

    def send_large(self) -> None:
        body = "large " * 20_000
        self.acknowledged[self._app.queue("kept").send(body)] = body

    def receive(self) -> None:
        for message in self._app.queue("taken").receive_many(3):
            message.ack()

    def work(self) -> None:
        self._app.worker(until_idle=True, concurrency=2, grace=1).run()

    def transaction(self) -> None:
        with self._app.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS own (x)")
            id = self._app.queue("kept").send("in a transaction", conn=tx)
        self.acknowledged[id] = "in a transaction"

    def checkpoint(self) -> None:
        self._app.store.file.checkpoint()

    def prune(self) -> None:
        archive = self.place / "jobs.jsonl.gz"
        self._app.prune(retention=Retention(succeeded=3600), archive=archive, hurry=True)

    def vacuum(self) -> None:
        self._app.vacuum(hurry=True)

    def vacuum_fully(self) -> None:
        self._app.vacuum(full=True)

    def close(self) -> None:
        app, self.app = self._app, None
        app.close()

    def verify(self) -> None:
        """Open the database once more, without faults."""
        self.attempt("close", self.close)
        with Holdfast(self.path, min_free_bytes=0) as app:
            connection = sqlite3.connect(self.path)
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                self.found.violations.append("the file is damaged")
            connection.close()
            for id, body in self.acknowledged.items():
                self.found.counters["acknowledged"] += 1
                try:
                    got = app.jobs.get(id).args
                except HoldfastError as error:
                    self.found.violations.append(f"job {id} is lost: {error!r:.100}")
                else:
                    if got != body:
                        self.found.violations.append(f"job {id} has another payload: {got!r:.50}")
            app.queue("kept").send("usable")
