"""Hooks of an app: `Inline` for `holdfast.testing.inline`, `Tracing` for `holdfast.contrib.otel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..context import Context
from ..model.job import Inserted, NewJob

if TYPE_CHECKING:
    from .app import App


T = TypeVar("T")


class Inline(Protocol):
    """Runs jobs in tests as soon as they are enqueued."""

    def enqueued(self, app: App, ids: Sequence[int], conn: Any) -> None:
        """Called when jobs were stored; with `conn`, they are stored when it commits."""
        ...

    def ended(self, app: App, job_id: int) -> None:
        """Called when `app.jobs` settled the job: jobs that waited for it may be ready."""
        ...

    def after_commit(self, app: App, transaction: AbstractContextManager[T]) -> AbstractContextManager[T]:
        """Wrap a transaction, to run its jobs after it committed."""
        ...


class Tracing(Protocol):
    """Wraps the inserts of the store, and adds the trace context to each job."""

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]: ...

    def middleware(self) -> Callable[[Context], Any] | None:
        """Return the middleware for every task, or None while tracing is off."""
        ...

    def current(self) -> str | None:
        """Return the current trace context, for a job that is stored later; None outside of a trace."""
        ...
