"""What an app tells a test that has jobs run as soon as they are enqueued: see `holdfast.testing.inline`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..store.sqlite.transaction import Transaction
    from .app import App


class Inline(Protocol):
    def enqueued(self, app: App, ids: Sequence[int], conn: Any) -> None:
        """These jobs of tasks are stored; or will be, if there is a `conn` and it commits."""
        ...

    def after_commit(
        self, app: App, transaction: AbstractContextManager[Transaction]
    ) -> AbstractContextManager[Transaction]:
        """The same transaction, after which the jobs that it brought are run."""
        ...
