"""Store cron schedules, and enqueue their jobs when they are due."""

import builtins
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from ..blobs import PLACEHOLDER
from ..errors import InvalidInput
from ..model.job import Inserted
from ..model.schedule import DueOccurrences, NewSchedule, ScheduleRecord
from .blobs import Blobs
from .database import Connection, DamageGuard, SharedDatabase
from .enqueue import Enqueue
from .protocol import ScheduleAction
from .statements import as_json, fitting, integer

FIRES_KEPT = 1000  # per schedule, to recognise occurrences that have fired
EVENTS: dict[ScheduleAction, str] = {"remove": "removed", "pause": "paused", "resume": "resumed"}
_COLUMNS = ", ".join(ScheduleRecord.__struct_fields__)


class StoredSchedules:
    """Implements ScheduleStore."""

    def __init__(
        self, db: SharedDatabase, blobs: Blobs, enqueue: Enqueue, guarded: DamageGuard, random: Random
    ) -> None:
        self._db, self._sql, self._clock, self._blobs, self._enqueue = db, db.sql, db.clock, blobs, enqueue
        self._random = random
        self.fire = guarded(self._fire)

    def put(self, schedule: NewSchedule, actor: str, reason: str = "") -> bool:
        def work(connection: Connection) -> bool:
            known = self._find_schedule(connection, schedule.name)
            if known is None:
                self._write_schedule(connection, self._sql.add_schedule, schedule, None)
                self._note_schedule(connection, "schedule_added", schedule.name, actor, reason, schedule)
                return True
            if known.source == "code" and schedule.source == "runtime":
                raise InvalidInput(
                    f"the schedule {schedule.name!r} comes from @app.cron: change it in the code or choose another "
                    "name; if it is no longer in the code, remove it first"
                )
            if schedule.is_like(known):
                return False
            self._write_schedule(connection, self._sql.change_schedule, schedule, known)
            self._note_schedule(connection, "schedule_changed", schedule.name, actor, reason, schedule)
            return True

        self._blobs.require_inline(schedule.args)
        self._db.require_space(len(schedule.args))
        return self._db.run(work, durable=True, wakes=True)

    def _write_schedule(
        self, connection: Connection, statement: str, schedule: NewSchedule, known: ScheduleRecord | None
    ) -> None:
        """Store the schedule. A new expression counts from now; otherwise missed occurrences stay missed."""
        now = self._clock.now()
        values = {field: getattr(schedule, field) for field in NewSchedule.__struct_fields__}
        if known is not None and (known.cron, known.tz) == (schedule.cron, schedule.tz):
            values |= {"handled_at": known.handled_at, "next_at": known.next_at}
        else:
            values |= {"handled_at": now, "next_at": _next_after(schedule, now)}
        connection.execute(statement, values | {"now": now})

    def change(self, action: ScheduleAction, name: str, actor: str, reason: str = "") -> bool:
        """Remove, pause or resume a schedule. Occurrences missed during a pause do not fire.

        Returns False if nothing changed.
        """

        def work(connection: Connection) -> bool:
            known = self._find_schedule(connection, name)
            if known is None or (action != "remove" and (known.paused_at is None) == (action == "resume")):
                return False
            now = self._clock.now()
            given = {"name": name, "now": now, "next_at": _next_after(known, now) if action == "resume" else None}
            connection.execute(getattr(self._sql, f"{action}_schedule"), given)
            self._note_schedule(connection, f"schedule_{EVENTS[action]}", name, actor, reason)
            return True

        return self._db.run(work, durable=True, wakes=True)

    def list(self, after: str = "", limit: int = 1000, name: str | None = None) -> builtins.list[ScheduleRecord]:
        """Return the schedules after this name, by name; or the one of this name."""
        if name is not None:
            found = self._db.read(lambda connection: self._find_schedule(connection, name))
            return [] if found is None else [found]
        statement = self._sql.list_schedules.replace("{columns}", _COLUMNS)
        return _behind(after, self._db.rows(statement, (after, limit)))

    def due(
        self, tasks: Sequence[str], declared: Sequence[str], now: int, after: str, limit: int
    ) -> tuple[builtins.list[ScheduleRecord], int | None]:
        """Return the due schedules, by name, and the time of the next occurrence after now."""
        statement = self._sql.due_schedules.replace("{columns}", _COLUMNS)
        given = {"tasks": as_json(tasks), "declared": as_json(declared), "now": now, "after": after, "limit": limit}

        def work(connection: Connection) -> tuple[builtins.list[ScheduleRecord], int | None]:
            found = _behind(after, connection.execute(statement, given).fetchall())
            return found, connection.execute(self._sql.next_occurrence, given).fetchone()[0]

        return self._db.read(work)

    def runs(self, name: str, limit: int) -> builtins.list[tuple[int, int | None]]:
        """Return the last occurrences that fired, newest first: their times, and the ids of their jobs, if any."""
        rows = self._db.rows(self._sql.runs_of_schedule, {"name": name, "limit": limit})
        return [(integer(at), job_id) for at, job_id in rows]

    def _fire(self, due: Sequence[tuple[ScheduleRecord, DueOccurrences]]) -> builtins.list[int]:
        def work(connection: Connection) -> builtins.list[int]:
            ids: builtins.list[int] = []
            for (schedule, plan), blob in zip(due, blobs, strict=True):
                ids += self._fire_here(connection, schedule, plan, blob)
            return ids

        is_large = self._blobs.store.is_large
        blobs = [
            self._blobs.put(schedule.args, reserve=True) if plan.moments and is_large(schedule.args) else None
            for schedule, plan in due
        ]
        sizes = [len(schedule.args) * len(plan.moments) for schedule, plan in due]
        self._db.require_space(sum(size for size, blob in zip(sizes, blobs, strict=True) if blob is None))
        return self._db.run(work, durable=any(plan.moments for _, plan in due), wakes=True)

    def _fire_here(
        self, connection: Connection, schedule: ScheduleRecord, plan: DueOccurrences, blob: str | None
    ) -> builtins.list[int]:
        if plan.moments and plan.moments[-1] > self._clock.now():
            return []  # the clock was set back since the plan was made
        values = {"name": schedule.name, "revision": schedule.revision}
        advanced = {"handled_at": plan.handled_at, "next_at": plan.next_at}
        if connection.execute(self._sql.advance_schedule, values | advanced).rowcount == 0:
            return []  # another worker fired it, or an operator changed it
        fired = [self._fire_one(connection, schedule, moment, blob) for moment in plan.moments]
        if fired:
            connection.execute(self._sql.prune_fires, {"name": schedule.name, "keep": FIRES_KEPT})
        return [job_id for job_id in fired if job_id is not None]

    def run_now(self, name: str, actor: str, reason: str = "") -> Inserted | None:
        def work(connection: Connection) -> Inserted | None:
            schedule = self._find_schedule(connection, name)
            if schedule is None:
                return None
            now = self._clock.now()
            inserted = self._enqueue.insert_one(connection, replace(schedule.job(now), actor=actor))
            if inserted.existing is None:
                connection.execute(self._sql.set_last_job, {"name": name, "fire_at": now, "job_id": inserted.id})
            detail = {"schedule": name, "job": inserted.id} | ({"reason": reason} if reason else {})
            values = {"now": now, "event": "schedule_run", "actor": actor, "detail": as_json(detail)}
            connection.execute(self._sql.log_event, values)
            return inserted

        self._db.require_space(0)
        return self._db.run(work, durable=True, wakes=True)

    def _fire_one(
        self, connection: Connection, schedule: ScheduleRecord, fire_at: int, blob: str | None
    ) -> int | None:
        """Enqueue one occurrence. Returns the id of the job, or None if it has fired before, or its key is taken.

        blob: the name of its payload in the blob store, if it is large.
        """
        values: dict[str, Any] = {"name": schedule.name, "fire_at": fire_at}
        if connection.execute(self._sql.add_fire, values).rowcount == 0:
            return None
        job = schedule.job(fire_at, self._random)
        inserted = self._enqueue.insert_one(
            connection, job if blob is None else replace(job, args=PLACEHOLDER, args_blob=blob)
        )
        values["job_id"] = inserted.id
        connection.execute(self._sql.set_fire_job, values)
        connection.execute(self._sql.set_last_job, values)
        return inserted.id if inserted.existing is None else None

    def _find_schedule(self, connection: Connection, name: str) -> ScheduleRecord | None:
        row = connection.execute(self._sql.get_schedule.replace("{columns}", _COLUMNS), (name,)).fetchone()
        return None if row is None else _record(row)

    def _note_schedule(
        self,
        connection: Connection,
        event: str,
        name: str,
        actor: str,
        reason: str,
        put: NewSchedule | None = None,
    ) -> None:
        detail = {"schedule": name} | ({} if put is None else {"cron": put.cron, "tz": put.tz, "task": put.task})
        detail |= {"reason": reason} if reason else {}
        values = {"now": self._clock.now(), "event": event, "actor": actor, "detail": as_json(detail)}
        connection.execute(self._sql.log_event, values)


def _behind(name: str, rows: Sequence[tuple[Any, ...]]) -> list[ScheduleRecord]:
    """Return the schedules of a page, which are those behind this name.

    A damaged name that is not UTF-8 is read as another text, which may be before it. It would come again for ever.
    """
    return [one for one in map(_record, rows) if one.name > name]


def _record(row: tuple[Any, ...]) -> ScheduleRecord:
    return ScheduleRecord(**dict(zip(ScheduleRecord.__struct_fields__, fitting(ScheduleRecord, row), strict=True)))


def _next_after(schedule: NewSchedule, moment: int) -> int:
    from ..cron import occurrences

    return occurrences(schedule.cron, schedule.tz).after(moment)
