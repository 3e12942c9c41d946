"""Another process that does something to a database, says that it has, and waits until it is told to end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def is_linux() -> bool:
    return os.path.isdir("/proc/self/fd")
