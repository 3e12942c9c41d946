"""Workers, storage, retention and the doctor."""

from __future__ import annotations

from typing import Any

from ...model.stats import (
    RetentionStatus,
    Storage,
    WorkerHealth,
)
from ...text import to_data
from ...upkeep.doctor.check import Checkup
from ...upkeep.vacuum import VacuumReport
from ..auth import Role
from .call import (
    Call,
    Done,
    Items,
    Reason,
    Resource,
)

VACUUM_SECONDS = 5.0
endpoint = Resource()


@endpoint("GET", "/workers", Role.viewer, Items[WorkerHealth])
def workers(call: Call) -> Any:
    """List the live workers and the most recent of the others."""
    return {"items": to_data(call.app.observe.workers())}


@endpoint("POST", "/workers/{id}/stop", Role.operator, Done, body=Reason)
def stop_worker(call: Call) -> Any:
    """Ask a worker to stop when its jobs have finished."""
    return {"ok": call.app.stop_worker(call.path["id"], **call.by)}


@endpoint("GET", "/storage", Role.viewer, Storage)
def storage(call: Call) -> Any:
    """Get the size of the database."""
    return to_data(call.app.observe.storage())


@endpoint("POST", "/vacuum", Role.admin, VacuumReport, body=Reason)
def vacuum(call: Call) -> Any:
    """Return free space of the database to the file system, for at most some seconds."""
    return to_data(call.app.vacuum(seconds=VACUUM_SECONDS, **call.by))


@endpoint("GET", "/retention", Role.viewer, RetentionStatus)
def retention(call: Call) -> Any:
    """Get the retention rules, and what they delete now and next."""
    return to_data(call.app.observe.retention())


@endpoint("GET", "/doctor", Role.viewer, Checkup)
def doctor(call: Call) -> Any:
    """Check the database for problems."""
    return to_data(call.app.check())
