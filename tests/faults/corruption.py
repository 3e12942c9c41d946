"""Corruption: bytes, pages and lengths of the database and its log are changed, then everything is tried on it.

Each step must end with a typed error or with the right answer, nothing hangs, and no thread or command ends with a
traceback. SQLite has no checksums in the database: a byte that is changed inside a small payload is not noticed. Such
payloads are counted, and everything else about them must fit.
"""

import hashlib
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.checkers import FEW, PROCESSES, Checkers, Ended
from faults.commands import commands, last_line
from faults.report import Report
from holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.worker import dispatcher

SHORT = 0.002
DAMAGES = 10_000
JOBS, MESSAGES = 40, 40
COMMANDS = (["stats"], ["doctor", "--deep"], ["jobs"])
KINDS = ("flip", "byte", "page", "zeros", "swap", "truncate", "extend")
SOURCE = """
import os, sys
sys.path[:0] = {path!r}
from faults.corruption import fill
fill({database!r})
os._exit(0)
"""


def payload(number: int) -> dict[str, Any]:
    """Return a payload that tells whether it was changed."""
    text = f"{number}-" + "x" * (number * 37 % 900)
    return {"n": number, "text": text, "digest": hashlib.sha256(text.encode()).hexdigest()}


ORIGINALS = [payload(number) for number in range(JOBS + MESSAGES)]


def fill(database: str) -> None:
    """Make a database of which a part is only in the log, as a program that was killed leaves it."""
    app = Holdfast(database)
    work = app.task(name="work")(lambda n, text, digest: None)
    inbox = app.queue("inbox", visibility=30, max_attempts=5)
    for half in (0, 1):
        for number in range(half, JOBS, 2):
            work.enqueue(**payload(number))
        inbox.send_many([payload(number) for number in range(JOBS + half, JOBS + MESSAGES, 2)])
        for message in inbox.receive_many(3):
            message.ack()
        if not half:
            app.worker(until_idle=True, concurrency=1).run()
            app.store.file.checkpoint()
    inbox.receive_many(2)


def run(report: Report) -> None:
    source = report.folder / "source"
    source.mkdir()
    code = SOURCE.format(path=sys.path, database=str(source / "app.db"))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    files = [source / "app.db", source / "app.db-wal"]
    assert all(file.stat().st_size > 30_000 for file in files)
    rng = random.Random(report.seed)
    cases = [rng.randrange(2**32) for _ in range(report.scaled(DAMAGES))] if report.only is None else [report.only]
    report.require("typed errors", "right answers")
    damages = [Damage(str(report.folder), case) for case in report.mine(cases)]
    with Checkers(check, PROCESSES if len(damages) > FEW else 1) as checkers:
        for damage, found in checkers.each(damages):
            report.count("damages")
            if isinstance(found, Ended):
                report.violation(f"{damage.describe()}: {found}", damage.seed)
                continue
            for what, number in found.counters.items():
                report.count(what, number)
            for what in found.violations:
                report.violation(f"{damage.describe()}: {what}", damage.seed)
        if report.has_controls:
            _control(report, checkers)


def _control(report: Report, checkers: Checkers) -> None:
    """Change a payload by SQL: the checks must see it. And damage nothing: everything must be right."""
    changed = "UPDATE holdfast_jobs SET args = json_set(args, '$.n', 7777) WHERE status = 'ready'"
    ((_, seen),) = checkers.each([Damage(str(report.folder), 0, changed)])
    wrong = not isinstance(seen, Ended) and any("wrong payload" in what for what in seen.violations)
    report.control("a payload changed by SQL", caught=wrong)
    ((_, calm),) = checkers.each([Damage(str(report.folder), 0, "SELECT 1")])
    right = not isinstance(calm, Ended) and not calm.violations and calm.counters.get("typed errors") is None
    report.control("no damage is no error", caught=right)


