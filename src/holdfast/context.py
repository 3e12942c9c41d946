"""`Context`: what a task can learn about its attempt. A parameter annotated with it is not part of the payload."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from msgspec import Struct

from .errors import InvalidInput, TransactionError
from .failure import shorten
from .validate import NOT_GIVEN, connection, shown

if TYPE_CHECKING:
    from logging import LoggerAdapter

    from .app.job import Job
    from .app.workflows import Batch


T = TypeVar("T")


class LastError(Struct, frozen=True):
    """The error of the attempt before this one."""

    code: str
    detail: str


class Reporting(Protocol):
    """The worker that runs the attempt."""

    def report_progress(self, fraction: float | None, text: str | None) -> None: ...

    def is_cancelled(self) -> bool: ...


class Completion(Protocol):
    """The transaction of `with ctx.complete() as tx`: run your statements in it, and pass it as `conn=`."""

    result: Any
    """The result of the job, or `Then(…)` to continue with."""

    def execute(self, statement: str, values: Any = (), /) -> Any: ...

    def executemany(self, statement: str, values: Iterable[Any], /) -> Any: ...


class ContextBackend(Protocol):
    """The app whose job the attempt runs."""

    def job(self, job_id: int) -> Any: ...

    def blocker_results(self, job_id: int) -> tuple[Any, ...]: ...

    def batch(self, job_id: int) -> Any: ...

    def completion(self, result: Any, conn: Any) -> AbstractContextManager[Completion]:
        """Open a transaction that settles no job, for a task that was called directly. conn: on it, unless None."""
        ...

    def state(self, job_id: int) -> dict[str, Any]: ...

    def save_state(self, job_id: int, attempt: int, state: dict[str, Any]) -> None: ...

    def in_coroutine(self, transaction: AbstractContextManager[T]) -> AbstractAsyncContextManager[T]:
        """Return the transaction for `async with`."""
        ...

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]: ...

    def run_on(self, conn: Any) -> Callable[[Callable[[Any], T]], Awaitable[T]]:
        """Return what runs functions in a thread, with a connection of an asynchronous driver that they can use."""
        ...


Complete = Callable[[Any, Any], AbstractContextManager[Completion]]


class Context:
    """The attempt that is running. In a direct call of the task, `job_id` is None."""

    __slots__ = (
        "_backend",
        "_complete",
        "_reporting",
        "_state",
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
        backend: ContextBackend | None = None,
        complete: Complete | None = None,
        trace: str | None = None,
        waited: float = 0.0,
    ) -> None:
        self.job_id, self.attempt, self.max_attempts = job_id, attempt, max_attempts
        self.task, self.queue, self.last_error = task, queue, last_error
        self.trace, self.waited = trace, waited
        self._reporting, self._backend, self._complete = reporting, backend, complete
        self._state: dict[str, Any] | None = None

    @property
    def job(self) -> Job[Any] | None:
        """Read the job; None in a direct call."""
        return None if self.job_id is None or self._backend is None else self._backend.job(self.job_id)

    @property
    def blocker_results(self) -> tuple[Any, ...]:
        """Read the results of the jobs in `after=`, in that order.

        The result of a chain is that of its last job. With `on_blocker_failure="run"`, a blocker that failed or was
        cancelled is a JobFailed.
        """
        return () if self.job_id is None or self._backend is None else self._backend.blocker_results(self.job_id)

    @property
    def batch(self) -> Batch | None:
        """The batch that the job is a member or a callback of, or None."""
        return None if self.job_id is None or self._backend is None else self._backend.batch(self.job_id)

    def complete(self, result: Any = None, *, conn: Any = NOT_GIVEN) -> AbstractContextManager[Completion]:
        """Open a transaction in which the job succeeds: `with ctx.complete() as tx:`. Both commit, or neither does.

        result: the result of the job, or `Then(…)` to continue with. In the block, set `tx.result` instead. The
            return value of the task is ignored, since the job has succeeded by then.
        conn: your own connection, in the place of Holdfast's: a `sqlite3.Connection`, a session or connection of
            SQLAlchemy, or Django's. Its transaction is committed at the end of the block, with what it wrote before,
            and rolled back if the block raises.

        If the block raises, its writes are rolled back and the attempt has failed. If this attempt does not hold the
        job any more, LeaseLost is raised and nothing is stored. In a direct call it is a plain transaction.
        """
        within = None if conn is NOT_GIVEN else connection(conn)
        if self._complete is not None:
            return self._complete(result, within)
        return self._require_backend().completion(result, within)

    @property
    def state(self) -> dict[str, Any]:
        """The state that an attempt of this job saved last, or an empty dict. Change it, and call `save_state`."""
        if self._state is None:
            self._state = {} if self.job_id is None else self._require_backend().state(self.job_id)
        return self._state

    def save_state(self, state: dict[str, Any] | None = None) -> None:
        """Store `ctx.state`, or this dict in its place, for the attempts after this one: JSON, at most 64 KiB.

        It is on disk when this returns. If this attempt does not hold the job any more, LeaseLost is raised and
        nothing is stored.
        """
        new = self.state if state is None else state
        if self.job_id is not None:
            self._require_backend().save_state(self.job_id, self.attempt, new)
        self._state = new

    async def asave_state(self, state: dict[str, Any] | None = None) -> None:
        """Do the same as `save_state` from a coroutine, without blocking the event loop."""
        await self._require_backend().in_thread(lambda: self.save_state(state))

    def progress(self, fraction: float, text: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1, and a short text. It is stored within a second."""
        if not isinstance(fraction, (int, float)) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise InvalidInput(f"progress must be a fraction from 0 to 1, got {shown(fraction)}")
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"the text of progress must be text, got {type(text).__qualname__}")
        if self._reporting is not None:
            self._reporting.report_progress(float(fraction), None if text is None else shorten(text, 200))

    def heartbeat(self) -> bool:
        """Report that the attempt is alive. Returns False if it should stop: cancelled, or the lease was lost."""
        if self._reporting is None:
            return True
        self._reporting.report_progress(None, None)
        return not self._reporting.is_cancelled()

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should stop: the job was cancelled, taken over, or timed out. Its result is ignored."""
        return self._reporting is not None and self._reporting.is_cancelled()

    @overload
    def acomplete(self, *, result: Any = None, conn: Any = ...) -> AbstractAsyncContextManager[Completion]: ...
    @overload
    def acomplete(self, work: Callable[[Completion], T], result: Any = None) -> Awaitable[T]: ...
    def acomplete(
        self, work: Callable[[Completion], T] | None = None, result: Any = None, *, conn: Any = NOT_GIVEN
    ) -> Any:
        """Do the same as `complete` in a coroutine: `async with ctx.acomplete() as tx:`.

        The event loop is not blocked while a thread waits for the write lock, and while it commits. The block itself
        must not await. For long statements, `await ctx.acomplete(work)` runs all of it in a thread: `work` is a plain
        function of the transaction, whose value is returned.

        conn: an AsyncSession or AsyncConnection of SQLAlchemy or psycopg, for `async with`. The block may then await.
        """
        if conn is not NOT_GIVEN:
            return self._acomplete_on(connection(conn), result)
        if work is None:
            return self._require_backend().in_coroutine(self.complete(result))
        return self._run_completion(work, result)

    @asynccontextmanager
    async def _acomplete_on(self, conn: Any, result: Any) -> AsyncIterator[Completion]:
        run = conn.run_sync if hasattr(conn, "run_sync") else self._require_backend().run_on(conn)
        block: list[AbstractContextManager[Completion]] = []

        def enter(sync: Any) -> Completion:
            opened = self.complete(result, conn=sync)
            transaction = opened.__enter__()
            block.append(opened)
            return transaction

        try:
            yield await run(enter)
        except BaseException as error:
            raised, trace = error, error.__traceback__
            if not block or not await run(lambda _: block[0].__exit__(type(raised), raised, trace)):
                raise
        else:
            await run(lambda _: block[0].__exit__(None, None, None))

    async def _run_completion(self, work: Callable[[Completion], T], result: Any) -> T:
        def run() -> T:
            with self.complete(result) as transaction:
                done = work(transaction)
                if isinstance(done, Coroutine):
                    done.close()
                    raise InvalidInput(
                        "acomplete must be given a plain function, which runs in a thread, got an async one"
                    )
                return done

        return await self._require_backend().in_thread(run)

    def _require_backend(self) -> ContextBackend:
        if self._backend is None:
            raise TransactionError(
                "this Context does not belong to an app, so it cannot complete: call the task, or enqueue it"
            )
        return self._backend

    @property
    def logger(self) -> LoggerAdapter[Any]:
        """The logger `holdfast.job`, which adds the job's id, task, queue and attempt to every record."""
        import logging

        about = {"task": self.task, "queue": self.queue, "attempt": self.attempt}
        fields = {"job_id": self.job_id, **about, "holdfast": {"job": self.job_id, **about}}
        return logging.LoggerAdapter(logging.getLogger("holdfast.job"), fields)

    def __repr__(self) -> str:
        return f"<Context job {self.job_id} {self.task} on {self.queue}: attempt {self.attempt}>"
