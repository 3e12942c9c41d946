"""How many files a call crosses on its way to the database: those on the call stack when a statement runs.

docs/internals/architecture.md names them. A reader who follows the code opens these, in this order.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner

import holdfast
from holdfast import Holdfast
from holdfast.cli import main
from support.running_worker import PATIENCE_SECONDS

PACKAGE = Path(holdfast.__file__).parent
Stack = tuple[str, ...]


def files_on(frame: FrameType | None) -> Stack:
    """The files of the package on the call stack, outermost first, each once."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(str(path.relative_to(PACKAGE)))
        frame = frame.f_back
    return tuple(dict.fromkeys(reversed(found)))


class Statements:
    """Collects the call stack of each statement."""

    def __init__(self) -> None:
        self.stacks: set[Stack] = set()

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") in ("execute", "executemany"):
            self.stacks.add(files_on(frame))

    @contextmanager
    def of_this_thread(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    @contextmanager
    def of_new_threads(self) -> Iterator[None]:
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)


def test_an_enqueue_crosses_at_most_seven_files(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    work.enqueue()
    statements = Statements()
    with statements.of_this_thread():
        work.enqueue()
    assert statements.stacks
    assert all(stack[0] == "app/task.py" and len(stack) <= 7 for stack in statements.stacks), statements.stacks


def test_a_job_of_a_worker_crosses_at_most_twelve_files(app: Holdfast) -> None:
    ran: set[Stack] = set()

    @app.task
    def work() -> None:
        ran.add(files_on(sys._getframe().f_back))

    jobs = [work.enqueue() for _ in range(3)]
    worker, statements = app.worker(concurrency=1), Statements()
    with statements.of_new_threads():
        thread = threading.Thread(target=worker.run)
        thread.start()
        for job in jobs:
            job.wait(PATIENCE_SECONDS)
        worker.stop()
        thread.join()
    settled = {stack for stack in statements.stacks if "worker/dispatcher.py" in stack}
    assert ran and settled
    crossed = {file for stack in ran | settled for file in stack} - {"worker/housekeeping.py"}
    assert len(crossed) <= 12, sorted(crossed)


def test_the_command_stats_crosses_at_most_eight_files(app: Holdfast, path: Path) -> None:
    """After the database was opened, which is the same for all commands."""
    statements = Statements()
    with statements.of_this_thread():
        result = CliRunner().invoke(main, ["stats", "--db", str(path)])
    assert result.exit_code == 0, result.output
    reads = {stack for stack in statements.stacks if "observe.py" in stack}
    assert reads
    assert max(map(len, reads)) <= 8, max(reads, key=len)
