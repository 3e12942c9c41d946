"""`Job`: a handle on a stored job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

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

    @property
    def id(self) -> int:
        return self._record.id

    @property
    def status(self) -> Status:
        return self._record.status

    @property
    def task(self) -> str | None:
        """The task's name; None for a message."""
        return self._record.task

    @property
    def queue(self) -> str:
        return self._record.queue

    @property
    def args(self) -> Any:
        """The payload as plain JSON values."""
        return _plain(self._whole(self._record.args, self._record.args_blob), "payload")

    @property
    def raw_args(self) -> bytes:
        """The payload as it is stored, also if it is not JSON. Never raises.

        Of a large payload that is missing or cannot be read, this is the reference to it.
        """
        with suppress(BlobMissing, StoreError):
            return self._whole(self._record.args, self._record.args_blob)
        return self._record.args

    @property
    def version(self) -> int:
        """The version of the task's code that enqueued it; 0 if the task has none."""
        return self._record.version

    @property
    def priority(self) -> int:
        return self._record.priority

    @property
    def attempt(self) -> int:
        return self._record.attempt

    @property
    def max_attempts(self) -> int:
        return self._record.max_attempts

    @property
    def timeout(self) -> float | None:
        return None if self._record.timeout is None else self._record.timeout / SECOND

    @property
    def expires_at(self) -> datetime | None:
        """When the job is cancelled if it still waits then."""
        return None if self.is_external else _optional(self._record.expires_at)

    @property
    def key(self) -> str | None:
        return self._record.key

    @property
    def tags(self) -> tuple[str, ...]:
        found = _plain(self._record.tags.encode(), "list of tags") if self._record.tags else []
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def worker(self) -> str | None:
        return self._record.worker

    @property
    def error_code(self) -> str | None:
        return self._record.error_code

    @property
    def error_detail(self) -> str | None:
        return self._record.error_detail

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

    @property
    def progress(self) -> float | None:
        """The fraction that is done, 0 to 1, as last reported by `ctx.progress`."""
        return self._record.progress

    @property
    def progress_text(self) -> str | None:
        return self._record.progress_text

    @property
    def state(self) -> dict[str, Any] | None:
        """What an attempt saved last with `ctx.save_state`; None if there is nothing."""
        return None if self._record.state is None else cast(dict[str, Any], _plain(self._record.state, "state"))

    @property
    def run_at(self) -> datetime:
        return as_datetime(self._record.run_at)

    @property
    def created_at(self) -> datetime:
        return as_datetime(self._record.created_at)

    @property
    def started_at(self) -> datetime | None:
        return _optional(self._record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return _optional(self._record.finished_at)

    @property
    def chain_id(self) -> int:
        """The id of the first job of its chain, which may be this one."""
        return self._record.chain

    @property
    def chain_index(self) -> int:
        """The position in its chain, from 0."""
        return self._record.chain_index

    @property
    def on_blocker_failure(self) -> str:
        """What happens to the job if a blocker fails or is cancelled."""
        return self._record.on_blocker_failure or "hold"

    @property
    def batch_id(self) -> int | None:
        """The id of the batch that the job is a member of, or None."""
        return self._record.batch_id

    @property
    def is_external(self) -> bool:
        """Whether it is settled by `app.jobs.complete` or `.fail`, and not run by a worker."""
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


def _optional(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else as_datetime(microseconds)
