"""`Job`: a handle on a stored job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, cast, get_args, overload

import msgspec

from ..blobs import is_reference
from ..clock import SECOND, as_datetime
from ..codec import decoder
from ..errors import BlobMissing, InvalidPayload, JobFailed, JobNotFound, NoResult, StoreError
from ..failure import shorten
from ..model.job import TERMINAL, JobRecord, Status
from .waiting import WaitForEnd, finish_in_thread, in_thread

if TYPE_CHECKING:
    from .app import App
    from .task import Task


T = TypeVar("T")
R = TypeVar("R", covariant=True)
_decode_any = decoder(Any)


def _optional(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else as_datetime(microseconds)


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / SECOND


class Stored(Generic[T]):
    """A read-only attribute of a handle: a field of its record, converted if need be."""

    def __init__(self, doc: str, convert: Callable[[Any], T] | None = None, field: str = "") -> None:
        self.__doc__, self._convert, self._field = doc, convert, field

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._read = attrgetter(f"_record.{self._field or name}")

    @property
    def kind(self) -> Any:
        """The type of the value: `int` of a `Stored[int](…)`."""
        return get_args(vars(self)["__orig_class__"])[0]

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: object, owner: type) -> T: ...
    def __get__(self, handle: object | None, owner: type) -> T | Self:
        if handle is None:
            return self
        value: Any = self._read(handle)
        return value if self._convert is None else self._convert(value)

    def __set__(self, handle: object, value: Never) -> None:
        raise AttributeError(f"{self._name!r} of {type(handle).__name__!r} cannot be set")


class Job(Generic[R]):
    """A stored job, as last read. `refresh()` reads it again; `wait()` waits for its result."""

    def __init__(self, app: App, record: JobRecord, deduplicated: bool = False) -> None:
        self._app, self._record = app, record
        self._fetched: dict[str, bytes] = {}
        self.deduplicated = deduplicated
        """Whether the enqueue found this job, which had the key already, instead of storing a new one."""

    @property
    def app(self) -> App:
        """The app that the job was read with."""
        return self._app

    id = Stored[int]("Its id.")
    status = Stored[Status]("One of `blocked`, `scheduled`, `ready`, `running`, `succeeded`, `failed`, `cancelled`.")
    task = Stored[str | None]("The task's name, or None for a message.")
    queue = Stored[str]("The queue.")
    priority = Stored[int]("Higher priorities are claimed first.")
    key = Stored[str | None]("The key that makes the enqueue idempotent.")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags."""
        found = _plain(self._record.tags.encode(), "list of tags") if self._record.tags else []
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def args(self) -> Any:
        """The payload as plain JSON values. Raises InvalidPayload if it cannot be decoded."""
        return _plain(self._whole(self._record.args, self._record.args_blob), "payload")

    @property
    def raw_args(self) -> bytes:
        """The payload as it is stored, also if it is not JSON. Never raises.

        Of a large payload that is missing or cannot be read, this is the reference to it.
        """
        with suppress(BlobMissing, StoreError):
            return self._whole(self._record.args, self._record.args_blob)
        return self._record.args

    version = Stored[int](
        "The version of the task's code that enqueued it, or 0: see docs/guides/upgrades.md#versions."
    )
    attempt = Stored[int]("The number of the last attempt.")
    max_attempts = Stored[int]("The limit of attempts.")
    timeout = Stored[float | None]("Seconds that one attempt may take.", _seconds)

    @property
    def expires_at(self) -> datetime | None:
        """When the job is cancelled if it still waits then: see docs/guides/jobs.md#jobs-that-expire."""
        return None if self.is_external else _optional(self._record.expires_at)

    worker = Stored[str | None]("The worker that runs it or ran it last.")
    error_code = Stored[str | None]("The error code of the last attempt that failed.")
    error_detail = Stored[str | None]("The text of that error, or the reason of a cancellation.")

    @property
    def state(self) -> dict[str, Any] | None:
        """What an attempt saved last, if anything: see docs/guides/workers.md#state-that-survives-attempts."""
        return None if self._record.state is None else cast(dict[str, Any], _plain(self._record.state, "state"))

    progress = Stored[float | None]("The fraction that is done, 0 to 1, as last reported by `ctx.progress`.")
    progress_text = Stored[str | None]("The text that was reported with it.")

    @property
    def result(self) -> R | None:
        """The return value of the task, in its annotated type; None until there is one."""
        if self._record.result is None:
            return None
        data = self._whole(self._record.result, self._record.result_blob)
        task = self._app.tasks.get(self._record.task or "")
        if task is None:
            return cast(R, _plain(data, "result"))
        return cast(R, _decoded(task.signature.decode_result, data, "result"))

    @property
    def plain_result(self) -> Any:
        """The result as plain JSON values, whatever the annotation; None until there is one."""
        if self._record.result is None:
            return None
        return _plain(self._whole(self._record.result, self._record.result_blob), "result")

    def _whole(self, data: bytes, blob: str | None) -> bytes:
        """Read a large payload or result, which is stored outside the row."""
        if blob is None or not is_reference(data, blob):
            return data
        if blob not in self._fetched:
            self._fetched[blob] = self._app.store.jobs.read_blob(blob)
        return self._fetched[blob]

    run_at = Stored[datetime]("When it is due or was due. Times are aware datetimes in UTC.", as_datetime)
    created_at = Stored[datetime]("When it was enqueued.", as_datetime)
    started_at = Stored[datetime | None]("When the last attempt started.", _optional)
    finished_at = Stored[datetime | None]("When it finished.", _optional)
    chain_id = Stored[int]("The id of the first job of its chain, which may be this one.", field="chain")
    chain_index = Stored[int]("The position in its chain, from 0. A job alone is a chain of one.")

    @property
    def on_blocker_failure(self) -> str:
        """What happens if a blocker fails or is cancelled: `hold`, `fail`, `cancel` or `run`.

        See docs/guides/workflows.md#when-one-of-them-fails.
        """
        return self._record.on_blocker_failure or "hold"

    batch_id = Stored[int | None]("The id of the batch that it is a member of.")

    @property
    def is_external(self) -> bool:
        """Whether no worker runs it: `app.jobs.complete` or `app.jobs.fail` settles it."""
        return bool(self._record.external)

    @property
    def timeout_at(self) -> datetime | None:
        """When an external job fails unless it is settled before."""
        return _optional(self._record.expires_at) if self.is_external else None

    @property
    def is_finished(self) -> bool:
        """Whether the status is `succeeded`, `failed` or `cancelled`."""
        return self._record.status in TERMINAL

    def refresh(self) -> Job[R]:
        """Read the job again, and return it."""
        record = self._app.store.jobs.get(self.id)
        if record is None:
            raise JobNotFound(f"there is no job {self.id} any more: it was deleted")
        self._record = record
        return self

    def wait(self, timeout: float | None = None) -> R:
        """Wait until the job has finished, and return its result. Raises JobFailed or WaitTimeout.

        The result has the annotated type. If there is none, because the job continued with `Then` or was completed
        without a result, None is returned if the annotation allows it; otherwise NoResult is raised.
        """
        self._end(timeout).run()
        return self._outcome()

    async def await_result(self, timeout: float | None = None) -> R:
        """Do the same as `wait` in a coroutine. While it waits it holds no thread."""
        await self._end(timeout).run_async()
        return await finish_in_thread(self._outcome)

    def _end(self, timeout: float | None) -> WaitForEnd:
        return WaitForEnd(
            self._app.store,
            ("job", self.id),
            lambda: self.refresh().is_finished,
            timeout,
            lambda: still(f"job {self.id}", self),
        )

    def _outcome(self) -> R:
        if self.status != "succeeded":
            raise self.failure()
        task = self._app.tasks.get(self._record.task or "")
        if self._record.result is None and task is not None and not task.signature.allows_none:
            raise NoResult(
                f"job {self.id} has no result of its own, since it continued with Then: use wait_chain()"
                if self._record.continued
                else f"job {self.id} succeeded without a result, which {task.name} is annotated to have"
            )
        return cast(R, self.result)

    @overload
    def wait_chain(self, timeout: float | None = None) -> Any: ...
    @overload
    def wait_chain(self, timeout: float | None = None, *, last: Task[..., T]) -> T: ...
    def wait_chain(self, timeout: float | None = None, *, last: Task[..., Any] | None = None) -> Any:
        """Wait until its chain has ended, and return the result of the last job. Raises as `wait`.

        last: the task that the chain is expected to end with, whose result this is. If it ended with another task,
            NoResult is raised.
        """
        return self._app.chains.get(self.id).wait(timeout, last=last)

    @overload
    async def await_chain(self, timeout: float | None = None) -> Any: ...
    @overload
    async def await_chain(self, timeout: float | None = None, *, last: Task[..., T]) -> T: ...
    async def await_chain(self, timeout: float | None = None, *, last: Task[..., Any] | None = None) -> Any:
        """Do the same as `wait_chain` in a coroutine."""
        return await (await self._app.chains.aget(self.id)).await_result(timeout, last=last)

    arefresh = in_thread(refresh)

    def failure(self) -> JobFailed:
        """Return the exception that `wait` raises for a failed or cancelled job."""
        return JobFailed(self.id, self.status, self.error_code, self.error_detail)

    def __repr__(self) -> str:
        what = "message" if self.task is None else self.task
        return f"<Job {self.id} {what} on {self.queue}: {self.status}, attempt {self.attempt} of {self.max_attempts}>"


def still(what: str, job: Job[Any]) -> str:
    """Describe an unfinished job, for WaitTimeout."""
    hint = "" if job.status == "running" else f" (app.jobs.explain({job.id}) says why)"
    return f"{what} is still {job.status}{hint}"


def _plain(data: bytes, what: str) -> Any:
    return _decoded(_decode_any, data, what)


def _decoded(decode: Callable[[bytes], Any], data: bytes, what: str) -> Any:
    try:
        return decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidPayload(f"the stored {what} cannot be decoded: {shorten(str(error))}") from None
