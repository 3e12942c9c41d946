"""`holdfast worker`: load the app and run a worker, in this process or in several.

Several processes, or one that is reloaded when its code changes, are started, watched, restarted and stopped by a
parent process.
"""

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, Protocol

from msgspec import Struct

from .. import __version__
from ..errors import WorkerStuck
from ..failure import shorten
from ..text import plural, span
from ..worker.job_log import write_logs_to_stderr
from ..worker.worker import StopSignals, WakeUp, Worker
from .holdfast import Holdfast
from .load import load_app

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
    web_host: str = "127.0.0.1"
    web_auth: str | None = None
    web_allow_host: tuple[str, ...] = ()
    web_read_only: bool = False
    web_hide_args: bool = False
    web_redact: tuple[str, ...] = ()

    @property
    def web_options(self) -> dict[str, Any]:
        """The options of the web page, by their names in `holdfast web`."""
        names = [name for name in self.__struct_fields__ if name.startswith("web_") and name != "web_port"]
        return {name.removeprefix("web_"): getattr(self, name) for name in names}


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
        "holdfast %s: worker %s started on %s: %s, concurrency %d, %s, pid %d",
        __version__,
        worker.id,
        app.store.location,  # a wrong path is seen here: a new database has no jobs
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
        found.append(f"--web-port={settings.web_port}")
        for name, value in settings.web_options.items():
            option = f"--web-{name.replace('_', '-')}"
            if isinstance(value, bool):
                found += [option] if value else []
            else:
                several = value if isinstance(value, tuple) else [value]
                found += [f"{option}={one}" for one in several if one is not None]
    return found


LIFELINE = "HOLDFAST_LIFELINE"
PERMANENT_ERRORS = (2, 3)  # wrong usage or an app that cannot be loaded; a database that cannot be used
POLL_SECONDS = 0.25
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
STABLE_SECONDS = 60.0  # a process that ran for longer is restarted after the first backoff again
KILL_AFTER_GRACE_SECONDS = 10.0
EXCLUDED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}


class WorkerProcess:
    """One worker process, which is restarted with backoff."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._start_at = 0.0
        self.backoff = 0.0
        self.pid: int | None = None
        self.code: int | None = None
        """The exit code, once it has ended."""

    def start_if_due(self) -> None:
        if self._process is None and monotonic() >= self._start_at:
            self.code, self._started = None, monotonic()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                env={**os.environ, LIFELINE: "1"},
                process_group=0,  # Ctrl-C in a terminal reaches only this process, which forwards it
            )
            self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Return whether it has ended. If so, record the exit code and when to start again."""
        if self._process is not None and self._process.poll() is not None:
            self.code, self._process = self._process.returncode, None
            is_stable = monotonic() - self._started > STABLE_SECONDS
            backoff = FIRST_BACKOFF_SECONDS if is_stable else self.backoff * 2 or FIRST_BACKOFF_SECONDS
            self.backoff = min(backoff, MAX_BACKOFF_SECONDS)
            self._start_at = monotonic() + self.backoff
        return self._process is None

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def reset_backoff(self) -> None:
        """Start again at once."""
        self.backoff = self._start_at = 0.0


class WorkerProcesses:
    """Runs worker processes.

    reload: restart them when a Python file below the current folder changes.
    first_only: arguments that only the first process gets.
    """

    def __init__(
        self, command: Sequence[str], size: int, reload: bool, grace: float, first_only: Sequence[str] = ()
    ) -> None:
        others = (WorkerProcess(command) for _ in range(size - 1))
        self._processes = [WorkerProcess([*command, *first_only]), *others]
        self._reload, self._grace = reload, grace
        self._until_idle = "--until-idle" in command
        self._wake_up = WakeUp()
        self._signals = 0

    def run(self) -> int:
        """Run until a signal stops them, or all are done. Returns the worst exit code."""
        source_files = SourceFiles(Path.cwd()) if self._reload else None
        with StopSignals(self._on_signal):
            while not self._signals:
                for process in self._processes:
                    process.start_if_due()
                self._wake_up.wait(POLL_SECONDS)
                if source_files is not None and (changed := source_files.changed()):
                    log.info("%s changed: reloading", changed)
                    self._stop_all()
                    for process in self._processes:
                        process.reset_backoff()
                elif self._is_done():
                    break
            return self._stop_all()

    def _is_done(self) -> bool:
        """Return whether to end: all are idle, or one cannot be restarted. Others that ended will be restarted."""
        ended = [process for process in self._processes if process.has_ended()]
        if self._until_idle and all(process.code == 0 for process in ended):
            return len(ended) == len(self._processes)
        for process in ended:
            if not self._reload and process.code in PERMANENT_ERRORS:
                return True
            if process.code is not None:
                ending = _describe_exit(process.code)
                log.error("worker process %d %s; restarting in %s", process.pid, ending, span(process.backoff))
                process.code = None
        return False

    def _stop_all(self) -> int:
        """Forward the stop signal, and a second one if there was one. Kill processes that do not end in time."""
        forwarded = 0
        deadline = monotonic() + self._grace + KILL_AFTER_GRACE_SECONDS
        while sum(process.has_ended() for process in self._processes) < len(self._processes):
            wanted = max(1, min(self._signals, 2))
            if forwarded < wanted:
                forwarded += 1
                for process in self._processes:
                    process.signal(signal.SIGTERM)
            elif monotonic() > deadline:
                for process in self._processes:
                    process.signal(signal.SIGKILL)
            self._wake_up.wait(POLL_SECONDS / 5)
        codes = [process.code for process in self._processes if process.code]
        permanent = [code for code in codes if code in PERMANENT_ERRORS]
        return max(permanent or [code if code > 0 else 128 - code for code in codes], default=0)

    def _on_signal(self) -> None:
        self._signals += 1
        self._wake_up.notify()


class SourceFiles:
    """The Python files below a folder, and their modification times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = self._scan()

    def changed(self) -> str | None:
        """Return the name of a file that was changed, added or removed since the last call."""
        before, self._times = self._times, self._scan()
        different = {file for file, _ in before.items() ^ self._times.items()}
        return min(different, default=None)

    def _scan(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in EXCLUDED_FOLDERS]
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        found[str(path.relative_to(self._folder))] = path.stat().st_mtime_ns
                    except OSError:  # deleted meanwhile
                        continue
        return found


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
