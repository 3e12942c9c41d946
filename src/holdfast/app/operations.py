"""`app.operations`: one action on all jobs that match, in the background, durable and with progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .. import validate
from ..clock import with_times
from ..errors import InvalidInput, OperationNotFound
from ..model.job import STATES_FOR, BulkAction, Counted, Criteria, NewOperation, OperationRecord, OperationState, Page
from .jobs import Filters, criteria, page_by_id
from .waiting import in_thread

if TYPE_CHECKING:
    from .app import App

MAX_IDS = 10_000
MAX_SCANNED = 20_000  # jobs that a dry run looks at: one step, which takes less than a tenth of a second
MAX_COUNTED = 100_000  # the same when an operation begins: its progress is shown for minutes
PAST = {"retry": "retried", "cancel": "cancelled", "run_now": "made ready", "delete": "deleted"}
IDLE_SECONDS = 5.0  # between two checks for operations
MIN_PAUSE_SECONDS = 0.005  # after each step, for other writers


class Operation(Struct, frozen=True):
    """A bulk operation and its progress."""

    id: int
    action: BulkAction
    state: OperationState
    """"running" until it has ended, whether or not a process works on it right now."""
    criteria: dict[str, Any]
    """The filters, or the ids, as they are stored."""
    matched: int
    """How many jobs matched when it was started."""
    matched_all: bool
    """False: the count stopped early, and there were more."""
    changed: int
    """How many jobs it has changed so far."""
    progress: float
    """From 0 to 1: how much of the table was searched."""
    actor: str
    reason: str
    error: str | None
    created_at: datetime
    updated_at: datetime
    """When a process worked on it last."""
    finished_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.state != "running"


class Operations:
    """`app.operations`. Workers and the web server carry operations out, in short steps; so does `run`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._next_at = 0.0

    def count(self, action: BulkAction, *, ids: Sequence[int] | None = None, **filters: Unpack[Filters]) -> Counted:
        """Count the jobs that the action would change: a dry run. It stops early in a large database."""
        wanted = _criteria(action, ids, filters)
        return self._app.store.jobs.count(wanted, action == "delete", MAX_SCANNED)

    def start(
        self,
        action: BulkAction,
        *,
        ids: Sequence[int] | None = None,
        delay: float = 0,
        attempts: int | None = None,
        actor: str | None = None,
        reason: str = "",
        **filters: Unpack[Filters],
    ) -> Operation:
        """Store an operation, and return at once. It changes the jobs that match and that exist by now.

        action: "retry", "cancel", "run_now" or "delete". Without `status`, retry takes failed jobs only.
        delay, attempts: of retried jobs, as `app.jobs.retry`.
        """
        wanted = _criteria(action, ids, filters)
        counted = self._app.store.jobs.count(wanted, action == "delete", MAX_COUNTED)
        new = NewOperation(
            action=action,
            criteria=wanted,
            actor=validate.actor(actor),
            reason=validate.reason(reason),
            delay=validate.duration(delay, "delay"),
            attempts=None if attempts is None else validate.integer(attempts, "attempts", 1, 1000),
            matched=counted.count,
            matched_all=counted.is_complete,
        )
        self._next_at = 0.0
        return _operation(self._app.store.operations.add(new))

    def get(self, id: int) -> Operation:
        """Return the operation with this id. Raises OperationNotFound."""
        found = self._app.store.operations.list(1, id=validate.integer(id, "operation id", 1, 2**63 - 1))
        if not found:
            raise OperationNotFound(f"there is no operation {id}: it never existed, or it was deleted")
        return _operation(found[0])

    def list(self, *, limit: int = 50, cursor: str | None = None) -> Page[Operation]:
        """Return a page of operations, newest first. The last 200 that have ended are kept."""
        page = page_by_id(self._app.store.operations.list, limit, cursor)
        return Page([_operation(one) for one in page], page.next, page.previous)

    def stop(self, id: int, *, actor: str | None = None, reason: str = "") -> bool:
        """Stop an operation. The jobs that it has changed are not changed back. Returns False if it had ended."""
        self.get(id)
        return self._app.store.operations.stop(id, validate.actor(actor), validate.reason(reason))

    def run(self, id: int) -> Operation:
        """Run an operation in this thread to its end, unless another process is working on it. Return it."""
        while self._app.store.operations.step(id, self._app.store.actor) is not None:
            pass
        return self.get(id)

    def do_some(self) -> float:
        """Do a short step of each operation, if one is due. Return the seconds until the next. Workers call this."""
        begin = monotonic()
        if begin < self._next_at:
            return self._next_at - begin
        store, worked = self._app.store, False
        for one in store.operations.list(10, running=True):
            worked |= store.operations.step(one.id, store.actor) is not None
        end = monotonic()
        delay = max(MIN_PAUSE_SECONDS, end - begin) if worked else IDLE_SECONDS
        self._next_at = end + delay
        return delay

    def is_any_running(self) -> bool:
        """Return whether there is an operation that has not ended."""
        return bool(self._app.store.operations.list(1, running=True))

    acount, astart, aget, alist = in_thread(count), in_thread(start), in_thread(get), in_thread(list)
    astop, arun = in_thread(stop), in_thread(run)


def _criteria(action: BulkAction, ids: Sequence[int] | None, filters: Filters) -> Criteria:
    if action not in STATES_FOR:
        raise InvalidInput(f"action must be one of {', '.join(STATES_FOR)}, got {validate.shown(action)}")
    allowed = STATES_FOR[action]
    wanted = criteria(filters)
    if ids is not None:
        if filters:
            raise InvalidInput("pass ids or filters, not both")
        found = tuple(dict.fromkeys(validate.job_ids(ids)))
        if not 1 <= len(found) <= MAX_IDS:
            raise InvalidInput(f"ids must be 1 to {MAX_IDS:,} job ids, got {len(found):,}")
        return Criteria(ids=found, status=allowed)
    if wanted == Criteria():
        raise InvalidInput("no jobs were named: pass ids, or at least one filter such as status='failed'")
    if not wanted.status:
        return replace(wanted, status=("failed",) if action == "retry" else allowed)
    states = tuple(one for one in wanted.status if one in allowed)
    if not states:
        raise InvalidInput(f"only {' or '.join(allowed)} jobs can be {PAST[action]}, got status {wanted.status[0]}")
    return replace(wanted, status=states)


def _operation(one: OperationRecord) -> Operation:
    try:
        stored = msgspec.json.decode(one.criteria, type=dict[str, Any])
    except msgspec.DecodeError:
        stored = {}
    done = one.state == "finished" or one.until == 0
    return with_times(
        Operation,
        one,
        criteria={name: value for name, value in stored.items() if value not in (None, [], False)},
        matched_all=bool(one.matched_all),
        progress=1.0 if done else min(1.0, one.position / one.until),
    )
