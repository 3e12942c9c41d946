"""Operator actions on jobs and queues, at once or as bulk operations in the background.

A bulk operation applies an action to all jobs that match, in steps that any process can continue. Each step reads ids
that match, and applies the action to a batch of them in one transaction, which also moves the position of the
operation. The position is an optimistic lock: a step that another process has overtaken changes nothing. Jobs are
taken in the order of ids up to the newest one at the start, so a job that is retried and fails again is not retried
twice.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ..blobs import PLACEHOLDER
from ..clock import SECOND
from ..errors import StoreError
from ..failure import Failure
from ..model.job import Criteria, Cursor, NewOperation, OperationRecord
from .blobs import Blobs
from .database import Connection, SharedDatabase
from .listing import Listing, where
from .protocol import OperatorAction
from .settle import NO_FAILURE
from .statements import as_json, record
from .workflow import Workflows

BATCH_ROWS = 1000


class Operate:
    """Applies operator actions to all matching jobs, in batches."""

    def __init__(self, db: SharedDatabase, blobs: Blobs, workflows: Workflows, listing: Listing) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._listing = listing

    def operate(
        self,
        action: OperatorAction,
        criteria: Criteria,
        actor: str,
        *,
        delay: int = 0,
        attempts: int | None = None,
        reason: str = "",
        result: str | None = None,
        failure: Failure = NO_FAILURE,
    ) -> int:
        if action == "pause" or action == "resume":
            return sum(self._set_paused(action, queue, actor, reason) for queue in criteria.queue)
        changed, name = 0, None
        if result is not None and self._blobs.store.is_large(result):
            result, name = PLACEHOLDER, self._blobs.put(result)
        checked_chains = set[int]()
        values = {
            "delay": delay,
            "attempts": attempts,
            "actor": actor,
            "reason": reason or None,
            "result": result,
            "result_blob": name,
            "failure_code": failure.code,
            "failure_detail": failure.detail or None,
        }
        for ids in self._batches(criteria):
            changed += self._operate_on(action, criteria, values, ids, checked_chains)
        if changed and action in ("delete", "purge"):
            self._workflows.forget_events()
        if name is not None and not changed:
            self._db.run(lambda connection: connection.execute(self._sql.mark_unused, (name,)).rowcount)
        return changed

    def apply(
        self,
        action: OperatorAction,
        criteria: Criteria,
        ids: list[int],
        how: dict[str, Any],
        begin: Callable[[Connection], bool],
        end: Callable[[Connection, int], None],
    ) -> int:
        """Apply the action to the jobs among these that match, in one transaction with `begin` and `end`.

        begin: returns whether to go on. end: is given how many jobs were changed.
        """
        values = dict.fromkeys(("result", "result_blob", "failure_code", "failure_detail")) | how
        changed = self._operate_on(action, criteria, values, ids, set(), begin, end)
        if changed and action == "delete":
            self._workflows.forget_events()
        return changed

    def _batches(self, criteria: Criteria) -> Iterator[list[int]]:
        for step in self._listing.steps(criteria):
            yield from (step.ids[at : at + BATCH_ROWS] for at in range(0, len(step.ids), BATCH_ROWS))

    def _operate_on(
        self,
        action: OperatorAction,
        criteria: Criteria,
        values: dict[str, Any],
        ids: list[int],
        checked_chains: set[int],
        begin: Callable[[Connection], bool] = lambda _: True,
        end: Callable[[Connection, int], None] = lambda *_: None,
    ) -> int:
        # With the filters again: a job may have changed since it was selected. The batch is selected by its ids, so
        # those of the caller need not be checked; but a chain is deleted only if they include all of its jobs.
        clause, wanted = where(criteria if action == "delete" else replace(criteria, ids=None), self._db)
        statement: str = getattr(self._sql, action).replace("{where}", clause)
        values = wanted | values | {"batch": as_json(ids)}

        def work(connection: Connection) -> int:
            if not begin(connection):
                return 0
            now = self._clock.now()
            given = values | {"now": now, "run_at": now + values["delay"]}
            if action in ("requeue", "complete"):
                connection.execute(self._sql.mark_results_unused, given)
            changed = self._requeue_with_blockers(connection, statement, given) if action == "requeue" else 0
            if values["result_blob"] is not None:
                self._blobs.require_blob(connection, values["result_blob"])
            changed += connection.execute(statement, given).rowcount
            if changed and action == "requeue":
                self._workflows.reopen_batches(connection, ids)
            if action == "delete":
                changed += self._delete_chains(connection, clause, given, checked_chains)
            if changed and action in ("delete", "purge"):
                self._workflows.log_deletion(
                    connection, f"{action}d", changed, ids, values["actor"], values["reason"]
                )
            self._workflows.resolve_here(connection)
            end(connection, changed)
            return changed

        return self._db.run(work, durable=True, wakes=True)

    def _delete_chains(
        self, connection: Connection, clause: str, values: dict[str, Any], checked_chains: set[int]
    ) -> int:
        """Delete chains of which all jobs match. A chain with jobs in several batches is checked once."""
        statement, deleted = self._sql.delete_matching_chain.replace("{where}", clause), 0
        for (chain,) in connection.execute(self._sql.chains_among, values).fetchall():
            if chain not in checked_chains:
                checked_chains.add(chain)
                deleted += connection.execute(statement, values | {"chain": chain}).rowcount
        return deleted

    def _requeue_with_blockers(self, connection: Connection, statement: str, values: dict[str, Any]) -> int:
        """Requeue the jobs of the batch that have blockers, one by one, since they may wait for each other.

        A requeued job waits again for blockers that did not succeed, unless they have succeeded since. A job that
        would wait for itself is not requeued. Returns how many were requeued; the rest of the batch has no blockers.
        """
        ids, changed = set(msgspec.json.decode(values["batch"])), 0
        for job_id, chain, awaited, runs in connection.execute(self._sql.blocked_if_requeued, values).fetchall():
            ids.remove(job_id)
            given = {"chain": chain, "chains": awaited, "job": job_id}
            if connection.execute(self._sql.waits_for_itself, given).fetchone() is None:
                connection.execute(self._sql.hold_again, given)
                # A job that runs even if its blockers fail does not wait for blockers that have finished meanwhile.
                finished = self._sql.queue_finished if runs else self._sql.queue_succeeded
                connection.execute(finished, given)
                changed += connection.execute(statement, values | {"batch": as_json([job_id])}).rowcount
        values["batch"] = as_json(sorted(ids))
        return changed

    def _set_paused(self, action: Literal["pause", "resume"], queue: str, actor: str, reason: str) -> bool:
        statement, event = (self._sql.pause, "paused") if action == "pause" else (self._sql.resume, "resumed")

        def work(connection: Connection) -> bool:
            values = {"queue": queue, "actor": actor, "reason": reason or None, "now": self._clock.now()}
            changed = connection.execute(statement, values).rowcount == 1
            if changed:
                note = {"event": event, "detail": as_json({"queue": queue} | ({"reason": reason} if reason else {}))}
                connection.execute(self._sql.log_event, values | note)
            return changed

        return self._db.run(work, durable=True, wakes=True)


KEPT_OPERATIONS = 200  # of those that are over
STALE_AFTER = 10 * SECOND  # after which another process may continue an operation
OPERATION_COLUMNS = ", ".join(OperationRecord.__struct_fields__)
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
            connection.execute(self._sql.forget_operations, {"id": id, "kept": KEPT_OPERATIONS})
            self._log(connection, now, "operation_started", operation.actor, operation.reason, id, operation.action)
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
            given = values | {"now": now, "stale": now - STALE_AFTER}
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
        return one.runner not in (None, runner) and now - STALE_AFTER < one.updated_at <= now

    def _next(self, one: OperationRecord, criteria: Criteria) -> tuple[builtins.list[int], int]:
        """Return ids of a search, which serves several steps. The action checks each job again."""
        id, position, ids, reached = self._found
        if (id, position) == (one.id, one.position) and ids:
            return ids, reached
        ids, reached = self._find(criteria, one.position, one.until)
        self._found = (one.id, one.position, ids, reached)
        return ids, reached

    def stop(self, id: int, actor: str, reason: str = "") -> bool:
        """Stop an operation. The jobs that it has changed are not changed back. Returns False if it had ended."""
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
                self._log(connection, now, f"operation_{state}", actor or one.actor, reason, one.id, one.action)
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
        filled = statement.replace("{columns}", OPERATION_COLUMNS)
        rows = self._db.read(lambda connection: connection.execute(filled, values).fetchall())
        return [record(OperationRecord, row) for row in rows]
