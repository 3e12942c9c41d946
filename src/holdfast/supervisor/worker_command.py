"""`holdfast worker`: load the app and run a worker, in this process or in several."""

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from msgspec import Struct

from .. import __version__
from ..errors import WorkerStuck
from ..failure import shorten
from ..text import plural
from ..worker.worker import Worker
from .holdfast import Holdfast
from .load import load_app
from .logs import write_logs_to_stderr
from .worker_processes import LIFELINE, WorkerProcesses

log = logging.getLogger("holdfast.worker")
INTERRUPTED_EXIT = 75  # EX_TEMPFAIL: jobs were still running at the end of the grace period; they will run again
SWITCH_SECONDS = 0.001
M_ARENA_MAX = -8  # glibc's constant


class WorkerSettings(Struct, frozen=True):
    """The options of `holdfast worker`. Times are seconds, sizes are bytes."""

    queues: str | None = None
    concurrency: int = 10
    processes: int = 1
    pool: int | None = None
    grace: float = 30
    lease: float = 60
    until_idle: bool = False
    reload: bool = False
    log: str = "text"
    max_jobs: int | None = None
    max_memory: int | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    web_port: int | None = None
    web_auth: str | None = None
    web_host: str = "127.0.0.1"


class BackgroundServer(Protocol):
    """A server that runs in a thread of the worker's process."""

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


Serve = Callable[[Holdfast, WorkerSettings], BackgroundServer]


def run_worker(reference: str, settings: WorkerSettings, servers: Mapping[str, Serve]) -> int:
    """Run workers until they are stopped. Returns the exit code. servers: those to start, by what they serve."""
    write_logs_to_stderr(settings.log)
    if settings.processes > 1 or settings.reload:
        command = [sys.executable, "-m", "holdfast", "worker", *_arguments(reference, settings)]
        processes = WorkerProcesses(
            command, settings.processes, settings.reload, settings.grace, _server_arguments(settings)
        )
        return processes.run()
    return _run_here(reference, settings, servers)


def _run_here(reference: str, settings: WorkerSettings, servers: Mapping[str, Serve]) -> int:
    app = load_app(reference)
    app._reference = reference
    worker = app.worker(
        settings.queues,
        settings.concurrency,
        pool=settings.pool,
        lease=settings.lease,
        grace=settings.grace,
        until_idle=settings.until_idle,
        max_jobs=settings.max_jobs,
        max_memory=settings.max_memory,
    )
    if os.environ.get(LIFELINE):
        _stop_without_parent(worker)
    use_one_malloc_arena()
    serving = []
    for what, serve in servers.items():
        serving.append(serve(app, settings))
        log.info("serving %s at %s", what, serving[-1].url)
    # This process belongs to the worker. With a short interval, threads that compute do not delay commits for long.
    sys.setswitchinterval(SWITCH_SECONDS)
    log.info(
        "holdfast %s: worker %s started: %s, concurrency %d, %s, pid %d",
        __version__,
        worker.id,
        "all queues" if settings.queues is None else f"queues {shorten(settings.queues, 100)}",
        settings.concurrency,
        plural(len(app.tasks), "task"),
        os.getpid(),
    )
    try:
        report = worker.run()
    except WorkerStuck as error:
        log.error("%s", error)
        _leave(1)
    log.info(
        "worker %s stopped: %d succeeded, %d failed, %d retried, %d interrupted",
        worker.id,
        report.succeeded,
        report.failed,
        report.retried,
        report.interrupted,
    )
    for server in serving:
        server.close()
    code = INTERRUPTED_EXIT if report.interrupted else 0
    if report.stuck:  # threads that cannot be stopped must not keep the process alive
        _leave(code)
    app.close()
    return code


def use_one_malloc_arena() -> None:
    """Make threads share one malloc arena: with one arena each, none reuses memory that another has freed."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _stop_without_parent(worker: Worker) -> None:
    """Stop the worker when the parent process ends. The parent holds a pipe open, which then closes."""

    def wait_for_end() -> None:
        while os.read(0, 1):
            pass
        worker.stop()

    threading.Thread(target=wait_for_end, name="holdfast-lifeline", daemon=True).start()


def _arguments(reference: str, settings: WorkerSettings) -> list[str]:
    """Return the command line arguments for one process of several."""
    options: dict[str, object] = {
        "queues": settings.queues,
        "concurrency": settings.concurrency,
        "pool": settings.pool,
        "grace": f"{settings.grace}s",
        "lease": f"{settings.lease}s",
        "log": settings.log,
        "max-jobs": settings.max_jobs,
        "max-memory": settings.max_memory,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [reference, *given, *(["--until-idle"] if settings.until_idle else [])]


def _server_arguments(settings: WorkerSettings) -> list[str]:
    """Return the arguments for the first process only: its servers answer for all of them."""
    found = []
    if settings.metrics_port is not None:
        found += [f"--metrics-port={settings.metrics_port}", f"--metrics-host={settings.metrics_host}"]
    if settings.web_port is not None:
        found += [f"--web-port={settings.web_port}", f"--web-host={settings.web_host}"]
        found += [] if settings.web_auth is None else [f"--web-auth={settings.web_auth}"]
    return found
