"""Bulk operations in the database: an action on all jobs that match, in steps that any process can continue.

Each step reads ids that match, and then applies the action to a batch of them in one transaction, which also moves
the position of the operation. The position is an optimistic lock: a step that another process has overtaken changes
nothing. Jobs are taken in the order of ids up to the newest one at the start, so a job that is retried and fails
again is not retried twice.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import msgspec

from ..clock import SECOND
from ..errors import StoreError
from ..model.job import Criteria, Cursor
from ..model.operation import NewOperation, OperationRecord
from .database import SharedDatabase
from .protocol import OperatorAction
from .rows import record
from .statements import as_json

BATCH_ROWS = 1000
KEPT = 200  # of those that are over
STALE = 10 * SECOND  # after which another process may continue an operation
COLUMNS = ", ".join(OperationRecord.__struct_fields__)
ACTIONS: dict[str, OperatorAction] = {
    "retry": "requeue",
    "cancel": "cancel",
    "run_now": "run_now",
    "delete": "delete",
}
MAX_ID = 2**63 - 1

FindIds = Callable[[Criteria, int, int], tuple[list[int], int]]
"""Given criteria, and the ids after and up to which to look: some ids that match, and how far the search went."""
Apply = Callable[
    [OperatorAction, Criteria, list[int], dict[str, Any], Callable[[Any], bool], Callable[[Any, int], None]], int
]


class BulkOperations:
    """Stores operations, and carries them out step by step."""

    def __init__(self, db: SharedDatabase, find: FindIds, apply: Apply) -> None:
        self._db, self._sql, self._clock, self._find, self._apply = db, db.sql, db.clock, find, apply
        self._found: tuple[int, int, list[int], int] = (0, 0, [], 0)
        """Of the last search: the operation, its position then, the ids that are left, and how far they reach."""

    def add(self, operation: NewOperation) -> OperationRecord:
        values = msgspec.structs.asdict(operation) | {"criteria": as_json(operation.criteria)}

        def work(connection: Any) -> int:
            now = self._clock.now()
            id: int = connection.execute(self._sql.add_operation, values | {"now": now}).fetchall()[0][0]
            connection.execute(self._sql.forget_operations, {"id": id, "kept": KEPT})
            self._log(connection, now, "bulk_started", operation.actor, operation.reason, id, operation.action)
            return id

        return self._get(self._db.run(work, durable=True))

    def list(
        self, limit: int, cursor: Cursor | None = None, *, id: int | None = None, running: bool = False
    ) -> builtins.list[OperationRecord]:
        """Return operations, newest first; or the one with this id; or, oldest first, those that are not over."""
        if running:
            return self._read(self._sql.running_operations, {"limit": limit})
        if id is not None:
            return self._read(self._sql.operations, {"low": id - 1, "high": id + 1, "limit": 1})
        if cursor is not None and cursor.newer:
            return self._read(self._sql.operations_newer, {"low": cursor.id, "limit": limit})[::-1]
        high = MAX_ID if cursor is None else cursor.id
        return self._read(self._sql.operations, {"low": 0, "high": high, "limit": limit})

    def step(self, id: int, runner: str) -> OperationRecord | None:
        """Apply the action to the next jobs, at most a thousand, and move the position, in one transaction.

        Returns the record after that. None: it is over, or another process is working on it.
        """
        found = self.list(1, id=id)
        if not found or found[0].state != "running" or self._is_taken(found[0], runner):
            return None
        one = found[0]
        try:
            criteria = msgspec.json.decode(one.criteria, type=Criteria)
        except msgspec.DecodeError as error:
            self._end(one, one.position, "failed", f"its criteria cannot be read: {error}")
            return self._get(id)
        ids, end_of_search = self._next(one, criteria)
        batch, rest = ids[:BATCH_ROWS], ids[BATCH_ROWS:]
        reached = batch[-1] if rest else end_of_search
        values = {"id": id, "runner": runner, "position": one.position, "reached": reached}
        taken = False

        def begin(connection: Any) -> bool:
            nonlocal taken
            now = self._clock.now()
            given = values | {"now": now, "stale": now - STALE}
            taken = bool(connection.execute(self._sql.take_operation, given).rowcount)
            return taken

        def end(connection: Any, changed: int) -> None:
            if changed:
                connection.execute(self._sql.count_changed, {"id": id, "changed": changed})

        how = {"delay": one.delay, "attempts": one.attempts, "actor": one.actor, "reason": one.reason or None}
        self._apply(ACTIONS[one.action], criteria, batch, how, begin, end)
        if not taken:
            return None
        self._found = (id, reached, rest, end_of_search)
        if reached >= one.until:
            self._end(one, reached, "finished")
        return self._get(id)

    def _is_taken(self, one: OperationRecord, runner: str) -> bool:
        now = self._clock.now()
        return one.runner not in (None, runner) and now - STALE < one.updated_at <= now

    def _next(self, one: OperationRecord, criteria: Criteria) -> tuple[builtins.list[int], int]:
        """Return ids of a search, which serves several steps. The action checks each job again."""
        id, position, ids, reached = self._found
        if (id, position) == (one.id, one.position) and ids:
            return ids, reached
        ids, reached = self._find(criteria, one.position, one.until)
        self._found = (one.id, one.position, ids, reached)
        return ids, reached

    def stop(self, id: int, actor: str, reason: str = "") -> bool:
        """Stop an operation. Jobs that it has changed stay so. Returns False if it was over."""
        return self._end(self._get(id), 0, "stopped", actor=actor, reason=reason)

    def _end(
        self,
        one: OperationRecord,
        reached: int,
        state: str,
        error: str | None = None,
        *,
        actor: str | None = None,
        reason: str = "",
    ) -> bool:
        values = {"id": one.id, "reached": reached, "state": state, "error": error}

        def work(connection: Any) -> bool:
            now = self._clock.now()
            ended: bool = connection.execute(self._sql.end_operation, values | {"now": now}).rowcount == 1
            if ended:
                self._log(connection, now, f"bulk_{state}", actor or one.actor, reason, one.id, one.action)
            return ended

        return self._db.run(work, durable=True)

    def _log(self, connection: Any, now: int, event: str, actor: str, reason: str, id: int, action: str) -> None:
        detail = {"operation": id, "action": action} | ({"reason": reason} if reason else {})
        values = {"now": now, "event": event, "actor": actor, "detail": as_json(detail)}
        connection.execute(self._sql.log_event, values)

    def _get(self, id: int) -> OperationRecord:
        found = self.list(1, id=id)
        if not found:
            raise StoreError(f"operation {id} was deleted")
        return found[0]

    def _read(self, statement: str, values: dict[str, Any]) -> builtins.list[OperationRecord]:
        filled = statement.replace("{columns}", COLUMNS)
        rows = self._db.read(lambda connection: connection.execute(filled, values).fetchall())
        return [record(OperationRecord, row) for row in rows]
