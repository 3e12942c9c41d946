"""What an operator may do to jobs and queues."""

import sqlite3
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ...blobs import PLACEHOLDER
from ...failure import Failure
from ...model.job import Criteria
from ..protocol import OperatorAction
from ..statements import as_json
from .blobs import Blobs
from .database import Database
from .listing import Listing, where
from .settle import NO_FAILURE
from .workflow import Workflows

OPERATE_ROWS = 1000


class Operate:
    def __init__(self, db: Database, blobs: Blobs, workflows: Workflows, listing: Listing) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._listing = listing

    def operate(
        self,
        action: OperatorAction,
        criteria: Criteria,
        actor: str,
        *,
        delay: int = 0,
        attempts: int = 1,
        reason: str = "",
        result: str | None = None,
        failure: Failure = NO_FAILURE,
    ) -> int:
        if action == "pause" or action == "resume":
            return sum(self._set_paused(action, queue, actor, reason) for queue in criteria.queue)
        # The ids need not be looked for once more in those of a batch; but a chain goes only if they name all of it.
        again = criteria if action == "delete" else replace(criteria, ids=None)
        clause, wanted = where(again, self._db.options.prefix)
        changed, name = 0, None
        if result is not None and self._blobs.store.is_large(result):
            result, name = PLACEHOLDER, self._blobs.put(result)
        judged = set[int]()
        for ids in self._batches(criteria):
            values = wanted | {
                "batch": as_json(ids),
                "delay": delay,
                "attempts": attempts,
                "actor": actor,
                "reason": reason or None,
                "result": result,
                "result_blob": name,
                "failure_code": failure.code,
                "failure_detail": failure.detail or None,
            }
            changed += self._operate_on(action, clause, values, ids, judged)
        if changed and action in ("delete", "purge"):
            self._workflows.forget_events()
        if name is not None and not changed:
            self._db.run(lambda connection: connection.execute(self._sql.mark_unused, (name,)).rowcount)
        return changed

    def _batches(self, criteria: Criteria) -> Iterator[list[int]]:
        for step in self._listing.steps(criteria):
            yield from (step.ids[at : at + OPERATE_ROWS] for at in range(0, len(step.ids), OPERATE_ROWS))

    def _operate_on(
        self, action: OperatorAction, clause: str, values: dict[str, Any], ids: list[int], judged: set[int]
    ) -> int:
        # The filters once more: a job may have changed since it was selected.
        statement: str = getattr(self._sql, action).replace("{where}", clause)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock.now()
            given = values | {"now": now, "run_at": now + values["delay"]}
            if action in ("requeue", "complete"):
                connection.execute(self._sql.mark_results_unused, given)
            changed = self._requeue_waiting(connection, statement, given) if action == "requeue" else 0
            if values["result_blob"] is not None:
                self._blobs.require_blob(connection, values["result_blob"])
            changed += connection.execute(statement, given).rowcount
            if action == "delete":
                changed += self._delete_chains(connection, clause, given, judged)
            if changed and action in ("delete", "purge"):
                noted = values["actor"], values["reason"]
                self._workflows.note_deletion(connection, f"{action}d", changed, ids, *noted)
            self._workflows.resolve_here(connection)
            return changed

        return self._db.run(work, durable=True, wakes=True)

    def _delete_chains(
        self, connection: sqlite3.Connection, clause: str, values: dict[str, Any], judged: set[int]
    ) -> int:
        """A chain goes as a whole, and is looked at once, however many batches its jobs are in."""
        statement, deleted = self._sql.delete_matching_chain.replace("{where}", clause), 0
        for (chain,) in connection.execute(self._sql.chains_among, values).fetchall():
            if chain not in judged:
                judged.add(chain)
                deleted += connection.execute(statement, values | {"chain": chain}).rowcount
        return deleted

    def _requeue_waiting(self, connection: sqlite3.Connection, statement: str, values: dict[str, Any]) -> int:
        """Those that come back wait again for what was not well, unless it has ended well since. One for which
        something waits that it would wait for itself does not come back. One after the other, since they may wait for
        each other. Returns how many; what is left in the batch waits for nothing."""
        ids, changed = set(msgspec.json.decode(values["batch"])), 0
        for job_id, chain, awaited, runs in connection.execute(self._sql.would_wait, values).fetchall():
            ids.remove(job_id)
            given = {"chain": chain, "chains": awaited, "job": job_id}
            if connection.execute(self._sql.waits_for_itself, given).fetchone() is None:
                connection.execute(self._sql.hold_again, given)
                # What runs however they ended is not held by one that ended while the job was out of it.
                connection.execute(self._sql.note_ended if runs else self._sql.note_ended_well, given)
                changed += connection.execute(statement, values | {"batch": as_json([job_id])}).rowcount
        values["batch"] = as_json(sorted(ids))
        return changed

    def _set_paused(self, action: Literal["pause", "resume"], queue: str, actor: str, reason: str) -> bool:
        statement, event = (self._sql.pause, "paused") if action == "pause" else (self._sql.resume, "resumed")

        def work(connection: sqlite3.Connection) -> bool:
            values = {"queue": queue, "actor": actor, "now": self._clock.now()}
            changed = connection.execute(statement, values).rowcount == 1
            if changed:
                note = {"event": event, "detail": as_json({"queue": queue} | ({"reason": reason} if reason else {}))}
                connection.execute(self._sql.note, values | note)
            return changed

        return self._db.run(work, durable=True, wakes=True)
