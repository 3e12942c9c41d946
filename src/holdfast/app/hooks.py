"""What an app asks of whoever traces it: see `holdfast.contrib.otel`."""

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
    def enqueued(self, app: App, ids: Sequence[int], conn: Any) -> None:
        """These jobs of tasks are stored; or will be, if there is a `conn` and it commits."""
        ...

    def ended(self, app: App, job_id: int) -> None:
        """Somebody has settled this job: those who waited for it may be ready."""
        ...

    def after_commit(self, app: App, transaction: AbstractContextManager[T]) -> AbstractContextManager[T]:
        """The same transaction, after which the jobs that it brought are run."""
        ...


class Tracing(Protocol):
    """It stands in for the store where something is enqueued, and adds to each job where it comes from."""

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]: ...

    def middleware(self) -> Callable[[Context], Any] | None:
        """To be around every handler; None while nobody wants to know."""
        ...

    def current(self) -> str | None:
        """Where we are now, for a job that is stored later; None outside of any trace."""
        ...
