"""Batches: many jobs, and one more when all of them have ended. `app.batch(…)`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from ..clock import as_datetime
from ..errors import BatchNotFound, HoldfastError, InvalidInput
from ..failure import shorten
from ..graph import BatchRecord
from ..model import STATUSES
from . import checks
from .waiting import wait_until

if TYPE_CHECKING:
    from .app import App


class BatchProgress(Struct, frozen=True):
    """How far a batch is. A member that goes on as a chain counts once, by how its chain stands."""

    total: int
    blocked: int
    scheduled: int
    ready: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    deleted: int
    """Members that were deleted and had not succeeded. They are not in `total`, and keep `on_success` from firing."""
    sealed: bool
    """Whether the block that made it has ended. Before that, it is never done."""
    done_at: datetime | None
    """When all members had ended, or None."""

    @property
    def pending(self) -> int:
        """How many have not ended."""
        return self.blocked + self.scheduled + self.ready + self.running

    @property
    def ended(self) -> int:
        return self.total - self.pending

    @property
    def is_done(self) -> bool:
        """Whether it has ended as a whole."""
        return self.done_at is not None


class Batch:
    """`with app.batch(on_done=report) as batch:` makes one; `app.batches.get(id)` and `ctx.batch` find it again."""

    def __init__(self, app: App, id: int | None, make: Callable[[], int] | None = None, conn: Any = None) -> None:
        self._app, self._id, self._make, self._conn = app, id, make, conn

    @property
    def app(self) -> App:
        """The app that it was made or found with."""
        return self._app

    @property
    def id(self) -> int:
        if self._id is None:
            raise InvalidInput("a batch is made by its block: with app.batch(…) as batch:")
        return self._id

    def progress(self) -> BatchProgress:
        return _progress(self._read())

    def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until all members have ended. Raises WaitTimeout after so many seconds."""
        found: list[BatchProgress] = []

        def is_done() -> bool:
            found[:] = [self.progress()]
            return found[0].is_done

        wait_until(
            self._app.store, is_done, timeout, lambda: f"batch {self.id} has {found[0].pending} members to end"
        )
        return found[0]

    @property
    def success_job_id(self) -> int | None:
        """The job that `on_success` became, or None."""
        return self._read().success_job_id

    @property
    def done_job_id(self) -> int | None:
        """The job that `on_done` became, or None."""
        return self._read().done_job_id

    def _read(self) -> BatchRecord:
        record = self._app.store.workflows.batch(self.id)
        if record is None:
            raise BatchNotFound(f"there is no batch {self.id}: it never existed, or was rolled back or deleted")
        return record

    def seal(self) -> None:
        """No more members but those that members add: from now on it is done when all have ended.

        The end of its block does this. By hand it is for a batch whose process died inside the block.
        """
        self._app.store.workflows.close_batch(self.id, self._conn)
        self._tell_inline()

    def __enter__(self) -> Self:
        if self._make is None:
            raise InvalidInput(f"{self!r} was made already: only what app.batch(…) gives is entered, and once")
        self._id, self._make = self._make(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.seal()
            return
        reason = shorten(f"batch {self.id} was given up: {type(error).__name__} in the block that made it")
        try:
            self._app.store.workflows.close_batch(self.id, self._conn, cancel=reason)
        except HoldfastError as second:  # the first is what the program must see
            error.add_note(f"Its batch {self.id} could not be given up: {second}")

    def _tell_inline(self) -> None:
        if self._conn is None and self._app._inline is not None:
            record = self._read()
            jobs = [one for one in (record.done_job_id, record.success_job_id) if one is not None]
            self._app.tell_inline(jobs, None)

    def __repr__(self) -> str:
        return "<Batch, not made yet>" if self._id is None else f"<Batch {self._id}>"


class Batches:
    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Batch:
        batch = Batch(self._app, checks.integer(id, "a batch id", 1, 2**63 - 1))
        batch.progress()  # raises where there is none
        return batch


def _progress(record: BatchRecord) -> BatchProgress:
    counts = {status: record.counts.get(status, 0) for status in STATUSES}
    return BatchProgress(
        total=sum(counts.values()),
        **counts,
        deleted=record.deleted,
        sealed=record.sealed_at is not None,
        done_at=None if record.done_at is None else as_datetime(record.done_at),
    )


def batch_id(value: Any) -> int | None:
    """What `batch=` takes. None is none, so that `batch=ctx.batch` is always right."""
    if value is not None and not isinstance(value, Batch):
        raise InvalidInput(f"batch takes what app.batch(…) gives, not {checks.shown(value)}")
    return None if value is None else value.id
