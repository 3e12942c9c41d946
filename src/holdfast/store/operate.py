"""Operator actions on jobs and queues."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ..blobs import PLACEHOLDER
from ..failure import Failure
from ..model.job import Criteria
from .database import Connection, SharedDatabase
from .listing import Listing, where
from .offload import Blobs
from .protocol import OperatorAction
from .settle import NO_FAILURE
from .statements import as_json
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
