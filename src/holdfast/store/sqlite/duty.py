"""Who prunes: one at a time, across processes. It is seen by the lock that its process holds whether it lives."""

import os
import secrets
import sqlite3
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec

from ..pruned import Pruned, Pruner, Upkeep
from .attending import Attending
from .criteria import as_json
from .presence import Slot


class Duty(Attending):
    _own_slot: dict[str, Slot]  # of runs whose process has no worker

    def begin_upkeep(self, kind: Pruner, actor: str, note: dict[str, Any]) -> str | None:
        """A token for the run; None where another is at it. An operator takes it from a worker."""
        token = secrets.token_hex(8)
        slot = next(iter(self._slots.values()), None)
        if slot is None:
            slot = self._own_slot[token] = self._lock_file().hold()

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(self._sql.upkeep).fetchone()
            if row is not None and row[0] is not None:
                if (kind == "worker" or row[2] == "operator") and self._is_at_it(row):
                    return False
                self._note_pruning(connection, row, interrupted=True)
            values = {"token": token, "actor": actor, "kind": kind, "pid": os.getpid(), "now": self._clock.now()}
            values |= {"slot": slot.number, "inode": slot.inode, "note": as_json(note)}
            connection.execute(self._sql.take_upkeep, values)
            return True

        taken = False
        try:
            taken = self._run(work)
        finally:
            if not taken:
                self._let_go(token)
        return token if taken else None

    def _is_at_it(self, row: Any) -> bool:
        slot = Slot(row[4], row[5])
        return not self._lock_file().is_free(slot) and self._lock_file().is_current(slot)

    def end_upkeep(self, token: str, interrupted: bool) -> None:
        """Leaves the event, if the run has deleted something, or an operator asked for it."""

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute(self._sql.upkeep).fetchone()
            if row is None or row[0] != token:
                return  # another has taken over, and has written the event
            self._note_pruning(connection, row, interrupted)
            deleted = bool(_counts(row[7]))
            connection.execute(self._sql.end_upkeep, {"token": token, "now": self._clock.now(), "deleted": deleted})

        try:
            self._run(work, durable=True)
        finally:
            self._let_go(token)

    def upkeep(self) -> Upkeep:
        row = self._read(lambda connection: connection.execute(self._sql.upkeep).fetchone())
        if row is None:
            return Upkeep(None, None, None, None, {}, None, {})
        token, actor, kind, pid, _, _, begun_at, counts, _, last_at, last_counts = row
        if token is None or not self._is_at_it(row):
            return Upkeep(None, None, None, None, {}, last_at, _counts(last_counts))
        return Upkeep(pid, actor, kind, begun_at, _counts(counts), last_at, _counts(last_counts))

    def _do_upkeep(
        self, token: str, counts: dict[str, int], do: Callable[[sqlite3.Connection], Pruned]
    ) -> Pruned | None:
        """In one transaction with the sum of what the run did. None: another has taken over, and nothing was done."""

        def work(connection: sqlite3.Connection) -> Pruned | None:
            begun = perf_counter()
            done = do(connection)
            so_far = {
                name: n for name in {*counts, *done.counts} if (n := counts.get(name, 0) + done.counts.get(name, 0))
            }
            if connection.execute(self._sql.count_upkeep, {"token": token, "counts": as_json(so_far)}).rowcount == 0:
                raise _TakenOver
            return Pruned(done.counts, done.freed, done.rows, perf_counter() - begun)

        try:
            return self._run(work)
        except _TakenOver:
            return None

    def _note_pruning(self, connection: sqlite3.Connection, row: Any, interrupted: bool) -> None:
        _, actor, kind, _, _, _, _, counts, note, _, _ = row
        found = _counts(counts)
        if not found and kind == "worker":
            return
        detail = found | msgspec.json.decode(note or "{}") | ({"interrupted": True} if interrupted else {})
        values = {"now": self._clock.now(), "event": "pruned", "actor": actor, "detail": as_json(detail)}
        connection.execute(self._sql.note, values)

    def note_deed(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        """What an operator did to the database itself."""
        values = {"now": self._clock.now(), "event": event, "actor": actor, "detail": as_json(detail)}
        self._run(lambda connection: connection.execute(self._sql.note, values), durable=True)

    # --- the policy, as the last program that had one said ---

    def retention(self) -> str | None:
        row = self._read(lambda connection: connection.execute(self._sql.get_meta, ("retention",)).fetchone())
        return None if row is None else str(row[0])

    def put_retention(self, text: str, actor: str, detail: dict[str, Any]) -> bool:
        """False if it was the same already."""

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(self._sql.get_meta, ("retention",)).fetchone()
            if row is not None and row[0] == text:
                return False
            connection.execute(self._sql.set_meta, ("retention", text))
            values = {"now": self._clock.now(), "event": "retention_changed", "actor": actor}
            connection.execute(self._sql.note, values | {"detail": as_json(detail)})
            return True

        return self.retention() != text and self._run(work, durable=True)

    def _let_go(self, token: str) -> None:
        slot = self._own_slot.pop(token, None)
        if slot is not None:
            self._lock_file().let_go(slot)


class _TakenOver(Exception):
    """The run has lost its token: what it did in this transaction is undone."""


def _counts(text: str | None) -> dict[str, int]:
    return msgspec.json.decode(text, type=dict[str, int]) if text else {}
