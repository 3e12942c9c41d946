"""`WorkerInfo`: what `app.workers()` returns."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..clock import SECOND, as_datetime
from ..model.worker import WorkerRecord


class WorkerInfo(Struct, frozen=True):
    """A running worker, or one that ended lately."""

    id: str
    """Random at each start. `job.worker` has it."""
    pid: int
    host: str
    queues: tuple[str, ...] | None
    """None: all queues."""
    tasks: tuple[str, ...]
    """The tasks that it can run."""
    concurrency: int
    lease: float
    """Seconds until its claims expire without a heartbeat."""
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None
    ending: Literal["stopped", "lost"] | None
    """How it ended. "lost": it died, and another worker noticed."""

    @classmethod
    def from_record(cls, record: WorkerRecord) -> "WorkerInfo":
        return cls(
            id=record.id,
            pid=record.pid,
            host=record.host,
            queues=record.queues,
            tasks=record.tasks,
            concurrency=record.concurrency,
            lease=record.lease / SECOND,
            started_at=as_datetime(record.started_at),
            heartbeat_at=as_datetime(record.heartbeat_at),
            ended_at=None if record.ended_at is None else as_datetime(record.ended_at),
            ending="stopped" if record.ending == "stopped" else None if record.ending is None else "lost",
        )
