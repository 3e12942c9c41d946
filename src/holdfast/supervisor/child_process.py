"""A child process of `pool="process"`: it receives attempts from the worker, runs them and reports their outcomes."""

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from ..app.task import Task
from ..clock import SystemClock
from ..failure import shorten
from ..worker.attempt import Attempt
from ..worker.executor import Executor
from ..worker.job_log import LOG_STYLE, write_logs_to_stderr
from ..worker.outcomes import OutcomeMapper
from ..worker.process_pool import (
    STOP_SECONDS,
    AttemptFinished,
    Completing,
    Progress,
    Ready,
    StartAttempt,
    TaskNotLoaded,
    decode_start,
    encode,
)
from .load import load_app, load_task, set_up_django

TaskLocations = Mapping[str, tuple[str, str]]
"""For each task, its module and its name there."""


class _PipedAttempt(Attempt, eq=False):
    """An attempt that reports its progress to the worker through the pipe."""

    pipe: Any = None

    def report_progress(self, fraction: float | None, text: str | None) -> None:
        super().report_progress(fraction, text)
        self.pipe.send_bytes(encode(Progress(fraction, text)))

    def set_completing(self, completing: bool) -> None:
        self.pipe.send_bytes(encode(Completing(completing, self.completed)))


def main(pipe: Connection, locations: TaskLocations, reference: str | None) -> None:
    """reference: what `holdfast worker` was given, which may prepare more than a task's own module does."""
    # Ignore signals: Ctrl-C in a terminal reaches all processes at once, but the worker decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # if memory runs out, Linux should kill this process rather than the worker
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    if style := os.environ.get(LOG_STYLE):
        write_logs_to_stderr(style)
    requests = _Requests(pipe)
    threading.Thread(target=requests.receive, daemon=True).start()
    tasks: dict[str, Task[..., Any]] = {}
    with contextlib.suppress(Exception):  # reported if a task cannot be loaded without it
        if reference is None:
            set_up_django()
        else:
            load_app(reference)
    for name in locations:  # before the first attempt starts, since importing takes time
        with contextlib.suppress(Exception):  # reported when that task is to run
            tasks[name] = load_task(*locations[name])
    hooks = {id(task.app): task.app._hooks for task in tasks.values()}.values()
    with contextlib.suppress(OSError):  # the worker has ended
        try:
            for one in hooks:
                one.start("pool")
        except BaseException as error:  # noqa: BLE001  user code
            pipe.send_bytes(encode(TaskNotLoaded(shorten(f"on_worker_start raised {error!r}"))))
            os._exit(1)
        pipe.send_bytes(encode(Ready()))
        while (request := requests.next()) is not None:
            answer = _run(decode_start(request), locations, tasks, pipe)
            requests.unanswered -= 1
            pipe.send_bytes(encode(answer))
        for one in hooks:
            one.stop("pool")
    os._exit(0)


class _Requests:
    """Receives requests from the worker."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.unanswered = 0

    def next(self) -> bytes | None:
        """Wait for the next request. None: the worker needs this process no more."""
        return self._queue.get()

    def receive(self) -> None:
        """Receive requests until the worker ends or closes the pipe, then exit: at once, if a handler is running."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = self._pipe.recv_bytes()
                self.unanswered += 1
                self._queue.put(request)
        if not self.unanswered:
            self._queue.put(None)
            time.sleep(STOP_SECONDS)
        os._exit(0)


def _run(
    start: StartAttempt, locations: TaskLocations, tasks: dict[str, Task[..., Any]], pipe: Connection
) -> AttemptFinished | TaskNotLoaded:
    name = start.claimed.task or ""
    try:
        if name not in tasks:
            tasks[name] = load_task(*locations[name])
        tasks[name].app.store.wait_as_worker()
    except BaseException as error:  # noqa: BLE001  importing the user's code may do anything
        return TaskNotLoaded(shorten(f"the task {name} cannot be loaded in a pool process: {error!r}"))
    task = tasks[name]
    app = task.app
    attempt = _PipedAttempt(start.claimed, task, 0, start.start_until_ns, pipe=pipe)
    executor = Executor(
        OutcomeMapper(app.error_table, Random(), app.payload_timeout),
        SystemClock(),
        app._layers(),
        app.store,
        app._context_backend,
    )
    return AttemptFinished(executor.run(attempt))
