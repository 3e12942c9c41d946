"""The app's side of a `Context`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..context import Completion
from .job import Job
from .waiting import finish_in_thread
from .workflows import Batch

if TYPE_CHECKING:
    from .app import App


T = TypeVar("T")


class AppContextBackend:
    """Reads jobs, results and batches for a `Context`, and opens its transactions."""

    def __init__(self, app: App) -> None:
        self._app = app

    def job(self, job_id: int) -> Job[Any]:
        return self._app.jobs.get(job_id)

    def blocker_results(self, job_id: int) -> tuple[Any, ...]:
        return tuple(self._result(one.id) for one in self._app.store.workflows.blockers(job_id).found)

    def batch(self, job_id: int) -> Any:
        record = self._app.store.jobs.get(job_id)
        if record is not None and record.batch_id is not None:
            return self._app.batches.get(record.batch_id)
        batch = self._app.store.workflows.batch(callback=job_id)
        return None if batch is None else Batch(self._app, batch.id)

    def completion(self, result: Any) -> AbstractContextManager[Completion]:
        return self._app._with_inline(self._completion(result))

    @contextmanager
    def _completion(self, result: Any) -> Iterator[Completion]:
        with self._app.store.transaction(completes=True) as opened:
            opened.result = result
            yield opened

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        self._app.store.require_no_transaction()
        return finish_in_thread(call)

    def _result(self, last_id: int | None) -> Any:
        record = None if last_id is None else self._app.store.jobs.get(last_id)
        if record is None:  # deleted
            return None
        job: Job[Any] = Job(self._app, record)
        return job.result if job.status == "succeeded" else job.failure()
