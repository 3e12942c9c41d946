"""Hostile rows: every column of every table holds, once, each of a set of values that do not belong there.

A value that a constraint refuses is written all the same, with `PRAGMA ignore_check_constraints = ON`, as a damaged
file or an old version could have left it. After each: every command that reads ends without a traceback, no output
holds a control character, a worker still finishes jobs that have nothing to do with it, and its threads live.

Values in different tables are tried together, about five at a time. If anything is wrong then, or a command ends
early with an error, so that it may not have come to the other values, each of them is tried alone.
"""

import logging
import os
import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast import Fail, Holdfast, Then
from holdfast.errors import HoldfastError
from holdfast.store import statements

from .checkers import FEW, PROCESSES, Checkers, Ended
from .commands import commands, last_line
from .report import Report

MEGABYTE = 1024 * 1024
PATIENCE_SECONDS = 60.0
VALUES: dict[str, Any] = {
    "text": "soon",
    "empty": "",
    "null": None,
    "negative": -1,
    "zero": 0,
    "a second": 1_700_000_000,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "fraction": 1.5,
    "infinite": float("inf"),
    "not UTF-8": b"\xff\xfe\x00",
    "text that is not UTF-8": "CAST(x'FFFE41' AS TEXT)",
    "long": "x" * MEGABYTE,
    "NUL": "a\x00b",
    "right to left": "\u202egnp.exe",
    "ANSI": "\x1b[31mred\x1b[0m\x07\r\n",
    "no JSON": "{",
    "other JSON": '[1, {"a": null}]',
    "deep JSON": "[" * 5000 + "]" * 5000,
    "NaN in JSON": '{"n": NaN}',
}
RAW = {"text that is not UTF-8"}  # an SQL expression, since Python cannot bind it
COMMANDS = (
    (
        *(["stats"], ["jobs", "--json"], ["jobs", "--status", "failed"], ["queues"], ["cron", "--json"], ["events"]),
        *(["failures", "--json"], ["workers"], ["health"], ["doctor", "--deep", "--json"]),
    ),
    (
        *(["stats", "--json"], ["jobs"], ["queues", "--json"], ["cron"], ["events", "--json"], ["failures"]),
        *(["workers", "--json"], ["doctor"], ["prune", "--dry-run"]),
    ),
)
"""One half before a worker runs, the other half after it."""
OF_A_JOB = ("show", "explain")
JUDGE = {"doctor", "health"}  # their exit code tells what they found
INNOCENT = 5
IMPOSSIBLE = "refused and no row could take"
REFUSED = {"holdfast_migrations"}  # a name in it that is unknown is one of a newer version
LAST_ID = "holdfast_jobs.id = largest"  # there is none for a new job after it
SHORT = 0.002


@dataclass(frozen=True)
class Case:
    table: str
    column: str
    value: str

    def __str__(self) -> str:
        return f"{self.table}.{self.column} = {self.value}"


def make_template(database: Path) -> dict[str, int]:
    """Create a database that has rows in every table. Returns the ids of some jobs, by name."""
    with Holdfast(database, blob_bytes=2000, durability="normal") as app:
        tasks = declare(app)
        ids = {"succeeded": tasks["hello"].using(key="k", tags=["eu"], priority=3).enqueue("x").id}
        ids["failed"] = tasks["break_down"].enqueue().id
        ids["chain"] = tasks["go_on"].enqueue(2).id
        with app.batch(on_done=tasks["hello"].s("done"), on_success=tasks["hello"].s("all")) as batch:
            tasks["hello"].using(batch=batch).enqueue("member")
        tasks["hello"].enqueue("x" * 5000)
        app.schedules.add("nightly", "0 3 * * *", tasks["hello"], args={"name": "cron"})
        app.worker(until_idle=True).run()
        with app.batch(on_done=tasks["hello"].s("later")) as batch:
            tasks["hello"].using(batch=batch, delay=3600).enqueue("member")
        ids["scheduled"] = tasks["hello"].using(delay=3600).enqueue("later").id
        ids["blocked"] = tasks["hello"].using(after=[app.jobs.get(ids["scheduled"])]).enqueue("after").id
        ids["ready"] = app.queue("inbox").send({"n": 1})
        app.queue("paused").send(1)
        app.queue("paused").pause()
        message = app.queue("held").send(2)
        app.queue("held").receive(visibility=3600)
        ids["running"] = message
        app.queue("unlogged", history=False).send(3)
        app.jobs.cancel(tasks["hello"].using(delay=60).enqueue("no").id, reason="because")
        app.store.statistics.fold()
        app.prune()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "INSERT INTO holdfast_workers (id, slot, inode, pid, host, queues, tasks, limits, concurrency, lease, "
            "started_at, heartbeat_at) SELECT 'another', 77, inode, 1, 'elsewhere', '[\"default\"]', '[\"hello\"]', "
            "limits, 4, lease, started_at, heartbeat_at FROM holdfast_workers LIMIT 1"
        )
        connection.execute("INSERT INTO holdfast_endings (chain_id, batch_id) VALUES (1, 1)")
        connection.execute("INSERT OR IGNORE INTO holdfast_unused_blobs (name) VALUES (?)", ("0" * 64,))
    return ids


