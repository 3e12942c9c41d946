"""Run a worker in a thread of the test, wait for conditions with a deadline, and read what became of jobs."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import pytest

from holdfast import Context, Holdfast
from holdfast.clock import SECOND
from holdfast.model.job import TimelineEntry
from holdfast.worker.worker import WorkerReport

PATIENCE_SECONDS = 300.0  # long enough for any machine: only a hanging test takes that long
POLL_SECONDS = 0.004

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", seconds: float = PATIENCE_SECONDS) -> T:
    """Call `look` until it returns something true, and return that. Fails the test after `seconds`."""
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            pytest.fail(f"still not true after {seconds:g} s: {what or look}")
        time.sleep(POLL_SECONDS)
    return found


def comes_true(event: threading.Event, what: str = "") -> None:
    """Wait for an event."""
    assert event.wait(PATIENCE_SECONDS), f"the event was never set: {what}"


class RunningWorker:
    """`with RunningWorker(app, concurrency=2) as running:` runs a worker. At the end it is stopped at once."""

    def __init__(self, app: Holdfast, **options: Any) -> None:
        self.worker = app.worker(**options)
        self.error: BaseException | None = None
        self._report: WorkerReport | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._report = self.worker.run()
        except BaseException as error:  # noqa: BLE001  raised by `report`
            self.error = error

    def __enter__(self) -> "RunningWorker":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.worker.stop()
            self.worker.stop()
            if error is None:
                self.report()

    def stop(self) -> WorkerReport:
        """Stop as after one signal, and wait until the worker has ended."""
        self.worker.stop()
        return self.report()

    def stop_now(self) -> WorkerReport:
        """Stop as after two signals: do not wait for running jobs."""
        self.worker.stop()
        return self.stop()

    def report(self) -> WorkerReport:
        """Wait until the worker has ended, and return its report, or raise its error."""
        self.join()
        if self.error is not None:
            raise self.error
        assert self._report is not None
        return self._report

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            pytest.fail(f"the worker had not ended after {seconds:g} s")

    def has_ended(self) -> bool:
        return not self._thread.is_alive()


def drain(app: Holdfast, **options: Any) -> WorkerReport:
    """Run a worker until no job is ready or running."""
    with RunningWorker(app, until_idle=True, **options) as running:
        return running.report()


def attempts(app: Holdfast, job_id: int) -> list[TimelineEntry]:
    """Return the finished attempts of a job."""
    return [entry for entry in app.store.jobs.history(job_id) if entry.kind == "attempt"]


def outcomes(app: Holdfast, job_id: int) -> list[str]:
    """Return the outcomes of its attempts, in order, without those that were given back before they started."""
    return [entry.name for entry in attempts(app, job_id) if entry.name != "returned"]


def left(app: Holdfast, job_id: int) -> int:
    """Return how many attempts are left."""
    job = app.jobs.get(job_id)
    return job.max_attempts - job.attempt


def due_in(app: Holdfast, job_id: int) -> float:
    """Return the seconds until the job is due. Handlers take some milliseconds even if the clock stands still."""
    record = app.store.jobs.get(job_id)
    assert record is not None
    return (record.run_at - app.clock.now()) / SECOND


def let_time_run_out(ctx: Context) -> None:
    """Make the timeout of the running attempt expire now."""
    ctx._reporting.deadline_ns = 1  # type: ignore[union-attr]


class Gauge:
    """Counts how many threads are inside it now, and the maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self.now -= 1
