"""What an operator may do to jobs and queues."""

import sqlite3
from typing import Any

import msgspec

from ...blobs import PLACEHOLDER
from ...failure import Failure
from ...model import Criteria
from ..base import OperatorAction
from .criteria import as_json, where
from .linking import Linking
from .settling import NO_FAILURE

OPERATE_ROWS = 1000


class Operating(Linking):
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
        clause, wanted = where(criteria, self._options.prefix)
        changed, after, name = 0, 0, None
        if result is not None and self._vault.is_large(result):
            result, name = PLACEHOLDER, self._put(result)
        judged = set[int]()
        while ids := self._ids_after(after, clause, wanted):
            after = ids[-1]
            values = wanted | {
                "batch": as_json(ids),
                "delay": delay,
                "attempts": attempts,
                "actor": actor,
                "reason": reason or None,
                "note": as_json(reason) if reason else None,
                "result": result,
                "result_blob": name,
                "failure_code": failure.code,
                "failure_detail": failure.detail or None,
            }
            changed += self._operate_on(action, clause, values, ids, judged)
        if name is not None and not changed:
            self._run(lambda connection: connection.execute(self._sql.let_go, (name,)).rowcount)
        return changed

    def _ids_after(self, after: int, clause: str, wanted: dict[str, Any]) -> list[int]:
        statement = self._sql.select_ids.replace("{where}", clause)
        values = wanted | {"after": after, "limit": OPERATE_ROWS}
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [row[0] for row in rows]

    def _operate_on(
        self, action: OperatorAction, clause: str, values: dict[str, Any], ids: list[int], judged: set[int]
    ) -> int:
        # The filters once more: a job may have changed since it was selected.
        statement: str = getattr(self._sql, action).replace("{where}", clause)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock.now()
            given = values | {"now": now, "run_at": now + values["delay"]}
            changed = self._requeue_waiting(connection, statement, given) if action == "requeue" else 0
            if values["result_blob"] is not None:
                self._require_blob(connection, values["result_blob"])
            changed += connection.execute(statement, given).rowcount
            if action == "delete":
                changed += self._delete_chains(connection, clause, given, judged)
            if changed and action in ("delete", "purge"):
                self._note_deletion(connection, f"{action}d", changed, ids, values["actor"], values["reason"])
            self.resolve_here(connection)
            return changed

        return self._run(work, durable=True, wakes=True)

    def _delete_chains(
        self, connection: sqlite3.Connection, clause: str, values: dict[str, Any], judged: set[int]
    ) -> int:
        """A chain goes as a whole, and is looked at once, however many batches its jobs are in."""
        statement, deleted = self._sql.delete_fitting_chain.replace("{where}", clause), 0
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

    def pause(self, queue: str, actor: str, reason: str = "") -> bool:
        return self._set_paused(self._sql.pause, "paused", queue, actor, reason)

    def resume(self, queue: str, actor: str, reason: str = "") -> bool:
        return self._set_paused(self._sql.resume, "resumed", queue, actor, reason)

    def _set_paused(self, statement: str, event: str, queue: str, actor: str, reason: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            values = {"queue": queue, "actor": actor, "now": self._clock.now()}
            changed = connection.execute(statement, values).rowcount == 1
            if changed:
                note = {"event": event, "detail": as_json({"queue": queue} | ({"reason": reason} if reason else {}))}
                connection.execute(self._sql.note, values | note)
            return changed

        return self._run(work, durable=True, wakes=True)