def declare(app: Holdfast) -> dict[str, Any]:
    @app.task
    def hello(name: str) -> str:
        return name

    @app.task(max_attempts=1)
    def break_down() -> None:
        raise ValueError("broken")

    @app.task
    def give_up() -> Fail:
        return Fail("TEST:GIVEN_UP")

    @app.task
    def go_on(left: int) -> Any:
        return Then(go_on, left - 1) if left else "done"

    @app.task
    def innocent(n: int) -> int:
        return n

    @app.task
    async def innocent_coroutine(n: int) -> int:
        return n

    return dict(app.tasks)


def cases(database: Path) -> list[Case]:
    with closing(sqlite3.connect(database)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast%' ORDER BY name"
        ).fetchall()
        return [
            Case(table, column[1], value)
            for (table,) in tables
            for column in connection.execute(f"PRAGMA table_info({table})").fetchall()
            for value in VALUES
        ]


def damage(database: Path, case: Case) -> str:
    """Write the value into all rows that can take it. Returns whether a constraint had to be ignored for that."""
    expression = VALUES[case.value] if case.value in RAW else "?"
    values = () if case.value in RAW else (VALUES[case.value],)
    statement = f"UPDATE OR IGNORE {case.table} SET {case.column} = {expression}"  # noqa: S608
    outcome = "does not refuse"
    with closing(sqlite3.connect(database)) as connection:
        try:
            with connection:
                connection.execute(statement.replace("OR IGNORE ", ""), values)
            return outcome
        except sqlite3.Error:
            outcome = "refused and that were written without it"
        for pragma in ("ignore_check_constraints = ON", "foreign_keys = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        try:
            with connection:
                changed = connection.execute(statement, values).rowcount
        except sqlite3.Error:  # such as another type in an INTEGER PRIMARY KEY, or a trigger
            changed = 0
    return outcome if changed else IMPOSSIBLE


@dataclass(frozen=True)
class Trial:
    """Damage a copy of the template, look at it with every command, and let a worker run."""

    cases: dict[int, Case]
    """By number. Each is of another table."""
    template: Path
    ids: dict[str, int]
    is_control: bool = False


@dataclass
class Found:
    outcomes: list[str] = field(default_factory=list)
    """What constraints did to each value."""
    violations: list[tuple[str, int | None]] = field(default_factory=list)
    """With the number of the case."""
    alone: int = 0
    """Cases that were tried alone."""


def check(trial: Trial) -> Found:
    """Try the cases together, and each alone if that does not tell enough."""
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # each case has much to tell
    together = _run(trial, trial.cases)
    outcomes = list(together.outcomes.values())
    if len(trial.cases) == 1 or not together.is_unclear:
        number = next(iter(trial.cases), None) if len(trial.cases) == 1 else None
        return Found(outcomes, [(what, number) for what in together.violations])
    alone = {number: _run(trial, {number: case}) for number, case in trial.cases.items()}
    found = [(what, number) for number, one in alone.items() for what in one.violations]
    if not found:  # only together
        found = [(what, None) for what in together.violations]
    return Found(outcomes, found, len(alone))


def _run(trial: Trial, cases: dict[int, Case]) -> "_Running":
    folder = trial.template.with_name(f"copy-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    fitting = (lambda _, row: row) if trial.is_control else statements.fitting
    with mock.patch.object(statements, "fitting", fitting):
        running = _Running(trial, cases, folder / "hostile.db")
        running.run()
        return running


class _Running:
    def __init__(self, trial: Trial, cases: dict[int, Case], database: Path) -> None:
        self._ids, self._cases, self._database = trial.ids, cases, database
        shutil.copy(trial.template, database)
        blobs = Path(f"{trial.template}-blobs")
        if blobs.exists():
            shutil.copytree(blobs, f"{database}-blobs")
        self.outcomes: dict[int, str] = {}
        self.violations: list[str] = []
        self.is_unclear = False
        """Whether something is wrong, or a command came to an early end."""

    def run(self) -> None:
        self.outcomes = {number: damage(self._database, case) for number, case in self._cases.items()}
        if any(outcome != IMPOSSIBLE for outcome in self.outcomes.values()):
            first = min(self._cases) % 2
            self._look(first)
            self._work()
            self._look(1 - first)
        self.is_unclear |= bool(self.violations)

    def _complain(self, what: str) -> None:
        self.violations.append(f"{', '.join(map(str, self._cases.values()))}: {what}")

    def _look(self, half: int) -> None:
        with commands(self._database) as holdfast:
            for arguments in [*COMMANDS[half], *([OF_A_JOB[half], str(id)] for id in self._ids.values())]:
                code = holdfast.run(arguments)
                self.is_unclear |= code != 0 and arguments[0] not in JUDGE
            for problem in holdfast.problems:
                self._complain(problem)

    def _work(self) -> None:
        deaths: list[str] = []
        before, threading.excepthook = (
            threading.excepthook,
            lambda args: deaths.append(f"{args.exc_value!r:.120} in {last_line(args.exc_traceback)}"),
        )
        try:
            with Holdfast(self._database, blob_bytes=2000, durability="normal") as app:
                self._run_worker(app)
        except HoldfastError as error:
            if any(case.table in REFUSED or str(case) == LAST_ID for case in self._cases.values()):
                self.is_unclear = True
                return
            self._complain(f"the app cannot be opened, or enqueue fails: {error!r:.200}")
        except Exception as error:  # noqa: BLE001  any is a finding
            self._complain(f"{error!r:.200} in {last_line(error.__traceback__)}")
        finally:
            threading.excepthook = before
        for death in deaths:
            self._complain(f"a thread died: {death}")

    def _run_worker(self, app: Holdfast) -> None:
        tasks = declare(app)
        jobs = [tasks[name].enqueue(n) for n in range(INNOCENT) for name in ("innocent", "innocent_coroutine")]
        jobs.append(tasks["hello"].enqueue("innocent"))
        worker, errors = app.worker(concurrency=3, grace=1), list[BaseException]()

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:  # noqa: BLE001  reported below
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and thread.is_alive():
            if all(job.refresh().status == "succeeded" for job in jobs):
                break
            time.sleep(0.005)
        else:
            left = Counter(f"{job.task}: {job.status}" for job in jobs if job.status != "succeeded")
            self._complain(f"innocent jobs did not succeed: {dict(left)}")
        worker.stop()
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        if thread.is_alive():
            self._complain("the worker did not stop")
        for error in errors:
            self._complain(f"the worker ended with {error!r:.120} in {last_line(error.__traceback__)}")


def run(report: Report) -> None:
    template = report.folder / "template.db"
    report.require("values that a constraint refused and that were written without it")
    ids, every = make_template(template), cases(template)
    numbers = random.Random(report.seed).sample(range(len(every)), report.scaled(len(every)))
    trials = [Trial(one, template, ids) for one in together({number: every[number] for number in numbers})]
    mine = report.mine(trials) if report.only is None else [Trial({report.only: every[report.only]}, template, ids)]
    with Checkers(check, PROCESSES if len(mine) > FEW else 1) as checkers:
        for trial, found in checkers.each(mine):
            if isinstance(found, Ended):
                report.violation(f"{', '.join(map(str, trial.cases.values()))}: {found}", min(trial.cases))
                continue
            for outcome in found.outcomes:
                report.count(f"values that a constraint {outcome}")
            report.count("values tried alone, too", found.alone)
            for what, number in found.violations:
                report.violation(what, number)
        if report.has_controls:
            case = Case("holdfast_workers", "heartbeat_at", "text")
            ((_, found),) = checkers.each([Trial({0: case}, template, ids, is_control=True)])
            report.control(
                "values of rows are not made to fit", not isinstance(found, Ended) and bool(found.violations)
            )


def together(cases: dict[int, Case]) -> list[dict[int, Case]]:
    """Divide the cases into as many groups as the largest table has cases, each with at most one of a table."""
    by_table: dict[str, list[int]] = {}
    for number, case in cases.items():
        by_table.setdefault(case.table, []).append(number)
    refused = [number for table in REFUSED for number in by_table.pop(table, [])]
    groups: list[dict[int, Case]] = [{} for _ in range(max(map(len, by_table.values()), default=0))]
    place = 0
    for numbers in sorted(by_table.values(), key=len, reverse=True):
        for number in numbers:
            groups[place % len(groups)][number] = cases[number]
            place += 1
    return [*groups, *({number: cases[number]} for number in refused)]
