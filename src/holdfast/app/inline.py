"""What an app tells a test that has jobs run as soon as they are enqueued: see `holdfast.testing.inline`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
