"""A worker at work in a thread of the test, and waiting, with a deadline, for what must come true."""

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

PATIENCE_SECONDS = 300.0  # only what hangs takes as long, on however slow a machine
LOOK_SECONDS = 0.004

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", seconds: float = PATIENCE_SECONDS) -> T:
    """What `look` returns as soon as it is true; fails the test if that takes too long."""
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            pytest.fail(f"not after {seconds:g} s: {what or look}")
        time.sleep(LOOK_SECONDS)
    return found


def comes_true(event: threading.Event, what: str = "") -> None:
    assert event.wait(PATIENCE_SECONDS), f"it never happened: {what}"


class Shift:
    """`with Shift(app, concurrency=2) as shift:` runs a worker, and stops it at the end without any patience."""

    def __init__(self, app: Holdfast, **options: Any) -> None:
        self.worker = app.worker(**options)
        self.error: BaseException | None = None
        self._report: WorkerReport | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._report = self.worker.run()
        except BaseException as error:  # noqa: BLE001  told by `report`
            self.error = error

    def __enter__(self) -> "Shift":
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
        """As one signal does. Returns when the worker has ended."""
        self.worker.stop()
        return self.report()

    def hurry(self) -> WorkerReport:
        """As two signals do."""
        self.worker.stop()
        return self.stop()

    def report(self) -> WorkerReport:
        """When the worker has ended by itself."""
        self.join()
        if self.error is not None:
            raise self.error
        assert self._report is not None
        return self._report

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            pytest.fail(f"the worker had not ended after {seconds:g} s")

    def is_over(self) -> bool:
        return not self._thread.is_alive()


def drain(app: Holdfast, **options: Any) -> WorkerReport:
    """Run what is ready, until there is nothing left to do."""
    with Shift(app, until_idle=True, **options) as shift:
        return shift.report()


def attempts(app: Holdfast, job_id: int) -> list[TimelineEntry]:
    return [entry for entry in app.store.jobs.history(job_id) if entry.kind == "attempt"]


def outcomes(app: Holdfast, job_id: int) -> list[str]:
    """How its attempts ended, in order, but for those that a worker gave back before they began."""
    return [entry.name for entry in attempts(app, job_id) if entry.name != "returned"]


def left(app: Holdfast, job_id: int) -> int:
    """How many attempts it may still have."""
    job = app.jobs.get(job_id)
    return job.max_attempts - job.attempt


def due_in(app: Holdfast, job_id: int) -> float:
    """Seconds until it is due. By a clock that stands still handlers take no time, but for some milliseconds."""
    record = app.store.jobs.get(job_id)
    assert record is not None
    return (record.run_at - app.clock.now()) / SECOND


def let_time_run_out(ctx: Context) -> None:
    """Let the timeout of this attempt be over, as a handler would see it that has run for too long."""
    ctx._reporting.deadline = 1  # type: ignore[union-attr]


class Gauge:
    """How many are in it at once, and how many that ever were."""

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
