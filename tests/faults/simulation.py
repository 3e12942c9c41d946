"""Simulation: the whole queue on a simulated machine, with faults at every statement, checked after each commit.

The machine is in simulation_machine.py and simulation_system.py, the actors and the faults in simulation_world.py,
what must hold in simulation_model.py. The number of a case is its seed: `--only 12` replays it and prints a trace.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast import Holdfast
from holdfast.app import signature
from holdfast.app.signature import Signature
from holdfast.store import sqlite as sqlite_store
from holdfast.store import statements

from .report import Report
from .simulation_machine import SECOND_NS, START_NS, Killed, Machine, TraceLine
from .simulation_model import Violation
from .simulation_system import running
from .simulation_world import World, worlds


@dataclass(frozen=True)
class Run:
    """What happened with one seed."""

    seed: int
    violation: str | None
    trace: list[TraceLine]
    counts: Counter[str]

    def report(self, lines: int = 60) -> str:
        trace = [
            f"{step:6} {(now - START_NS) / SECOND_NS:11.6f} {who:18} {what}"
            for step, now, who, what in self.trace[-lines:]
        ]
        return "\n".join([*trace, f"seed {self.seed}: {self.violation or 'no violation'}"])


def simulate(seed: int, **settings: Any) -> Run:
    """Run one seed to its end, or to the first violation. settings: in place of those that the seed draws."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sim-", dir=_fast_folder()) as folder:
        world = World(seed, settings, _template(), Path(folder), _names())
        machine, violation = world.machine, None
        worlds.append(world)
        try:
            with running(machine), _logging_to(machine), mock.patch.object(signature, "Signature", _signature):
                world.direct()
        except Killed:
            assert machine.violation is not None
            violation, _ = machine.violation
        except Violation as error:
            violation = str(error)
        finally:
            worlds.remove(world)
            world.model.close()
        machine.counts["steps"] = machine.steps
        return Run(seed, violation, machine.trace, machine.counts)


@cache
def _template() -> bytes:
    """Return an empty database, to copy for each seed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sim-", dir=_fast_folder()) as folder:
        path = Path(folder) / "template.db"
        Holdfast(path, min_free_bytes=0).close()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE effects (job_id INTEGER, attempt INTEGER)")
        connection.execute("CREATE TABLE orders (label INTEGER)")
        connection.close()
        return path.read_bytes()


def _fast_folder() -> str | None:
    """In memory if possible: a simulation need not survive the machine that it runs on."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def _names() -> dict[str, str]:
    """Return the names of the SQL statements, for the trace."""
    named = vars(statements.Statements(Path(sqlite_store.__file__).parent / "sql", "holdfast_"))
    return {text: name for name, text in named.items()}


@cache
def _signature(function: Callable[..., Any], *args: Any) -> Signature:
    """Return the signature of a task. All processes share it: to make one takes as long as to run a job."""
    return Signature(function, *args)


