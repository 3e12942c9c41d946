"""Schedules: which task is enqueued when. Pure data."""

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from .job import NewJob, Redacted

if TYPE_CHECKING:
    from random import Random

Missed = Literal["coalesce", "skip", "catch_up"]
"""What to do about occurrences during which no worker was running."""
Source = Literal["code", "runtime"]
CATCH_UP_LIMIT = 100


class NewSchedule(Redacted, frozen=True):
    """A schedule as `app.schedules.add` and `@app.cron` hand it to the store."""

    name: str
    cron: str  # five fields, or one of the @words, such as `@every 30s`
    tz: str
    task: str
    args: str  # JSON
    queue: str
    priority: int
    max_attempts: int
    timeout: int | None
    expires: int | None = None
    key: str | None = None
    tags: str | None = None  # a JSON array
    version: int = 0
    missed: Missed = "coalesce"
    catch_up_limit: int = CATCH_UP_LIMIT
    jitter: int = 0  # each job is due up to this much later than its occurrence
    source: Source = "runtime"

    @classmethod
    def of_job(cls, job: NewJob, **timing: Any) -> "NewSchedule":
        """Return a schedule that enqueues jobs like this one."""
        return cls(**{field: getattr(job, field) for field in JOB_FIELDS}, **timing)

    def job(self, fire_at: int, random: "Random | None" = None) -> NewJob:
        """Return the job of one occurrence. random: for the jitter, if any."""
        fields = {field: getattr(self, field) for field in JOB_FIELDS}
        late = 0 if random is None or not self.jitter else random.randint(0, self.jitter)
        return NewJob(**fields, run_at=fire_at + late, actor=f"cron:{self.name}")

    def is_like(self, other: "NewSchedule") -> bool:
        """Whether both have the same definition. Their state, such as the last occurrence, is ignored."""
        return all(getattr(self, field) == getattr(other, field) for field in NewSchedule.__struct_fields__)


JOB_FIELDS = tuple(field for field in NewSchedule.__struct_fields__ if field in NewJob.__struct_fields__)


class ScheduleRecord(NewSchedule, frozen=True, kw_only=True):
    """A row of the schedules table, as it was read. Times are microseconds."""

    paused_at: int | None
    handled_at: int  # all occurrences up to this time are done
    next_at: int | None  # None: not calculated yet
    last_at: int | None  # the newest occurrence that became a job
    last_job_id: int | None
    created_at: int
    updated_at: int
    revision: int


class DueOccurrences(Struct, frozen=True):
    """The occurrences of a schedule that are due."""

    moments: list[int]  # the occurrences to enqueue, oldest first
    handled_at: int
    next_at: int
