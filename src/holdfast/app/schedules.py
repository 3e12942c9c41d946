"""`app.schedules`: tasks that are enqueued on a schedule, and the schedules that `@app.cron` declares."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from .. import validate
from ..clock import SECOND, as_datetime, as_microseconds
from ..errors import (
    InvalidArguments,
    InvalidInput,
    InvalidTask,
    JobNotFound,
    ScheduleNotFound,
    UndefinedAnnotation,
)
from ..model.job import Criteria
from ..model.schedule import CATCH_UP_LIMIT, JOB_FIELDS, Missed, NewSchedule, ScheduleRecord, Source
from .job import Job, Stored, _optional, _plain, _seconds
from .options import EnqueueOptions, Seconds
from .task import BoundTask, Task
from .waiting import in_thread

if TYPE_CHECKING:
    from .app import App


MAX_CATCH_UP_LIMIT = 1000
PAGE_ROWS = 1000
MAX_RUNS = 1000

_JOB_OPTIONS = tuple(name for name in EnqueueOptions.__annotations__ if name in JOB_FIELDS)


class Schedule:
    """A stored schedule, as last read."""

    def __init__(self, record: ScheduleRecord) -> None:
        self._record = record

    name = Stored[str]("Its name, which is unique.")
    cron = Stored[str]("The cron expression.")
    tz = Stored[str]("The time zone in which the expression is read.")
    task = Stored[str]("The task's name.")

    @property
    def args(self) -> Any:
        """The arguments as plain JSON values."""
        return _plain(self._record.args.encode(), "payload")

    queue = Stored[str]("The queue of its jobs.")
    priority = Stored[int]("The priority of its jobs.")
    max_attempts = Stored[int]("The limit of attempts of its jobs.")
    timeout = Stored[float | None]("Seconds that one attempt may take.", _seconds)
    expires = Stored[float | None]("Seconds after its occurrence was enqueued in which a job must start.", _seconds)
    key = Stored[str | None]("The key of its jobs: none is enqueued while an unfinished one has it.")
    missed = Stored[Missed]("What to do about occurrences while no worker was running.")
    catch_up_limit = Stored[int]("How many missed occurrences `catch_up` enqueues at most.")
    jitter = Stored[float](
        "Seconds by which a job may be due later than its occurrence, at random.", lambda value: value / SECOND
    )
    source = Stored[Source]("`code` if `@app.cron` declared it, `runtime` if `add` made it.")

    @property
    def paused(self) -> bool:
        return self._record.paused_at is not None

    @property
    def next_at(self) -> datetime | None:
        """The next occurrence, in UTC; None while it is paused."""
        from ..cron import NEVER

        moment = self._record.next_at
        return None if moment is None or moment >= NEVER or self.paused else as_datetime(moment)

    @property
    def in_words(self) -> str:
        """When it fires, such as "at 06:30, on Monday to Friday"."""
        from ..cron import in_words

        try:
            return in_words(self.cron)
        except InvalidInput:  # plain SQL
            return self.cron

    def upcoming(self, limit: int = 5) -> list[datetime]:
        """Return the next occurrences, in UTC, from `next_at` on; none while it is paused."""
        from ..cron import upcoming

        most = validate.integer(limit, "limit", 0, MAX_RUNS)
        if self.next_at is None:
            return []
        try:
            return [as_datetime(one) for one in upcoming(self.cron, self.tz, as_microseconds(self.next_at) - 1, most)]
        except InvalidInput:  # plain SQL
            return []

    last_at = Stored[datetime | None]("The last occurrence that became a job, in UTC.", _optional)
    last_job_id = Stored[int | None]("The id of that job, if it still exists.")

    def __repr__(self) -> str:
        when = "paused" if self.paused else f"next {self.next_at:%Y-%m-%d %H:%M} UTC" if self.next_at else "no next"
        return f"<Schedule {self.name}: {self.task} at {self.cron!r} {self.tz}, {when}>"


class ScheduleRun(Struct, frozen=True):
    """An occurrence that fired."""

    at: datetime
    job_id: int | None
    """None: an unfinished job had the key of the schedule, so none was enqueued."""
    status: str | None
    """The state of the job now. None: it was deleted."""


class Schedules:
    """`app.schedules`. For each occurrence, one of the workers that have the task enqueues one job."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.declared: dict[str, NewSchedule] = {}
        """Schedules of `@app.cron`, by name. A worker stores them when it starts."""

    def add(
        self,
        name: str,
        cron: str,
        task: Task[..., Any] | BoundTask[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        *,
        tz: str = "UTC",
        missed: Missed = "coalesce",
        catch_up_limit: int | None = None,
        jitter: Seconds = 0,
        actor: str | None = None,
        reason: str = "",
    ) -> Schedule:
        """Add a schedule, or replace the one with this name. It is on disk when this returns.

        cron: as for `@app.cron`, or an interval such as "@every 30s". args: the arguments of the task, by name.
        task: a task, its name, or `task.using(queue=…, priority=…, …)`.
        tz, missed, catch_up_limit, jitter: as for `@app.cron`. actor, reason: for the event log.
        """
        timing = self.timing(cron, tz, missed, catch_up_limit, jitter)
        if validate.name(name, "schedule name") in self.declared:
            raise InvalidInput(f"the schedule name {name!r} is used by an @app.cron in the code: choose another name")
        if args is not None and not isinstance(args, Mapping):
            raise InvalidArguments(f"args must be a mapping, such as {{'to': …}}, got {validate.shown(args)}")
        bound = self._bound(task)
        payload = bound._task.signature.encode((), dict(args or {}))
        schedule = _new(name, bound, payload, timing, "runtime")
        self._app.store.schedules.put(schedule, validate.actor(actor), validate.reason(reason))
        return self.get(name)

    def get(self, name: str) -> Schedule:
        """Return the schedule with this name. Raises ScheduleNotFound."""
        record = next(iter(self._app.store.schedules.list(name=validate.name(name, "schedule name"))), None)
        if record is None:
            raise self._not_found(name)
        return Schedule(record)

    def list(self) -> list[Schedule]:
        """Return all schedules, sorted by name."""
        found: builtins.list[Schedule] = []
        while page := self._app.store.schedules.list(found[-1].name if found else "", PAGE_ROWS):
            found += map(Schedule, page)
        return found

    def pause(self, name: str, *, actor: str | None = None, reason: str = "") -> bool:
        """Stop enqueueing jobs until the schedule is resumed. False if it was paused already."""
        known, who = validate.name(name, "schedule name"), validate.actor(actor)
        done = self._app.store.schedules.change("pause", known, who, validate.reason(reason))
        if not done:
            self.get(name)  # raises ScheduleNotFound
        return done

    def resume(self, name: str, *, actor: str | None = None, reason: str = "") -> bool:
        """Enqueue jobs again from now on. False if it was not paused."""
        known, who = validate.name(name, "schedule name"), validate.actor(actor)
        done = self._app.store.schedules.change("resume", known, who, validate.reason(reason))
        if not done:
            self.get(name)  # raises ScheduleNotFound
        return done

    def remove(self, name: str, *, actor: str | None = None, reason: str = "") -> None:
        """Remove the schedule. A schedule of `@app.cron` comes back when a worker starts: pause it instead."""
        known, who = validate.name(name, "schedule name"), validate.actor(actor)
        if not self._app.store.schedules.change("remove", known, who, validate.reason(reason)):
            raise self._not_found(name)

    def runs(self, name: str, limit: int = 5) -> builtins.list[ScheduleRun]:
        """Return the last occurrences that fired, newest first, with the states of their jobs."""
        most = validate.integer(limit, "limit", 1, MAX_RUNS)
        found = self._app.store.schedules.runs(validate.name(name, "schedule name"), most)
        ids = tuple(job_id for _, job_id in found if job_id is not None)
        jobs = self._app.store.jobs.list(Criteria(ids=ids), len(ids)).records if ids else []
        status = {job.id: job.status for job in jobs}
        return [ScheduleRun(as_datetime(at), job_id, status.get(job_id or 0)) for at, job_id in found]

    def run_now(self, name: str, *, actor: str | None = None, reason: str = "") -> Job[Any]:
        """Enqueue a job of the schedule now, paused or not, and return it. Its next occurrence stays as it is.

        If an unfinished job has the key of the schedule, that one is returned.
        """
        known, who = validate.name(name, "schedule name"), validate.actor(actor)
        inserted = self._app.store.schedules.run_now(known, who, validate.reason(reason))
        if inserted is None:
            raise self._not_found(name)
        self._app._tell_inline([inserted.id], None)
        record = self._app.store.jobs.get(inserted.id)
        if record is None:
            raise JobNotFound(f"there is no job {inserted.id} any more: it was deleted")
        return Job(self._app, record, deduplicated=inserted.existing is not None)

    # --- for @app.cron ---

    aadd, aget, alist = in_thread(add), in_thread(get), in_thread(list)
    apause, aresume, aremove = in_thread(pause), in_thread(resume), in_thread(remove)

    arun_now, aruns = in_thread(run_now), in_thread(runs)

    def timing(
        self, cron: str, tz: str, missed: Missed, catch_up_limit: int | None, jitter: Seconds = 0
    ) -> dict[str, Any]:
        """Check the expression and the options, and return the fields of a schedule."""
        from ..cron import checked

        checked(cron, tz)
        if missed not in get_args(Missed):
            raise InvalidInput(f"missed must be 'coalesce', 'skip' or 'catch_up', got {validate.shown(missed)}")
        if catch_up_limit is None:
            catch_up_limit = CATCH_UP_LIMIT
        elif missed != "catch_up":
            raise InvalidInput("catch_up_limit needs missed='catch_up': pass both")
        limit = validate.integer(catch_up_limit, "catch_up_limit", 1, MAX_CATCH_UP_LIMIT)
        timing: dict[str, Any] = {"cron": " ".join(cron.split()), "tz": tz, "missed": missed, "catch_up_limit": limit}
        return timing | {"jitter": validate.duration(jitter, "jitter")}

    def declare(self, task: Task[..., Any], name: str, timing: dict[str, Any]) -> None:
        """Add a schedule of `@app.cron`, which a worker stores when it starts."""
        if task.app is not self._app:
            raise InvalidTask(f"the task {task.name} belongs to another app: use the decorator of that app")
        taken = self.declared.get(validate.name(name, "schedule name"))
        if taken is not None:
            raise InvalidTask(
                f"the schedule name {name!r} is used by the schedule of {taken.task}: pass another name="
            )
        try:
            with suppress(UndefinedAnnotation):  # the type may be defined later in the module
                task.signature.encode((), {})
        except InvalidArguments as error:
            raise InvalidTask(
                f"@app.cron calls its task without arguments: {error}. Give every parameter a default, or use "
                "app.schedules.add(…, args=…)"
            ) from None
        self.declared[name] = _new(name, BoundTask(task, {}), "{}", timing, "code")

    def forget(self, task: Task[..., Any]) -> None:
        """Remove the schedules of a task that is defined again, as when its module is reloaded."""
        self.declared = {name: one for name, one in self.declared.items() if one.task != task.name}

    def _bound(self, task: Task[..., Any] | BoundTask[..., Any] | str) -> BoundTask[..., Any]:
        if isinstance(task, str):
            if task not in self._app.tasks:
                raise validate.suggest(task, self._app.tasks, "task")
            return BoundTask(self._app.tasks[task], {})
        bound = BoundTask(task, {}) if isinstance(task, Task) else task
        if not isinstance(bound, BoundTask):
            raise InvalidInput(
                f"task must be a task, task.using(…) or the name of a task, got {validate.shown(task)}"
            )
        if bound._task.app is not self._app:
            raise InvalidInput(f"the task {bound._task.name} belongs to another app: use the schedules of that app")
        unusable = bound._options.keys() - set(_JOB_OPTIONS)
        if unusable:
            raise InvalidInput(f"a schedule does not take {sorted(unusable)[0]}: it takes {', '.join(_JOB_OPTIONS)}")
        if isinstance(moment := bound._options.get("expires"), datetime):
            raise InvalidInput(f"expires must be seconds or a timedelta for a schedule, got {moment}")
        return bound

    def _not_found(self, name: str) -> ScheduleNotFound:
        return ScheduleNotFound(f"there is no schedule {validate.shown(name)}: see app.schedules.list()")


def _new(name: str, bound: BoundTask[..., Any], payload: str, timing: dict[str, Any], source: Source) -> NewSchedule:
    return NewSchedule.of_job(bound.new_job(payload), name=name, source=source, **timing)
