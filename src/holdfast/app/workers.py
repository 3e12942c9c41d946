"""Who runs jobs: `app.workers()`."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..clock import SECOND, as_datetime
from ..model.worker import WorkerRecord


class WorkerInfo(Struct, frozen=True):
    """A worker that is there, or one of the last that were."""

    id: str
    """Random with every start; `job.worker` names it."""
    pid: int
    host: str
    queues: tuple[str, ...] | None
    """None: all of them."""
    tasks: tuple[str, ...]
    """What it has the code for."""
    concurrency: int
    lease: float
    """Seconds that its claims last without a word from it."""
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None
    ending: Literal["stopped", "lost"] | None
    """How it ended; lost: it died, and others found that out."""

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
