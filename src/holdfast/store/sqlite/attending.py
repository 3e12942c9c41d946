"""Workers: who is there, who has died, and what becomes of the jobs they held."""

import logging
import socket
import sqlite3
from typing import Any

from ...model import Lease, WorkerRecord
from ...wording import plural
from .criteria import as_json
from .linking import Linking
from .presence import LockFile, Slot, is_stopped, lock_file, lock_path
from .rollcall import as_worker

log = logging.getLogger("holdfast.worker")

LOST_ROWS = 1000
ENDED_WORKERS_KEPT = 100


class Attending(Linking):
    _slots: dict[str, Slot]

    def enlist(self, worker: WorkerRecord) -> None:
        """From now on, and for as long as this process lives, others know that the worker does."""
        slot = self._lock_file().hold()

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._sql.enlist, _as_row(worker, slot))
            connection.execute(self._sql.forget_ended_workers, {"keep": ENDED_WORKERS_KEPT})

        try:
            self._run(work)
        except BaseException:
            self._lock_file().let_go(slot)
            raise
        self._slots[worker.id] = slot
        self._ready().watcher.also_watch(lock_path(self._options.path))

    def retire(self, worker_id: str) -> None:
        """The worker has stopped. Should it hold something still, that goes back uncounted."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._sql.return_all, {"worker": worker_id, "now": self._clock.now()})
            self._end(connection, worker_id, "stopped")

        slot = self._slots.pop(worker_id, None)
        try:
            self._run(work, wakes=True)
        finally:
            if slot is not None:
                self._lock_file().let_go(slot)

    def heartbeat(self, worker_id: str) -> bool:
        """False where others have taken this worker for dead: it needs a new name."""
        slot = self._slots[worker_id]
        if not self._lock_file().is_current(slot):  # somebody has removed the file, so nobody sees the lock
            slot = self._slots[worker_id] = self._lock_file().hold_visibly(slot)
            self._ready().watcher.also_watch(lock_path(self._options.path))

        def work(connection: sqlite3.Connection) -> bool:
            values = {"id": worker_id, "slot": slot.number, "inode": slot.inode, "now": self._clock.now()}
            return connection.execute(self._sql.heartbeat, values).rowcount == 1

        return self._run(work, atomic=True)

    def workers(self) -> list[WorkerRecord]:
        rows = self._read(lambda connection: connection.execute(self._sql.workers).fetchall())
        return [as_worker(*row) for row in rows]

    def claims_of(self, worker_id: str) -> list[Lease]:
        rows = self._read(lambda connection: connection.execute(self._sql.claims_of, (worker_id,)).fetchall())
        return [Lease(*row) for row in rows]

    def deaths_seen(self) -> int:
        """Grows when a worker may have died, as far as somebody waits for commits."""
        return self._ready().watcher.endings

    def recover_lost(self) -> int:
        """running -> ready or failed, for everything that dead workers held."""
        recovered = 0
        for worker_id, *slot, _pid, _host, _lease in self._present_workers():
            if self._lock_file().is_free(Slot(*slot)):
                recovered += self._recover_from(worker_id)
        return recovered

    def renew_for_the_living(self, connection: sqlite3.Connection, times: dict[str, Any]) -> None:
        """A worker that lives and is only slow, since a handler hogs the interpreter, keeps its jobs.

        In the transaction that recovers the others, and by the same reading of the clock: whoever is late only
        because the database was locked must not lose anything between the two.
        """
        names = {row[0] for row in connection.execute(self._sql.late_workers, times).fetchall()}
        if not names:
            return
        for worker_id, number, inode, pid, host, lease in connection.execute(self._sql.present_workers).fetchall():
            if worker_id in names and (worker_id in self._slots or self._is_awake(Slot(number, inode), pid, host)):
                connection.execute(self._sql.renew_for, times | {"worker": worker_id, "lease": lease})

    def _is_awake(self, slot: Slot, pid: int, host: str) -> bool:
        """It holds its lock, and was not stopped by a signal. A process id means something only on its own host."""
        file = self._lock_file()
        if file.is_free(slot) or not file.is_current(slot):
            return False
        return host != socket.gethostname() or not is_stopped(pid)

    def _present_workers(self) -> list[Any]:
        return self._read(lambda connection: connection.execute(self._sql.present_workers).fetchall())

    def _recover_from(self, worker_id: str) -> int:
        def work(connection: sqlite3.Connection) -> int:
            values = {"worker": worker_id, "actor": self._actor, "now": self._clock.now(), "limit": LOST_ROWS}
            # Both look at the same rows, so each batch moves all of them one way or the other.
            both = (self._sql.recover_lost_spent, self._sql.recover_lost)
            moved = sum(connection.execute(statement, values).rowcount for statement in both)
            self.resolve_here(connection)
            if not moved:
                self._end(connection, worker_id, "lost")
            return moved

        recovered = 0
        while batch := self._run(work, wakes=True):
            recovered += batch
        held = f"{plural(recovered, 'job')} that it held {'is' if recovered == 1 else 'are'} recovered"
        log.warning("worker %s has died: %s", worker_id, held)
        return recovered

    def _end(self, connection: sqlite3.Connection, worker_id: str, ending: str) -> None:
        connection.execute(self._sql.worker_ended, {"id": worker_id, "ending": ending, "now": self._clock.now()})

    def _lock_file(self) -> LockFile:
        return lock_file(self._options.path)


def _as_row(worker: WorkerRecord, slot: Slot) -> dict[str, Any]:
    return {
        "id": worker.id,
        "slot": slot.number,
        "inode": slot.inode,
        "pid": worker.pid,
        "host": worker.host,
        "queues": None if worker.queues is None else as_json(worker.queues),
        "tasks": as_json(worker.tasks),
        "limits": as_json(worker.limits),
        "concurrency": worker.concurrency,
        "lease": worker.lease,
        "started_at": worker.started_at,
    }
