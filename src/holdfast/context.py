"""What a running task may ask for: a parameter annotated `Context` is filled in and never part of the payload."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from .errors import InvalidInput
from .failure import shorten

if TYPE_CHECKING:
    from logging import LoggerAdapter


class LastError(Struct, frozen=True):
    """Why the attempt before this one did not succeed."""

    code: str
    detail: str


class Reporting(Protocol):
    """What the worker that runs the attempt does for it."""

    def report_progress(self, fraction: float | None, text: str | None) -> None: ...

    def is_cancelled(self) -> bool: ...


class Context:
    """The attempt that is running. In an ordinary call of the task there is none: `job_id` is None."""

    __slots__ = ("_find_job", "_reporting", "attempt", "job_id", "last_error", "max_attempts", "queue", "task")

    def __init__(
        self,
        job_id: int | None = None,
        attempt: int = 0,
        task: str = "",
        queue: str = "",
        max_attempts: int = 0,
        last_error: LastError | None = None,
        reporting: Reporting | None = None,
        find_job: Callable[[int], Any] | None = None,
    ) -> None:
        self.job_id, self.attempt, self.max_attempts = job_id, attempt, max_attempts
        self.task, self.queue, self.last_error = task, queue, last_error
        self._reporting, self._find_job = reporting, find_job

    @property
    def job(self) -> Any:
        """The job as it is stored now, a `Job`; None in an ordinary call."""
        return None if self.job_id is None or self._find_job is None else self._find_job(self.job_id)

    def progress(self, fraction: float, text: str | None = None) -> None:
        """How far it is, from 0 to 1, and a short text. Stored within a second."""
        if not isinstance(fraction, (int, float)) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise InvalidInput(f"progress is a fraction from 0 to 1, not {shorten(repr(fraction), 100)}")
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"the text of a progress is text, not {type(text).__qualname__}")
        if self._reporting is not None:
            self._reporting.report_progress(float(fraction), None if text is None else shorten(text, 200))

    def heartbeat(self) -> bool:
        """Say that it goes on, without any progress. False: it was cancelled, or the lease was lost, so stop."""
        if self._reporting is None:
            return True
        self._reporting.report_progress(None, None)
        return not self._reporting.is_cancelled()

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the job was cancelled, taken over, or ran out of time. What it returns counts no more."""
        return self._reporting is not None and self._reporting.is_cancelled()

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """The logger `holdfast.job`, with the job's id, task, queue and attempt in every record."""
        import logging

        about = {"task": self.task, "queue": self.queue, "attempt": self.attempt}
        fields = {"job_id": self.job_id, **about, "holdfast": {"job": self.job_id, **about}}
        return logging.LoggerAdapter(logging.getLogger("holdfast.job"), fields)

    def __repr__(self) -> str:
        return f"<Context job {self.job_id} {self.task} on {self.queue}: attempt {self.attempt}>"
