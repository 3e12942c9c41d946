"""What runs in a process of `pool="process"`: it hears of an attempt, runs it, and tells how it ended."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from ..app.task import Task
from ..clock import SystemClock
from ..failure import shorten
from ..model.job import Claimed
from ..worker.attempt import Attempt
from ..worker.executor import Executor
from ..worker.outcomes import OutcomeMapper
from ..worker.process_pool import AttemptEnded, Completing, Progress, Ready, Unknown, decode_order, encode
from .load import load_task
from .logs import STYLE, write_logs_to_stderr

Places = Mapping[str, tuple[str, str]]
"""Where each task is: the names of its module and of what it is called there."""


class _Told(Attempt):
    """An attempt whose progress goes through the pipe to the worker."""

    __slots__ = ("pipe",)
    pipe: Connection

    def report_progress(self, fraction: float | None, text: str | None) -> None:
        self.pipe.send_bytes(encode(Progress(fraction, text)))

    def tell_completing(self, completing: bool) -> None:
        self.pipe.send_bytes(encode(Completing(completing, self.completed)))


def main(pipe: Connection, places: Places) -> None:
    # The worker decides when this ends: a Ctrl-C at the terminal reaches all processes at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # where memory runs out, this is what to kill, not the worker
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    if style := os.environ.get(STYLE):
        write_logs_to_stderr(style)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    tasks: dict[str, Task[..., Any]] = {}
    for name in places:  # before the first attempt begins, since importing takes time
        with contextlib.suppress(Exception):  # it is told when that task is to run
            tasks[name] = load_task(*places[name])
    with contextlib.suppress(OSError):  # the worker is gone
        pipe.send_bytes(encode(Ready()))
        while True:
            claimed = decode_order(orders.get())
            pipe.send_bytes(encode(_run(claimed, places, tasks, pipe)))
    os._exit(0)


def _listen(pipe: Connection, orders: "queue.SimpleQueue[bytes]") -> None:
    """When the worker is gone, so is this process, whatever the handler does."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            orders.put(pipe.recv_bytes())
    os._exit(0)


def _run(
    claimed: Claimed, places: Places, tasks: dict[str, Task[..., Any]], pipe: Connection
) -> AttemptEnded | Unknown:
    name = claimed.task or ""
    try:
        if name not in tasks:
            tasks[name] = load_task(*places[name])
    except BaseException as error:  # noqa: BLE001  importing the user's code may do anything
        return Unknown(shorten(f"{name} cannot be loaded in a process: {error!r}"))
    task = tasks[name]
    app = task.app
    attempt = _Told(claimed, task, 0)
    attempt.pipe = pipe
    executor = Executor(
        OutcomeMapper(app.error_table, Random()), SystemClock(), app._layers(), app.store, app._context_backend
    )
    return AttemptEnded(executor.run(attempt))
