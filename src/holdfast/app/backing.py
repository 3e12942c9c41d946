"""What a running task's Context asks of its app."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from ..context import Completion
from .aio import finish_in_thread
from .job import Job

if TYPE_CHECKING:
    from .app import App


T = TypeVar("T")


class AppBacking:
    def __init__(self, app: App) -> None:
        self._app = app

    def job(self, job_id: int) -> Job[Any]:
        return self._app.jobs.get(job_id)

    def blockers(self, job_id: int) -> tuple[Any, ...]:
        return tuple(self._result(one.last_id) for one in self._app.store.blockers_of(job_id))

    def batch(self, job_id: int) -> Any:
        record = self._app.store.get(job_id)
        batch_id = None if record is None else record.batch_id
        if batch_id is None:
            batch_id = self._app.store.batch_of_callback(job_id)
        return None if batch_id is None else self._app.batches.get(batch_id)

    def completion(self, result: Any) -> AbstractContextManager[Completion]:
        return self._app.with_inline(self._app.store.completion(result))

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        self._app.store.refuse_waiting_for_itself()
        return finish_in_thread(call)

    def _result(self, last_id: int) -> Any:
        record = self._app.store.get(last_id)
        if record is None:  # it was deleted by hand
            return None
        job: Job[Any] = Job(self._app, record)
        return job.result if job.status == "succeeded" else job.failure()
