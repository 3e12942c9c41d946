"""Bulk operations: count what one would change, start, follow and stop it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...app.operations import Operation
from ...model.job import BulkAction, Counted
from ...text import to_data
from ..auth import Role, RoleNeeded
from .call import (
    HIDDEN,
    MAX_LISTED,
    Call,
    Done,
    Items,
    PageQuery,
    Reason,
    Resource,
)
from .jobs import JobFilters

endpoint = Resource()


class Selection(Struct, forbid_unknown_fields=True):
    """The jobs of a bulk operation: by ids, or by the filters of `GET /jobs`."""

    action: BulkAction
    ids: list[int] | None = None
    filters: JobFilters | None = None

    def wanted(self, call: Call) -> dict[str, Any]:
        if self.action == "delete" and call.identity.role < Role.admin:
            raise RoleNeeded(Role.admin)
        found: dict[str, Any] = {} if self.filters is None else {**self.filters.filters(call)}
        return found if self.ids is None else {**found, "ids": self.ids}


class OperationBody(Selection, forbid_unknown_fields=True):
    reason: str = ""
    delay: float = 0
    attempts: int | None = None


@endpoint("POST", "/operations/count", Role.operator, Counted, body=Selection)
def count_selected(call: Call) -> Any:
    """Count the jobs that a bulk operation would change: a dry run. It stops early in a large database."""
    return to_data(call.app.operations.count(call.body.action, **call.body.wanted(call)))


@endpoint("POST", "/operations", Role.operator, Operation, body=OperationBody, status=202)
def start_operation(call: Call) -> Any:
    """Retry, cancel, run now or delete many jobs in the background. Deleting needs the role admin."""
    body: OperationBody = call.body
    how = {"delay": body.delay, "attempts": body.attempts, **call.by}
    return _operation(call, call.app.operations.start(body.action, **body.wanted(call), **how))


@endpoint("GET", "/operations", Role.viewer, Items[Operation], query=PageQuery)
def list_operations(call: Call) -> Any:
    """List bulk operations with their progress, newest first."""
    page = call.app.operations.list(limit=min(call.query.limit, MAX_LISTED), cursor=call.query.cursor)
    return {"items": [_operation(call, one) for one in page], "next": page.next, "previous": page.previous}


@endpoint("GET", "/operations/{id:int}", Role.viewer, Operation)
def get_operation(call: Call) -> Any:
    """Get a bulk operation with its progress."""
    return _operation(call, call.app.operations.get(call.path["id"]))


@endpoint("POST", "/operations/{id:int}/stop", Role.operator, Done, body=Reason)
def stop_operation(call: Call) -> Any:
    """Stop a bulk operation. The jobs that it has changed are not changed back."""
    return {"ok": call.app.operations.stop(call.path["id"], **call.by)}


def _operation(call: Call, one: Operation) -> dict[str, Any]:
    data: dict[str, Any] = to_data(one)
    if call.hides_payloads and "args" in data["criteria"]:
        data["criteria"] = {**data["criteria"], "args": HIDDEN}
    return data
