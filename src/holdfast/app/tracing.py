"""What an app asks of whoever traces it: see `holdfast.contrib.otel`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..context import Context
from ..model import Inserted, NewJob


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
