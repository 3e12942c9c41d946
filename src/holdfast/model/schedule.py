"""A schedule: which task is enqueued when. Pure data, as in `model`."""

from typing import Literal

from msgspec import Struct

from .job import NewJob, Redacted

Missed = Literal["coalesce", "skip", "catch_up"]
"""What becomes of occurrences that nobody was there to enqueue."""
Source = Literal["code", "runtime"]
CATCH_UP_LIMIT = 100


class NewSchedule(Redacted, frozen=True):
    """What `add` and `@app.cron` hand to the store."""

    name: str
    cron: str  # five fields, or one of the @words
    tz: str
    task: str
    args: str  # JSON
    queue: str
    priority: int
    max_attempts: int
    timeout: int | None
    key: str | None = None
    tags: str | None = None  # a JSON array
    missed: Missed = "coalesce"
    catch_up_limit: int = CATCH_UP_LIMIT
    source: Source = "runtime"

    def job(self, fire_at: int) -> NewJob:
        """The job of one occurrence."""
        return NewJob(
            queue=self.queue,
            task=self.task,
            args=self.args,
            run_at=fire_at,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout=self.timeout,
            key=self.key,
            tags=self.tags,
            actor=f"cron:{self.name}",
        )

    def is_like(self, other: "NewSchedule") -> bool:
        return all(getattr(self, field) == getattr(other, field) for field in NewSchedule.__struct_fields__)


class ScheduleRecord(NewSchedule, frozen=True, kw_only=True):
    """A row of the schedules table, as it was read. Times are microseconds."""

    paused_at: int | None
    handled_at: int  # every occurrence up to here has been dealt with
    next_at: int | None  # None: not worked out yet
    last_at: int | None  # the newest occurrence that became a job
    last_job_id: int | None
    created_at: int
    updated_at: int
    revision: int


class DueOccurrences(Struct, frozen=True):
    """What is to be done about a schedule at one moment."""

    moments: list[int]  # the occurrences to enqueue, oldest first
    handled_at: int
    next_at: int
