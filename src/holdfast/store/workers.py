"""Register workers, record their heartbeats, and recover the jobs of dead ones."""

import builtins
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..model.job import Lease
from ..model.worker import WorkerLimits, WorkerRecord, WorkerStatus
from ..retention import from_json as retention_from_json
from ..text import plural
from .database import Connection, SharedDatabase
from .processes import ProcessLocks, Slot
from .statements import Statements, as_json, decoded, integer, record
from .workflow import Workflows

log = logging.getLogger("holdfast.worker")
RECOVERY_ROWS = 1000
LONGEST_TIMEOUT = 10**15  # 31 years in microseconds: a lease and it fit into 64 bits
ENDED_WORKERS_KEPT = 100
MAX_RUNNING_READ = 5_000
ClaimedCounts = Mapping[str, list[tuple[str, str | None, int]]]


def all_workers(connection: Connection, sql: Statements, locks: ProcessLocks) -> list[WorkerStatus]:
    """Return the running workers and the last ones that ended, newest first, with how many jobs each has claimed."""
    claimed = defaultdict[str, list[Any]](list)
    for worker, *count in connection.execute(sql.claimed_by_workers, {"bound": MAX_RUNNING_READ}).fetchall():
        claimed[worker].append(tuple(count))
    return _worker_statuses(connection, sql, locks, claimed)


def present_workers(connection: Connection, sql: Statements, locks: ProcessLocks) -> list[WorkerStatus]:
    """Return the workers that have not ended, without the jobs that they have claimed."""
    return [one for one in _worker_statuses(connection, sql, locks, {}) if one.record.ended_at is None]


def _worker_statuses(
    connection: Connection, sql: Statements, locks: ProcessLocks, claimed: ClaimedCounts
) -> list[WorkerStatus]:
    found = []
    rows = connection.execute(sql.workers).fetchall()
    for number, place, id, pid, host, queues, tasks, *plain, limits, version, memory, stop_at in rows:
        allowed = decoded(limits, WorkerLimits, WorkerLimits())
        row = (id, pid, host, _texts(queues), _texts(tasks) or (), *plain, allowed, version, memory, stop_at)
        worker, slot = record(WorkerRecord, row), record(Slot, (number, place))
        if worker.ended_at is None:
            state = locks.state(slot, worker.pid, worker.host)
        else:
            state = "lost" if worker.ending == "lost" else "stopped"
        found.append(WorkerStatus(worker, state, claimed.get(worker.id, [])))
    return found


def _texts(stored: Any) -> tuple[str, ...] | None:
    return None if stored is None else tuple(decoded(stored, list[str], []))


class PruneRunLock:
    """Proves to other processes that a pruning run is alive: by a worker's lock, or one of the run's own."""

    def __init__(self, locks: ProcessLocks, workers: "Workers") -> None:
        self._locks, self._workers = locks, workers
        self.slots: dict[str, Slot] = {}  # of runs in a process without workers

    def take(self, token: str) -> dict[str, Any]:
        slot = next(iter(self._workers.slots.values()), None)
        if slot is None:
            slot = self.slots[token] = self._locks.acquire()
        return slot.columns

    def is_held(self, number: int, place: int) -> bool:
        return self._locks.is_held(Slot(number, place))

    def release(self, token: str) -> None:
        slot = self.slots.pop(token, None)
        if slot is not None:
            self._locks.release(slot)