@dataclass
class Damage:
    folder: str
    seed: int
    statement: str = ""  # a negative control, instead of damage

    def describe(self) -> str:
        return self.statement or self.apply(None)

    def apply(self, place: Path | None) -> str:
        """Damage one of the files, and say how. Without a place, only say how."""
        rng = random.Random(self.seed)
        name = rng.choice(["app.db", "app.db", "app.db-wal"])
        kind = rng.choice(KINDS)
        source = Path(self.folder) / "source" / name
        size = source.stat().st_size
        at, page = rng.randrange(size), 1024
        start, other = at - at % page, rng.randrange(size // page) * page
        junk, bit, length = rng.randbytes(page), 1 << rng.randrange(8), rng.randrange(size)
        if rng.random() < 0.1:  # the header and the first pages matter most
            at = rng.randrange(min(size, 200))
        if place is not None:
            data = bytearray(source.read_bytes())
            if kind == "flip":
                data[at] ^= bit
            elif kind == "byte":
                data[at] = junk[0]
            elif kind in ("page", "zeros"):
                data[start : start + page] = junk if kind == "page" else bytes(page)
            elif kind == "swap":
                data[start : start + page] = data[other : other + page]
            elif kind == "truncate":
                del data[length:]
            else:
                data += junk[: at % page]
            (place / name).write_bytes(data)
        return f"{name}: {kind} at {length if kind == 'truncate' else at}"


@dataclass
class Found:
    counters: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


class _Logged(logging.Handler):
    """Takes the log records with a traceback of something else than Holdfast's own exceptions."""

    def __init__(self, found: Found) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not isinstance(record.exc_info[1], HoldfastError):
            self._found.violations.append(f"traceback in the log: {record.getMessage()}: {record.exc_info[1]!r}")


def check(damage: Damage) -> Found:
    """Try everything on a damaged copy."""
    place = Path(damage.folder) / f"copy-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in ("app.db", "app.db-wal"):
        shutil.copyfile(Path(damage.folder) / "source" / name, place / name)
    found = Found()
    if damage.statement:
        _execute(place / "app.db", damage.statement)
    else:
        damage.apply(place)
    dispatcher.MAX_BACKOFF_SECONDS = 0.2  # a worker with until_idle gives up after this
    log, handler = logging.getLogger("holdfast"), _Logged(found)
    log.propagate = False
    log.addHandler(handler)
    threading.excepthook = lambda args: found.violations.append(f"thread ended: {args.exc_value!r}")
    try:
        _try_everything(str(place / "app.db"), found)
    finally:
        log.removeHandler(handler)
    return found


def _execute(path: Path, statement: str) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def _try_everything(path: str, found: Found) -> None:
    opened: list[Holdfast] = []
    _step(found, "open", lambda: opened.append(Holdfast(path)))
    if opened:
        app = opened[0]

        @app.task(name="work", max_attempts=1)
        def work(n: Any = None, text: Any = None, digest: Any = None) -> None:
            _compare(found, {"n": n, "text": text, "digest": digest})

        steps: dict[str, Callable[[], object]] = {
            "receive": lambda: _receive(app, found),
            "send": lambda: app.queue("other").send("more"),
            "work": lambda: app.worker(until_idle=True, concurrency=2, grace=1).run(),
            "list": lambda: [(job.status, job.error_code) for job in app.jobs.list(limit=200)],
            "history": lambda: [app.jobs.history(job.id) for job in app.jobs.list(limit=20)],
            "observe": lambda: (app.observe.snapshot(), app.observe.retention()),
            "prune": lambda: app.prune(hurry=True),
            "checkpoint": lambda: app.store.file.checkpoint(),
            "vacuum": lambda: app.vacuum(hurry=True),
            "close": app.close,
        }
        for name, step in steps.items():
            _step(found, name, step)
    with commands(path) as holdfast:
        for command in COMMANDS:
            holdfast.run(command)
            found.count("commands")
        found.violations += holdfast.problems


def _step(found: Found, name: str, step: Callable[[], object]) -> None:
    try:
        step()
    except HoldfastError:
        found.count("typed errors")
    except Exception as error:  # noqa: BLE001  this is what the part looks for
        found.violations.append(f"{name} raised {error!r:.200} at {last_line(error.__traceback__)}")
    else:
        found.count("right answers")


def _receive(app: Holdfast, found: Found) -> None:
    inbox = app.queue("inbox")
    while messages := inbox.receive_many(10):
        for message in messages:
            _compare(found, message.body)
            message.ack()


def _compare(found: Found, got: Any) -> None:
    found.count("payloads")
    if got in ORIGINALS:
        return
    found.count("payloads changed inside")
    if not isinstance(got, dict) or got.get("n") not in range(len(ORIGINALS)):
        found.violations.append(f"wrong payload: {got!r:.100}")
