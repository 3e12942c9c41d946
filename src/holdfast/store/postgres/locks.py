"""Locks: advisory ones that show which workers live, and those on the graph of jobs and on large payloads.

The connection that listens holds a lock for each worker of the process.

When the process dies, the server closes the connection and frees the lock. A lock that is gone does not prove that:
- A connection that was cut is opened again and locks again: the process has a short grace for that.
- A restart, a crash or a failover of the server frees all locks at once. That alone makes nobody dead: whoever has
  not locked again in this incarnation of the server has a longer grace, and so have all others after the connection
  of this process was cut, too.
- A worker whose heartbeat is newer than the loss of its lock lives, and only has no connection to lock with.

Behind a pooler, a session does not belong to a process, so nothing is locked. Then the heartbeat alone decides.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ...clock import SECOND
from ..processes import Slot, state_of_process
from ..statements import as_json

if TYPE_CHECKING:
    from ...model.worker import WorkerState
    from ..database import Connection, Locked
    from ..statements import Statements
    from .database import PostgresDatabase

FIRST_NUMBER = 1000  # smaller ones are other locks of Holdfast
FIRST_WITHOUT_LOCK = 2**30  # numbers from here on are of processes behind a pooler
END_OF_NUMBERS = 2**31
GRACE_SECONDS = 0.5  # for a connection that was cut
RESTART_SECONDS = 15.0  # after a start, a crash or a failover of the server
HEARTBEAT_BOUND = 60 * SECOND  # a worker without a lock is dead when its heartbeat is older
BLOCK_BOUND = 3600 * SECOND  # what has neither lock nor heartbeat, such as the block of a batch
MAX_REMEMBERED = 10_000


class _Holder(NamedTuple):
    """What the database tells about a slot."""

    is_locked: bool
    heartbeat_at: int | None
    incarnation: int


class AdvisoryLocks:
    """Implements ProcessLocks."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db = db
        self._gone_since: dict[int, tuple[float, int]] = {}  # by number: monotonic seconds, and by the clock

    def acquire(self) -> Slot:
        while True:
            number = int.from_bytes(os.urandom(4))
            if not self._db.has_sessions:
                number = FIRST_WITHOUT_LOCK + number % (END_OF_NUMBERS - FIRST_WITHOUT_LOCK)
                return Slot(number, self._db.clock.now())
            number = FIRST_NUMBER + number % (FIRST_WITHOUT_LOCK - FIRST_NUMBER)
            if self._db.lock(number):
                return Slot(number, self._look(number).incarnation)

    def release(self, slot: Slot) -> None:
        self._db.listener.unlock(slot.number)

    def is_free(self, slot: Slot) -> bool:
        number = slot.number
        if not FIRST_NUMBER <= number < END_OF_NUMBERS:  # not a number of ours
            return True
        if self._db.listener.holds(number):
            return False
        holder, now = self._look(number), self._db.clock.now()
        if number >= FIRST_WITHOUT_LOCK:
            if holder.heartbeat_at is not None:
                return now - holder.heartbeat_at > HEARTBEAT_BOUND
            return now - slot.place > BLOCK_BOUND
        if holder.is_locked:
            self._gone_since.pop(number, None)
            return False
        return self._is_gone_for_good(slot, holder, now)

    def _is_gone_for_good(self, slot: Slot, holder: _Holder, now: int) -> bool:
        if len(self._gone_since) > MAX_REMEMBERED:
            self._gone_since.clear()
        since, since_clock = self._gone_since.setdefault(slot.number, (monotonic(), now))
        if holder.heartbeat_at is not None and holder.heartbeat_at > since_clock:
            return now - holder.heartbeat_at > HEARTBEAT_BOUND
        all_at_once = holder.incarnation != slot.place or self._db.listener.was_cut(RESTART_SECONDS)
        return monotonic() - since >= (RESTART_SECONDS if all_at_once else GRACE_SECONDS)

    def is_held(self, slot: Slot) -> bool:
        return FIRST_NUMBER <= slot.number < END_OF_NUMBERS and not self.is_free(slot)

    def renewed(self, slot: Slot) -> Slot:
        """The listener has locked it again by itself. What changes is the server, and whether there is a pooler."""
        if not self._db.has_sessions:
            return slot if slot.number >= FIRST_WITHOUT_LOCK else self.acquire()
        if slot.number >= FIRST_WITHOUT_LOCK:
            return self.acquire()
        return Slot(slot.number, self._look(slot.number).incarnation)

    def state(self, slot: Slot, pid: int, host: str) -> WorkerState:
        if self.is_free(slot):
            return "lost"
        return state_of_process(pid, host) if self._is_locked(slot.number) else "unknown"

    def watch(self) -> None:
        self._db.listener.watches_deaths = True

    def _is_locked(self, number: int) -> bool:
        """Return whether the lock is held, or there is none behind a pooler."""
        return number >= FIRST_WITHOUT_LOCK or self._db.listener.holds(number) or self._look(number).is_locked

    def _look(self, number: int) -> _Holder:
        given = {"class": self._db.lock_class, "number": number}
        locked, heartbeat_at, incarnation = self._db.rows(self._db.sql.lock_holder, given)[0]
        return _Holder(bool(locked), heartbeat_at, int(incarnation))


class RowLocks:
    """Row locks, and an advisory lock. They go by id, so that they do not cross. Implements GraphLocks."""

    def __init__(self, sql: Statements, lock_class: int) -> None:
        self._sql, self._class = sql, lock_class

    def lock_endings(self, connection: Connection) -> Locked:
        """One transaction at a time resolves ends, and sees all that was committed before it got the lock.

        A transaction of the caller with a snapshot of its own does not: the next claim of a worker resolves its ends.
        """
        (sees,) = connection.execute(self._sql.sees_commits).fetchone()
        if not sees:
            return "impossible"
        connection.execute(self._sql.lock_endings, (self._class,))
        return "locked"

    def hold_chains(self, connection: Connection, chains: Collection[int]) -> None:
        """Lock the last job of each chain, and look again, since the chain may have continued meanwhile."""
        given = {"chains": as_json(sorted(chains))}
        connection.execute(self._sql.mark_awaited_in_order, given)
        before: list[int] | None = None
        while True:
            held = sorted(row[0] for row in connection.execute(self._sql.hold_last_jobs, given).fetchall())
            if held == before or not held:
                return
            before = held

    def hold_batch(self, connection: Connection, batch: int) -> None:
        connection.execute(self._sql.hold_batch, (batch,))

    def lock_batches(self, connection: Connection, batches: Collection[int]) -> set[int]:
        given = {"batches": as_json(sorted(batches))}
        locked = {row[0] for row in connection.execute(self._sql.lock_batches, given).fetchall()}
        known = {row[0] for row in connection.execute(self._sql.known_batches, given).fetchall()}
        return known - locked


class NameLocks:
    """Advisory locks, one for many names, so that a transaction never has more than 256. Implements BlobLocks."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def hold_blob(self, connection: Connection, name: str) -> bool:
        (_, sees) = connection.execute(self._sql.hold_blob, (name,)).fetchone()
        return bool(sees)

    def lock_blob(self, connection: Connection, name: str) -> bool:
        (locked,) = connection.execute(self._sql.lock_blob, (name,)).fetchone()
        return bool(locked)
