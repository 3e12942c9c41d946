"""What a running task may ask for: a parameter annotated `Context` is filled in and never part of the payload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from .errors import InvalidInput, TransactionError
from .failure import shorten

if TYPE_CHECKING:
    from logging import LoggerAdapter


T = TypeVar("T")


class LastError(Struct, frozen=True):
    """Why the attempt before this one did not succeed."""

    code: str
    detail: str


class Reporting(Protocol):
    """What the worker that runs the attempt does for it."""

    def report_progress(self, fraction: float | None, text: str | None) -> None: ...

    def is_cancelled(self) -> bool: ...


class Completion(Protocol):
    """What `with ctx.complete() as tx` gives: run your statements in it, and pass it as `conn=`."""

    result: Any
    """What the job is to have as its result, or `Then(…)` to go on with."""

    def execute(self, statement: str, values: Any = (), /) -> Any: ...

    def executemany(self, statement: str, values: Iterable[Any], /) -> Any: ...


class Backing(Protocol):
    """What the app does for it."""

    def job(self, job_id: int) -> Any: ...

    def blockers(self, job_id: int) -> tuple[Any, ...]: ...

    def batch(self, job_id: int) -> Any: ...

    def completion(self, result: Any) -> AbstractContextManager[Completion]:
        """A transaction of the app's database; nothing is settled in it."""
        ...

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]: ...


Complete = Callable[[Any], AbstractContextManager[Completion]]


class Context:
    """The attempt that is running. In an ordinary call of the task there is none: `job_id` is None."""

    __slots__ = (
        "_backing",
        "_complete",
        "_reporting",
        "attempt",
        "job_id",
        "last_error",
        "max_attempts",
        "queue",
        "task",
        "trace",
        "waited",
    )

    def __init__(
        self,
        job_id: int | None = None,
        attempt: int = 0,
        task: str = "",
        queue: str = "",
        max_attempts: int = 0,
        last_error: LastError | None = None,
        reporting: Reporting | None = None,
        backing: Backing | None = None,
        complete: Complete | None = None,
        trace: str | None = None,
        waited: float = 0.0,
    ) -> None:
        self.job_id, self.attempt, self.max_attempts = job_id, attempt, max_attempts
        self.task, self.queue, self.last_error = task, queue, last_error
        self.trace, self.waited = trace, waited
        self._reporting, self._backing, self._complete = reporting, backing, complete

    @property
    def job(self) -> Any:
        """The job as it is stored now, a `Job`; None in an ordinary call."""
        return None if self.job_id is None or self._backing is None else self._backing.job(self.job_id)

    @property
    def blockers(self) -> tuple[Any, ...]:
        """The results of what the job waited for, in the order of `after=`.

        Of a chain, that of its last job. With `on_blocker_failure="run"`, one that did not end well is a JobFailed.
        """
        return () if self.job_id is None or self._backing is None else self._backing.blockers(self.job_id)

    @property
    def batch(self) -> Any:
        """The `Batch` that the job is a member of, or was enqueued for when all of it had ended; or None."""
        return None if self.job_id is None or self._backing is None else self._backing.batch(self.job_id)

    def complete(self, result: Any = None) -> AbstractContextManager[Completion]:
        """`with ctx.complete() as tx:` is a transaction with which the job succeeds: both commit, or neither does.

        result: of the job, or `Then(…)` to go on with; in the block it may be set as `tx.result`. What the task
            returns, even by a `return` inside the block, comes too late: by then it has succeeded.

        If the block raises, nothing of it is stored, and the attempt has failed. If the job is not this attempt's
        any more, LeaseLost is raised, and nothing is stored. In an ordinary call it is a transaction and no more.
        """
        if self._complete is not None:
            return self._complete(result)
        return self._require_backing().completion(result)

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

    async def acomplete(self, work: Callable[[Completion], T], result: Any = None) -> T:
        """As `complete`, for coroutines: `work`, a plain function of the transaction, not async, runs in a thread.

        So the event loop goes on while the write lock is waited for. Returns what `work` returns.
        """

        def run() -> T:
            with self.complete(result) as transaction:
                done = work(transaction)
                if isinstance(done, Coroutine):
                    done.close()
                    raise InvalidInput("acomplete takes a plain function, which runs in a thread, not an async one")
                return done

        return await self._require_backing().in_thread(run)

    def _require_backing(self) -> Backing:
        if self._backing is None:
            raise TransactionError("this Context belongs to no app, so there is no database to complete in")
        return self._backing

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """The logger `holdfast.job`, with the job's id, task, queue and attempt in every record."""
        import logging

        about = {"task": self.task, "queue": self.queue, "attempt": self.attempt}
        fields = {"job_id": self.job_id, **about, "holdfast": {"job": self.job_id, **about}}
        return logging.LoggerAdapter(logging.getLogger("holdfast.job"), fields)

    def __repr__(self) -> str:
        return f"<Context job {self.job_id} {self.task} on {self.queue}: attempt {self.attempt}>"
