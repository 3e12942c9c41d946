"""What `holdfast worker` does: load the app and run a worker, here or in several processes."""

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from msgspec import Struct

from .. import __version__
from ..errors import WorkerStuck
from ..failure import shorten
from ..worker.worker import Worker
from .holdfast import Holdfast
from .load import load_app
from .logs import write_logs_to_stderr
from .worker_processes import LIFELINE, Crew

log = logging.getLogger("holdfast.worker")
INTERRUPTED_EXIT = 75  # EX_TEMPFAIL: jobs were still running at the end of the grace; they run again
SWITCH_SECONDS = 0.001
M_ARENA_MAX = -8  # as glibc numbers it


class WorkerSettings(Struct, frozen=True):
    """The options of the command. Times are seconds, sizes are bytes."""

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


class MetricsEndpoint(Protocol):
    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


ServeMetrics = Callable[[Holdfast, int, str], MetricsEndpoint]


def run_worker(reference: str, settings: WorkerSettings, serve_metrics: ServeMetrics | None = None) -> int:
    """Run until told to stop; returns the exit code. serve_metrics: for when there is a port for them."""
    write_logs_to_stderr(settings.log)
    if settings.processes > 1 or settings.reload:
        command = [sys.executable, "-m", "holdfast", "worker", *_arguments(reference, settings)]
        return Crew(command, settings.processes, settings.reload, settings.grace, _of_the_first(settings)).run()
    return _run_here(reference, settings, serve_metrics)


def _run_here(reference: str, settings: WorkerSettings, serve_metrics: ServeMetrics | None) -> int:
    app = load_app(reference)
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
    keep_memory_together()
    metrics = _serve(app, settings, serve_metrics)
    # This process is the worker's own. Threads that compute hand over sooner, so that no commit waits for long.
    sys.setswitchinterval(SWITCH_SECONDS)
    log.info(
        "holdfast %s: worker %s serves %s, %d at a time; tasks: %d; process %d",
        __version__,
        worker.id,
        "all queues" if settings.queues is None else shorten(settings.queues, 100),
        settings.concurrency,
        len(app.tasks),
        os.getpid(),
    )
    try:
        report = worker.run()
    except WorkerStuck as error:
        log.error("%s", error)
        _leave(1)
    log.info(
        "stopped: %d succeeded, %d failed, %d to be tried again, %d interrupted",
        report.succeeded,
        report.failed,
        report.retried,
        report.interrupted,
    )
    if metrics is not None:
        metrics.close()
    code = INTERRUPTED_EXIT if report.interrupted else 0
    if report.stuck:  # threads that cannot be ended must not keep the process
        _leave(code)
    app.close()
    return code


def _serve(app: Holdfast, settings: WorkerSettings, serve_metrics: ServeMetrics | None) -> MetricsEndpoint | None:
    if settings.metrics_port is None or serve_metrics is None:
        return None
    server = serve_metrics(app, settings.metrics_port, settings.metrics_host)
    log.info("metrics are at %s", server.url)
    return server


def keep_memory_together() -> None:
    """Let threads share what malloc has: by default each has its own, and none uses what another freed."""
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _stop_without_parent(worker: Worker) -> None:
    """The process that started this one holds a pipe open; when it dies, so do the workers, in good order."""

    def wait_for_end() -> None:
        while os.read(0, 1):
            pass
        worker.stop()

    threading.Thread(target=wait_for_end, name="holdfast-lifeline", daemon=True).start()


def _arguments(reference: str, settings: WorkerSettings) -> list[str]:
    """The command line of one process of several."""
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


def _of_the_first(settings: WorkerSettings) -> list[str]:
    """What only one of them gets: a port can be had once, and the metrics of all of them are in the database."""
    if settings.metrics_port is None:
        return []
    return [f"--metrics-port={settings.metrics_port}", f"--metrics-host={settings.metrics_host}"]
