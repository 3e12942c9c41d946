"""Looking for why a job is where it is, and at what is around it."""

import socket
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from ...model import Criteria, JobRecord
from ..circumstances import Blocker, Blockers, ChainLink, LiveWorker, Removal, Situation, Taken
from .attending import Attending
from .criteria import as_json, where
from .places import START, WINDOW
from .presence import Slot, is_stopped
from .reading import get_record
from .rollcall import as_worker

MOST_WALKED = 10_000
MOST_RUNNING = 20_000


class Explaining(Attending):
    def situation(self, job_id: int) -> Situation | None:
        def work(connection: sqlite3.Connection) -> Situation | None:
            record = get_record(connection, self._sql, job_id)
            row = connection.execute(self._sql.situation, (job_id,)).fetchone()
            if record is None or row is None:
                return None
            transition, actor, lease, paused, unresolved = row
            left = None if lease is None else lease - self._clock.boot_now()
            return Situation(record, transition, actor, left, bool(paused), bool(unresolved))

        return self._read(work)

    # --- what it waits for, and who waits for it ---

    def blockers_by_urgency(self, job_id: int, limit: int) -> Blockers:
        def work(connection: sqlite3.Connection) -> Blockers:
            total, holding = connection.execute(self._sql.count_blockers, (job_id,)).fetchone()
            if not total:
                return Blockers([], 0, 0)
            rows = connection.execute(self._sql.blockers_by_urgency, {"job": job_id, "limit": limit}).fetchall()
            return Blockers([Blocker(*row) for row in rows], total, holding)

        return self._read(work)

    def behind_blockers(self, job_id: int, limit: int) -> list[Blocker]:
        values = {"job": job_id, "limit": limit, "most": MOST_WALKED}
        rows = self._read(lambda connection: connection.execute(self._sql.behind_blockers, values).fetchall())
        return [Blocker(*row) for row in rows]

    def waiting_around(self, chain_id: int, limit: int) -> tuple[list[ChainLink], int]:
        values = {"chain": chain_id, "limit": limit, "most": MOST_WALKED}

        def work(connection: sqlite3.Connection) -> tuple[list[ChainLink], int]:
            rows = connection.execute(self._sql.waiting_around, values).fetchall()
            total = (
                connection.execute(self._sql.count_waiting, values).fetchone()[0] if len(rows) == limit else len(rows)
            )
            return [ChainLink(*row) for row in rows], total

        return self._read(work)

    def chain_around(self, chain_id: int, index: int, each_side: int) -> list[ChainLink]:
        values = {"chain": chain_id, "low": index - each_side, "high": index + each_side}
        rows = self._read(lambda connection: connection.execute(self._sql.chain_around, values).fetchall())
        return [ChainLink(*row) for row in rows]

    # --- who could take it, and what comes first ---

    def live_workers(self) -> list[LiveWorker]:
        rows = self._read(lambda connection: connection.execute(self._sql.present_in_full).fetchall())
        here, file = socket.gethostname(), self._lock_file()
        found = []
        for number, inode, *row in rows:
            worker = as_worker(*row)
            if worker.id in self._slots or not file.is_free(Slot(number, inode)):
                found.append(LiveWorker(worker, worker.host == here and is_stopped(worker.pid)))
        return found

    def places_taken(self, workers: Sequence[str]) -> list[Taken]:
        values = {"workers": as_json(workers), "most": MOST_RUNNING}
        rows = self._read(lambda connection: connection.execute(self._sql.places_taken, values).fetchall())
        return [Taken(*row) for row in rows]

    def jobs_ahead(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for queue, task in self._pairs_ahead(connection, job, queues):
                in_turn = queues is None or queue == job.queue  # or the whole queue comes before
                names = ("tasks_of_higher_priority", "tasks_in_front") if in_turn else ("tasks_ready",)
                if task in tasks and count < limit:
                    count += self._count_ahead(connection, names, job, queue, task, limit - count)
            return count

        return self._read(work)

    def messages_ahead(self, job: JobRecord, limit: int) -> int:
        names = ("messages_of_higher_priority", "messages_in_front")
        return self._read(lambda connection: self._count_ahead(connection, names, job, job.queue, None, limit))

    def _pairs_ahead(
        self, connection: sqlite3.Connection, job: JobRecord, queues: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """The queues and tasks that are looked at together with the job's own, or before: see Places."""
        times: dict[str, Any] = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
        if queues is not None:
            values = times | {"queues": as_json(queues)}
            _, *rows = connection.execute(self._sql.ready_pairs_in, values).fetchall()
        else:
            values = times | {"queue": START[0], "task": START[1], "most": WINDOW + 1}
            _, *rows = connection.execute(self._sql.ready_pairs, values).fetchall()
            if len(rows) > WINDOW:  # then each pair gets its share
                return [(job.queue, job.task or "")]
        return [(queue, task) for queue, task, paused in rows if not paused]

    def _count_ahead(
        self,
        connection: sqlite3.Connection,
        names: Sequence[str],
        job: JobRecord,
        queue: str,
        task: str | None,
        limit: int,
    ) -> int:
        values = {"queue": queue, "task": task, "priority": job.priority, "id": job.id, "limit": limit}
        counts = (connection.execute(getattr(self._sql, name), values).fetchone()[0] for name in names)
        return min(limit, sum(map(int, counts)))

    # --- what would be deleted ---

    def removal(self, chain_id: int, cascade: bool) -> Removal:
        def work(connection: sqlite3.Connection) -> Removal:
            chain: dict[str, Any] = {"chain": chain_id}
            chains = [row[0] for row in connection.execute(self._sql.chains_waiting, chain).fetchall()]
            waiting = connection.execute(self._sql.removal_waiting, chain)
            jobs = [
                row
                for one in (chains if cascade else [chain_id])
                for row in connection.execute(self._sql.jobs_of_chain, {"chain": one}).fetchall()
            ]
            return Removal(
                ids=tuple(job_id for job_id, _ in jobs),
                waiting=tuple(row[0] for row in waiting.fetchall()),
                running=tuple(job_id for job_id, status in jobs if status == "running"),
            )

        return self._read(work)

    def count_deletable(self, criteria: Criteria) -> int:
        clause, values = where(criteria, self._options.prefix)
        statement = self._sql.count_deletable.replace("{where}", clause)
        found = self._read(lambda connection: connection.execute(statement, values).fetchone())
        return int(found[0])