class _ErrorLog(logging.Handler):
    """Takes an exception that Holdfast logs and survives for a violation: here is no cause for one."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(logging.ERROR)
        self._machine = machine

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not self._machine.current.process.is_dead:
            self._machine.fail(f"logged: {record.getMessage()}: {record.exc_info[1]!r}", record.exc_info[1])


@contextmanager
def _logging_to(machine: Machine) -> Iterator[None]:
    log, handler = logging.getLogger("holdfast"), _ErrorLog(machine)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    log.propagate = False
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate = before[1]
        log.removeHandler(handler)


# --- negative controls: faults that are built in on purpose, each of which some seed must find ---

FENCE = re.compile(
    r" AND (\+?status = 'running' AND )?(holdfast_jobs\.)?attempt = (\?4|\?2|:attempt|done\.column2|done\.attempt)"
)


def _changed(change: Callable[[str, str], str]) -> Any:
    """Run with other SQL statements. change: given a name and a text, returns the text."""
    load = statements._named

    def changed(folder: Path, prefix: str) -> dict[str, str]:
        return {name: change(name, text) for name, text in load(folder, prefix).items()}

    return mock.patch.object(statements, "_named", changed)


def _without_fence(name: str, text: str) -> str:
    return FENCE.sub(lambda found: f" AND {found[1] or ''}1", text)


def _without_check_of_the_cursor(name: str, text: str) -> str:
    return text.replace("cursor = :after", "1") if name == "move_fold" else text


def _without_mercy(name: str, text: str) -> str:
    return text + " AND 0" if name == "renew_for" else text


STOPPED_OWNERS = {"workers": 2, "lease": 1, "crash_in_steps": 0, "crash_at_commit": 0, "patience": 1500}
# Each fault, settings that make it likely to be found, and the seed that is tried first, since it once found it.
CONTROLS: dict[str, tuple[Callable[[], Any], dict[str, Any], int]] = {
    "no fence: a late attempt settles the next one": (
        lambda: _changed(_without_fence),
        STOPPED_OWNERS | {"stop_owners": 1.0, "work": [0.4, 1, 2, 4]},
        17,
    ),
    "no rollback: a killed process leaves half of its transaction": (
        lambda: mock.patch.object(Machine, "commits_at_kill", True),
        {"crash_in_steps": 120, "switchiness": 0.02, "patience": 1200},
        33,
    ),
    "no commit: an enqueue is acknowledged and not stored": (
        lambda: mock.patch.object(Machine, "forgets", 0.05),
        {"producer": 0.05, "patience": 1200},
        1,
    ),
    "no liveness: a slow worker loses its jobs": (
        lambda: _changed(_without_mercy),
        STOPPED_OWNERS | {"slow_disk": 0.2, "work": [2, 4]},
        2,
    ),
    "no check of the cursor: two processes fold the same events": (
        lambda: _changed(_without_check_of_the_cursor),
        {"workers": 3, "switchiness": 0.5, "crash_in_steps": 0, "crash_at_commit": 0, "patience": 2500},
        2,
    ),
}
MOST_SEEDS_OF_A_CONTROL = 400
HIT = (
    "kills",
    "killed before a commit",
    "killed after a commit",
    "killed inside a transaction",
    "killed by a job",
    "stops",
    "stopped inside a transaction",
    "slow commits",
    "clock steps",
    "graceful stops",
    "recoveries",
    "fenced attempts",
    "busy",
    "folds",
    "event unblocked",
    "abandoned after a death",
)
RARE = (
    "abandoned by its own block",
    "event interrupted",
    "event requeued",
    "event returned",
    "event snoozed",
    "reboots",
    "suspends",
    "typed errors",
)
SEEDS = 10_000
SHORT = 0.01


def run(report: Report) -> None:
    """Run the seeds, several at a time, and the negative controls."""
    if report.only is not None:
        found = simulate(report.only)
        print(found.report(1000))
        report.counters += found.counts
        _show(report, found)
        return
    first = report.seed * SEEDS
    seeds = report.mine(range(first, first + report.scaled(SEEDS)))
    report.count("seeds", len(seeds))
    counts: Counter[str] = Counter()
    for found in _each(seeds):
        _show(report, found)
        counts += found.counts
    for what, number in sorted(counts.items()):
        report.count(what, number)
    report.require(*HIT, *(RARE if report.effort >= 1 else ()))
    for what in CONTROLS if report.has_controls else ():
        report.control(what, caught=find(what) is not None)


def find(what: str) -> Run | None:
    """Return the first run that finds a built-in fault."""
    fault, settings, first = CONTROLS[what]
    with fault():
        runs = (simulate(seed, **settings) for seed in (first, *range(MOST_SEEDS_OF_A_CONTROL)))
        return next((one for one in runs if one.violation is not None), None)


def _each(seeds: Sequence[int]) -> Iterator[Run]:
    if len(seeds) < SEEDS / 20:
        yield from map(_brief, seeds)
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(_brief, seeds, chunksize=20)


def _brief(seed: int) -> Run:
    """Simulate, and keep the trace only if something was found."""
    found = simulate(seed)
    return found if found.violation is not None else replace(found, trace=[])


def _show(report: Report, found: Run) -> None:
    if found.violation is not None:
        print(found.report())
        report.violation(found.violation, found.seed)