class Workers:
    """The workers of this process, and the recovery of dead ones."""

    def __init__(self, db: SharedDatabase, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._workflows = db, db.sql, db.clock, workflows
        self._locks = db.locks
        self.slots: dict[str, Slot] = {}  # of the workers of this process

    def register(self, worker: WorkerRecord, retention: str | None = None) -> None:
        """Register a worker. Other processes see it as alive while this process lives."""
        self._db.wait_as_worker()
        slot = self._locks.acquire()

        def work(connection: Connection) -> None:
            connection.execute(self._sql.register_worker, _as_row(worker, slot))
            connection.execute(self._sql.delete_ended_workers, {"keep": ENDED_WORKERS_KEPT})
            if retention is not None:
                self._put_retention(connection, retention)

        try:
            self._db.run(work, durable=retention is not None)
        except BaseException:
            self._locks.release(slot)
            raise
        self.slots[worker.id] = slot
        self._db.has_workers = True
        self._locks.watch()

    def _put_retention(self, connection: Connection, text: str) -> None:
        """Store the policy, and log an event if it has changed."""
        if connection.execute(self._sql.get_meta, ("retention",)).fetchone() == (text,):
            return
        connection.execute(self._sql.set_meta, ("retention", text))
        policy = retention_from_json(text)
        detail = as_json({"retention": text if policy is None else policy.in_words()})
        values = {"now": self._clock.now(), "event": "retention_changed", "actor": self._db.actor, "detail": detail}
        connection.execute(self._sql.log_event, values)

    def unregister(self, worker_id: str) -> None:
        """Record that the worker has stopped. Jobs that it still holds are returned; the attempt does not count."""

        def work(connection: Connection) -> None:
            connection.execute(self._sql.return_all, {"worker": worker_id, "now": self._clock.now()})
            self._end(connection, worker_id, "stopped")

        slot = self.slots.pop(worker_id, None)
        self._db.has_workers = bool(self.slots)
        try:
            self._db.run(work, wakes=True)
        finally:
            if slot is not None:
                self._locks.release(slot)

    def heartbeat(self, worker_id: str, memory: int | None = None) -> builtins.list[Lease] | None:
        """Record a heartbeat. Returns the leases that the worker holds, or None if another process declared it dead.

        Then the worker needs a new id.
        """
        slot = self.slots[worker_id] = self._locks.renewed(self.slots[worker_id])

        def work(connection: Connection) -> bool:
            values = {"id": worker_id, "now": self._clock.now(), "memory": memory} | slot.columns
            return connection.execute(self._sql.heartbeat, values).rowcount == 1

        if not self._db.run(work, atomic=True):
            return None
        return [Lease(*row) for row in self._db.rows(self._sql.leases_of, (worker_id,))]

    def request_stop(self, worker_id: str, actor: str, reason: str = "") -> bool | None:
        """Ask a worker to stop, durably. Returns False if it has ended or was asked before, None if it is unknown."""

        def work(connection: Connection) -> bool | None:
            values = {"id": worker_id, "now": self._clock.now(), "actor": actor, "event": "stop_requested"}
            changed = connection.execute(self._sql.ask_to_stop, values).rowcount == 1
            if changed:
                detail = {"worker": worker_id} | ({"reason": reason} if reason else {})
                connection.execute(self._sql.log_event, values | {"detail": as_json(detail)})
            elif connection.execute(self._sql.is_asked_to_stop, {"id": worker_id}).fetchone() is None:
                return None
            return changed

        return self._db.run(work, durable=True)

    def is_asked_to_stop(self, worker_id: str) -> bool:
        return any(asked for (asked,) in self._db.rows(self._sql.is_asked_to_stop, {"id": worker_id}))

    def list(self) -> builtins.list[WorkerStatus]:
        """Return the running workers and the last ones that ended, newest first."""
        return self._db.read(lambda connection: all_workers(connection, self._sql, self._locks))

    def recover_lost(self, limit: int | None = None) -> int:
        """running -> ready or failed, for jobs that dead workers held, until `limit` are moved. Returns how many.

        Also seals the batches of processes that died inside their blocks.
        """
        recovered = 0
        for worker_id, *slot, _pid, _host, _lease in self._db.rows(self._sql.present_workers):
            if limit is not None and recovered >= limit:
                break
            if self._locks.is_free(record(Slot, slot)):
                recovered += self._recover_from(worker_id, None if limit is None else limit - recovered)
        return recovered + self._workflows.seal_abandoned()

    def renew_for_live_workers(self, connection: Connection, times: dict[str, Any]) -> None:
        """Renew expired leases of workers that are alive but slow, for example because a handler holds the GIL.

        Runs in the transaction that recovers expired leases, with the same time: a worker that is late only because
        the database was locked must not lose a job between the two.
        """
        names = {row[0] for row in connection.execute(self._sql.workers_with_expired_leases, times).fetchall()}
        if not names:
            return
        for worker_id, *slot, pid, host, lease in connection.execute(self._sql.present_workers).fetchall():
            if worker_id in names and (worker_id in self.slots or self._is_alive(record(Slot, slot), pid, host)):
                values = {"worker": worker_id, "lease": integer(lease), "longest": LONGEST_TIMEOUT}
                connection.execute(self._sql.renew_for, times | values)

    def _is_alive(self, slot: Slot, pid: int, host: str) -> bool:
        return self._locks.state(slot, pid, host) == "alive"

    def _recover_from(self, worker_id: str, limit: int | None) -> int:
        def work(connection: Connection) -> int:
            values = {"worker": worker_id, "actor": self._db.actor, "now": self._clock.now(), "limit": RECOVERY_ROWS}
            # Both select the same rows, so each batch moves all of them: to failed or to ready.
            both = (self._sql.recover_lost_spent, self._sql.recover_lost)
            moved = sum(connection.execute(statement, values).rowcount for statement in both)
            self._workflows.resolve_here(connection)
            if not moved:
                self._end(connection, worker_id, "lost")
            return moved

        recovered = self._db.in_batches(work, limit)
        if limit is not None and recovered >= limit:  # the next sweep continues
            log.warning("worker %s died; recovered %s so far", worker_id, plural(recovered, "job"))
        else:
            log.warning("worker %s died; recovered %s", worker_id, plural(recovered, "job"))
        return recovered

    def _end(self, connection: Connection, worker_id: str, ending: str) -> None:
        connection.execute(self._sql.end_worker, {"id": worker_id, "ending": ending, "now": self._clock.now()})


def _as_row(worker: WorkerRecord, slot: Slot) -> dict[str, Any]:
    return {
        "id": worker.id,
        "pid": worker.pid,
        "host": worker.host,
        "queues": None if worker.queues is None else as_json(worker.queues),
        "tasks": as_json(worker.tasks),
        "limits": as_json(worker.limits),
        "concurrency": worker.concurrency,
        "lease": worker.lease,
        "started_at": worker.started_at,
        "version": worker.version,
        "memory": worker.memory,
    } | slot.columns
