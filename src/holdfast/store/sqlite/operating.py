"""What an operator may do to jobs and queues."""

import sqlite3
from typing import Any

from ...model import Criteria
from ..base import OperatorAction
from .criteria import as_json, where
from .part import Part

OPERATE_ROWS = 1000


class Operating(Part):
    def operate(
        self,
        action: OperatorAction,
        criteria: Criteria,
        actor: str,
        *,
        delay: int = 0,
        attempts: int = 1,
        reason: str = "",
    ) -> int:
        clause, wanted = where(criteria, self._options.prefix)
        changed, after = 0, 0
        while ids := self._ids_after(after, clause, wanted):
            after = ids[-1]
            values = wanted | {
                "batch": as_json(ids),
                "delay": delay,
                "attempts": attempts,
                "actor": actor,
                "reason": reason or None,
            }
            changed += self._operate_on(action, clause, values, [ids[0], ids[-1]])
        return changed

    def _ids_after(self, after: int, clause: str, wanted: dict[str, Any]) -> list[int]:
        statement = self._sql.select_ids.replace("{where}", clause)
        values = wanted | {"after": after, "limit": OPERATE_ROWS}
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [row[0] for row in rows]

    def _operate_on(self, action: OperatorAction, clause: str, values: dict[str, Any], among: list[int]) -> int:
        # The filters once more: a job may have changed since it was selected.
        statement: str = getattr(self._sql, action).replace("{where}", clause)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock.now()
            given = values | {"now": now, "run_at": now + values["delay"]}
            changed = connection.execute(statement, given).rowcount
            if changed and action in ("delete", "purge"):
                note = {"event": f"{action}d", "detail": as_json({"count": changed, "among": among})}
                connection.execute(self._sql.note, given | note)
            return changed

        return self._run(work, durable=True, wakes=True)

    def pause(self, queue: str, actor: str) -> bool:
        return self._set_paused(self._sql.pause, "paused", queue, actor)

    def resume(self, queue: str, actor: str) -> bool:
        return self._set_paused(self._sql.resume, "resumed", queue, actor)

    def _set_paused(self, statement: str, event: str, queue: str, actor: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            values = {"queue": queue, "actor": actor, "now": self._clock.now()}
            changed = connection.execute(statement, values).rowcount == 1
            if changed:
                note = {"event": event, "detail": as_json({"queue": queue})}
                connection.execute(self._sql.note, values | note)
            return changed

        return self._run(work, durable=True, wakes=True)
