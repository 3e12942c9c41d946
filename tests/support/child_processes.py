"""Processes that a test starts, kills and replaces, or that do one thing and wait. None of them outlives the test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "processes"


@dataclass
class Member:
    """One process and the log it writes."""

    role: str
    log: Path
    process: "subprocess.Popen[str]"
    killed: bool = False
    ended: bool = False

    def lines(self) -> list[list[str]]:
        """What it wrote, each line split. A line it was killed in the middle of does not count."""
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def hear(self) -> str:
        """The next line it says; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def complaint(self) -> str:
        said = self.log.with_suffix(".stderr").read_text().strip()
        code = self.process.poll()
        return f"{self.role} {self.process.pid} ended with {code}: {said}" if said or code else ""

    def is_at_work(self) -> bool:
        return self.log.exists() and self.log.stat().st_size > 0


def compile_shim(source: str, folder: Path) -> str:
    """A library to start a process with, as LD_PRELOAD, from a C file of this folder."""
    target = folder / f"{source}.so"
    path = Path(__file__).parents[1] / "shims" / source
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", target, path, "-ldl"], check=True)
    return str(target)


class Crew:
    def __init__(self, folder: Path, database: Path | str) -> None:
        self._folder, self._database = folder, database
        self.members: list[Member] = []  # the dead ones too: their logs count
        self._last_words: list[str] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.living():
            self.stop(member)

    def start(self, role: str, *arguments: str, **environment: str) -> Member:
        """Run processes/`role`.py with the database, a log of its own and further arguments."""
        log = self._folder / f"{role}-{len(self.members)}.log"
        with open(log.with_suffix(".stderr"), "w") as stderr:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPTS / f"{role}.py"), str(self._database), str(log), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | environment,
            )
        member = Member(role, log, process)
        self.members.append(member)
        return member

    def living(self, role: str | None = None) -> list[Member]:
        return [one for one in self.members if not one.ended and role in (None, one.role)]

    def kill(self, member: Member) -> None:
        """In the middle of its work."""
        self.stop(member)
        member.killed = True

    def stop(self, member: Member) -> None:
        """kill -9, by the id of a process that this crew started and that has not been waited for."""
        if words := member.complaint():
            self._last_words.append(words)
        if member.process.poll() is None:
            os.kill(member.process.pid, signal.SIGKILL)
        member.process.wait()
        for pipe in (member.process.stdin, member.process.stdout):
            if pipe is not None:
                pipe.close()
        member.ended = True

    def complaints(self) -> list[str]:
        """Whatever a process said on stderr, or an end that was not our doing."""
        found = [member.complaint() for member in self.living()]
        return self._last_words + [words for words in found if words]


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "holdfast", *map(str, args)]


WAITS = "\nprint('done', flush=True)\nimport sys\nsys.stdin.readline()\n"

SQLITE = "import sqlite3\nconn = sqlite3.connect({path!r}, isolation_level=None)\n"

WORKER = """
import os, socket
from holdfast import Holdfast
from holdfast.model.job import ClaimRequest
from holdfast.model.worker import WorkerRecord
app = Holdfast({path!r}, busy_timeout=60)
now = app.clock.now()
tasks, host = ('known',), socket.gethostname()
app.store.workers.register(WorkerRecord('w' * 16, os.getpid(), host, {queues!r}, tasks, 10, 60_000_000, now, now))
app.store.jobs.settle_and_claim((), [ClaimRequest(tasks, {claims}, 60_000_000, 'w' * 16)])
"""


@contextmanager
def bystander(code: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the code, and has the process there while the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-c", code + WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def sqlite(path: Path | str, *statements: str) -> str:
    """A program that knows nothing of Holdfast, and leaves its connection open."""
    return SQLITE.format(path=str(path)) + "".join(
        f"conn.execute({one!r}).fetchone()\n" for one in statements or ("SELECT 1 FROM sqlite_master",)
    )


def worker(path: Path | str, claims: int = 0, queues: tuple[str, ...] | None = None) -> str:
    return WORKER.format(path=str(path), claims=claims, queues=queues)
