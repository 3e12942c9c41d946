"""Children by os.fork() for tests, under a watchdog: one that is stuck is killed, and fails its test."""

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import pytest

from holdfast import Holdfast
from support.running_worker import PATIENCE_SECONDS

WATCHDOG_SECONDS = PATIENCE_SECONDS


FORK_TIMEOUT = "holdfast.store.sqlite.database.FORK_TIMEOUT_SECONDS"


@pytest.fixture(autouse=True)
def patient_forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fork wait for longer than a second until nobody uses the database, unless the test sees to it that
    somebody does: then it asks for `impatient_forks`."""
    if "impatient_forks" not in request.fixturenames:
        monkeypatch.setattr(FORK_TIMEOUT, WATCHDOG_SECONDS / 2)


@pytest.fixture
def impatient_forks() -> None:
    """A fork waits for a second, as it does outside of tests."""


class Child:
    """Runs the work in a forked child. What it returns is written down as text; what it raises fails the test."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        try:
            report = f"{work()}"
        except BaseException:  # noqa: BLE001  nothing may escape into the parent's test
            report = "RAISED " + traceback.format_exc()
        try:
            os.write(write, report.replace("\n", "\t").encode(errors="replace")[:60_000] + b"\n")
        finally:
            os._exit(0)

    def result(self) -> str:
        """Not the end of the file but of the line: a grandchild may hold the pipe open."""
        deadline, text = time.monotonic() + WATCHDOG_SECONDS, b""
        try:
            while not text.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._read], [], [], left)[0]:
                    os.kill(self.pid, signal.SIGKILL)
                    pytest.fail(f"the child was stuck; it had said {text!r}")
                part = os.read(self._read, 65536)
                if not part:
                    break
                text += part
        finally:
            os.close(self._read)
            os.waitpid(self.pid, 0)
        report = text.decode().rstrip("\n")
        assert not report.startswith("RAISED"), report.replace("\t", "\n")
        return report


class Gate:
    """A pipe on which one process waits for another to say go on."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def open(self) -> None:
        os.write(self._write, b"x")

    def wait(self) -> None:
        ready, _, _ = select.select([self._read], [], [], WATCHDOG_SECONDS)
        if not ready:
            raise TimeoutError("nobody opened the gate")
        os.read(self._read, 1)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def send(app: Holdfast, number: int, queue: str = "inbox") -> list[int]:
    return [app.queue(queue).send(n) for n in range(number)]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.strip("[]").split(", ")]


def ids_in(url: str) -> set[int]:
    """As a stranger sees it, who has nothing to do with either process."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "assert c.execute('PRAGMA integrity_check').fetchone() == ('ok',); "
        "print([row[0] for row in c.execute('SELECT id FROM holdfast_jobs')])"
    )
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True)
    return set(numbers(done.stdout.strip()))
