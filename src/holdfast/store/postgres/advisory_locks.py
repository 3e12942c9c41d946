"""Liveness of workers by advisory lock: the connection that listens holds a lock for each worker of the process.

When the process dies, the server closes the connection and frees the lock. A lock that is gone does not prove that:
a cut connection is opened again and locks again, and a restart of the server frees all locks at once. So a process
counts as dead when its lock was gone for a while, and for longer after a restart.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING

from ..processes import Slot, state_of_process

if TYPE_CHECKING:
    from ...model.worker import WorkerState
    from .database import PostgresDatabase

FIRST_NUMBER = 1000  # smaller ones are other locks of Holdfast
GRACE_SECONDS = 0.3  # for a connection that was cut
RESTART_SECONDS = 15.0  # after a start of the server


class AdvisoryLocks:
    """Implements ProcessLocks."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db = db
        self._gone_since: dict[int, float] = {}

    def acquire(self) -> Slot:
        number = FIRST_NUMBER + int.from_bytes(os.urandom(4)) % (2**31 - FIRST_NUMBER)
        self._db.listener.lock(number)
        return Slot(number, self._server()[0])

    def release(self, slot: Slot) -> None:
        self._db.listener.unlock(slot.number)

    def is_free(self, slot: Slot) -> bool:
        if not FIRST_NUMBER <= slot.number < 2**31:  # not a number of ours
            return True
        if self._is_locked(slot):
            self._gone_since.pop(slot.number, None)
            return False
        since = self._gone_since.setdefault(slot.number, monotonic())
        place, uptime = self._server()
        if place != slot.place and uptime < RESTART_SECONDS:
            return False
        return monotonic() - since >= GRACE_SECONDS

    def is_held(self, slot: Slot) -> bool:
        return FIRST_NUMBER <= slot.number < 2**31 and (self._is_locked(slot) or not self.is_free(slot))

    def renewed(self, slot: Slot) -> Slot:
        return Slot(slot.number, self._server()[0])  # the listener has locked it again by itself

    def state(self, slot: Slot, pid: int, host: str) -> WorkerState:
        if self.is_free(slot):
            return "lost"
        return state_of_process(pid, host) if self._is_locked(slot) else "unknown"

    def watch(self) -> None:
        self._db.listener.watches_deaths = True

    def _is_locked(self, slot: Slot) -> bool:
        if self._db.listener.holds(slot.number):
            return True
        given = {"class": self._db.lock_class, "number": slot.number}
        return bool(self._db.rows(self._db.sql.is_locked, given)[0][0])

    def _server(self) -> tuple[int, float]:
        """Return when the server was started, and for how many seconds it has run."""
        started, uptime = self._db.rows(self._db.sql.server_start)[0]
        return int(started), float(uptime)
