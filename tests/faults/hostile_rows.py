"""Hostile rows: every column of every table holds, once, each of a set of values that do not belong there.

A value that a constraint refuses is written all the same, with `PRAGMA ignore_check_constraints = ON`, as a damaged
file or an old version could have left it. After each: every command that reads ends without a traceback, no output
holds a control character, a worker still finishes jobs that have nothing to do with it, and its threads live.
"""

import logging
import os
import random
import shutil
import sqlite3
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from holdfast import Fail, Holdfast, Then
from holdfast.cli import main as command_line
from holdfast.cli.options import DatabaseOption
from holdfast.errors import HoldfastError
from holdfast.store import statements

from .checkers import FEW, PROCESSES, Checkers, Ended
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
INNOCENT = 5
IMPOSSIBLE = "refused and no row could take"
REFUSED = {"holdfast_migrations"}  # a name in it that is unknown is one of a newer version
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


class _KeptOpen(Holdfast):
    """Stays open when a command closes it: to open a database takes longer than most commands."""

    def close(self) -> None: ...

    def end(self) -> None:
        super().close()


@contextmanager
def _opened_once() -> Iterator[None]:
    """Let all commands use one app."""
    original, opened = DatabaseOption.open, list[_KeptOpen]()

    def open(option: DatabaseOption, *, migrate: bool = False, **options: Any) -> Holdfast:
        if migrate or options:
            return original(option, migrate=migrate, **options)
        if not opened:
            opened.append(_KeptOpen(option.url, migrate=False))
        return opened[0]

    with mock.patch.object(DatabaseOption, "open", open):
        try:
            yield
        finally:
            for app in opened:
                app.end()


@dataclass(frozen=True)
class Trial:
    """One case: damage a copy of the template, look at it with every command, and let a worker run."""

    number: int
    case: Case
    template: Path
    ids: dict[str, int]
    is_control: bool = False


def check(trial: Trial) -> tuple[str, list[str]]:
    """Return what constraints did, and the violations."""
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # each case has much to tell
    folder = trial.template.with_name(f"copy-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    fitting = (lambda _, row: row) if trial.is_control else statements.fitting
    with mock.patch.object(statements, "fitting", fitting):
        running = _Running(trial, folder / "hostile.db")
        return running.run(), running.violations


class _Running:
    def __init__(self, trial: Trial, database: Path) -> None:
        self._trial, self._database = trial, database
        shutil.copy(trial.template, database)
        blobs = Path(f"{trial.template}-blobs")
        if blobs.exists():
            shutil.copytree(blobs, f"{database}-blobs")
        self.violations: list[str] = []

    def run(self) -> str:
        outcome = damage(self._database, self._trial.case)
        if outcome != IMPOSSIBLE:
            self._look(self._trial.number % 2)
            self._work()
            self._look(1 - self._trial.number % 2)
        return outcome

    def _complain(self, what: str) -> None:
        self.violations.append(f"{self._trial.case}: {what}")

    def _look(self, half: int) -> None:
        of_jobs = [[OF_A_JOB[half], str(id)] for id in self._trial.ids.values()]
        with _opened_once():
            for arguments in [*COMMANDS[half], *of_jobs]:
                self._command(arguments)

    def _command(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(command_line, [*arguments, "--db", str(self._database)], prog_name="holdfast")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            last = traceback.extract_tb(result.exc_info[2])[-1] if result.exc_info else None
            where = f"{Path(last.filename).name}:{last.lineno}" if last else ""
            self._complain(f"{' '.join(arguments)}: {result.exception!r:.120} at {where}")
        elif any(ord(one) < 32 and one not in "\n\t" for one in result.output) or "\u202e" in result.output:
            self._complain(f"{' '.join(arguments)}: a control character in the output")

    def _work(self) -> None:
        deaths: list[str] = []
        before, threading.excepthook = (
            threading.excepthook,
            lambda args: deaths.append(f"{args.exc_value!r:.120} in {_last(args.exc_traceback)}"),
        )
        try:
            with Holdfast(self._database, blob_bytes=2000, durability="normal") as app:
                self._run_worker(app)
        except HoldfastError as error:
            if self._trial.case.table in REFUSED:
                return
            self._complain(f"the app cannot be opened, or enqueue fails: {error!r:.200}")
        except Exception as error:  # noqa: BLE001  any is a finding
            self._complain(f"{error!r:.200} in {_last(error.__traceback__)}")
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
            self._complain(f"the worker ended with {error!r:.120} in {_last(error.__traceback__)}")


def _last(trace: Any) -> str:
    frames = traceback.extract_tb(trace)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def run(report: Report) -> None:
    template = report.folder / "template.db"
    report.require("values that a constraint refused and that were written without it")
    ids, every = make_template(template), cases(template)
    numbers = random.Random(report.seed).sample(range(len(every)), report.scaled(len(every)))
    mine = report.mine(numbers) if report.only is None else [report.only]
    with Checkers(check, PROCESSES if len(mine) > FEW else 1) as checkers:
        for trial, found in checkers.each(Trial(number, every[number], template, ids) for number in mine):
            if isinstance(found, Ended):
                report.violation(f"{trial.case}: {found}", trial.number)
                continue
            outcome, violations = found
            report.count(f"values that a constraint {outcome}")
            for what in violations:
                report.violation(what, trial.number)
        if report.has_controls:
            case = Case("holdfast_workers", "heartbeat_at", "text")
            ((_, found),) = checkers.each([Trial(0, case, template, ids, is_control=True)])
            report.control("values of rows are not made to fit", not isinstance(found, Ended) and bool(found[1]))
