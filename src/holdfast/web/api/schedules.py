"""Schedules and batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ...app.schedules import Schedule, ScheduleRun
from ...app.workflows import BatchProgress
from ...text import to_data
from ..auth import Role
from .call import (
    MAX_LISTED,
    Call,
    Created,
    Done,
    Items,
    Reason,
    Resource,
)

RUNS = 5  # of a schedule: the last ones, and the next
endpoint = Resource()


class BatchQuery(Struct, forbid_unknown_fields=True):
    state: Literal["open", "running", "done", "abandoned"] | None = None
    limit: int = 50
    cursor: str | None = None


class ScheduleTimes(Struct):
    upcoming: list[datetime]
    runs: list[ScheduleRun]


class Changed(Struct):
    jobs: int
    """How many jobs were changed."""


@endpoint("GET", "/schedules", Role.viewer, Items[Schedule])
def list_schedules(call: Call) -> Any:
    """List the schedules."""
    return {"items": to_data(call.app.schedules.list())}


@endpoint("GET", "/schedules/{name}/times", Role.viewer, ScheduleTimes)
def schedule_times(call: Call) -> Any:
    """Get the next occurrences of a schedule, and its last runs with the states of their jobs."""
    name, schedules = call.path["name"], call.app.schedules
    return to_data(ScheduleTimes(schedules.get(name).upcoming(RUNS), schedules.runs(name, RUNS)))


@endpoint("POST", "/schedules/{name}/pause", Role.operator, Done, body=Reason)
def pause_schedule(call: Call) -> Any:
    """Stop a schedule until it is resumed."""
    return {"ok": call.app.schedules.pause(call.path["name"], **call.by)}


@endpoint("POST", "/schedules/{name}/resume", Role.operator, Done, body=Reason)
def resume_schedule(call: Call) -> Any:
    """Undo the pause of a schedule."""
    return {"ok": call.app.schedules.resume(call.path["name"], **call.by)}


@endpoint("POST", "/schedules/{name}/run", Role.operator, Created, body=Reason, status=201)
def run_schedule(call: Call) -> Any:
    """Enqueue a job of a schedule now."""
    job = call.app.schedules.run_now(call.path["name"], **call.by)
    return {"id": job.id, "deduplicated": job.deduplicated}


@endpoint("GET", "/batches", Role.viewer, Items[BatchProgress], query=BatchQuery)
def list_batches(call: Call) -> Any:
    """List batches with their progress, newest first. Members are counted up to 1,000 of each status."""
    query: BatchQuery = call.query
    page = call.app.batches.list(state=query.state, limit=min(query.limit, MAX_LISTED), cursor=query.cursor)
    return {"items": to_data(page.items), "next": page.next, "previous": page.previous, "scanned": None}


@endpoint("POST", "/batches/{id:int}/cancel", Role.operator, Changed, body=Reason)
def cancel_batch(call: Call) -> Any:
    """Cancel the unfinished members of a batch."""
    return {"jobs": call.app.batches.cancel(call.path["id"], **call.by)}


@endpoint("POST", "/batches/{id:int}/retry", Role.operator, Changed, body=Reason)
def retry_batch(call: Call) -> Any:
    """Run the failed members of a batch again."""
    return {"jobs": call.app.batches.retry(call.path["id"], **call.by)}
