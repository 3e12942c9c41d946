"""Why a job is where it is, and how many come before it. Each read is bounded."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from ...model.blocker import Blocker, JobDetails
from ...model.job import JobRecord
from ..statements import as_json
from .claim import START, WINDOW
from .database import Database
from .read import get_record
from .workflow import MOST_WALKED

MOST_BEHIND = 10


class Explain:
    def __init__(self, db: Database) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock

    def job_details(self, job_id: int) -> JobDetails | None:
        def work(connection: sqlite3.Connection) -> JobDetails | None:
            record = get_record(connection, self._sql, job_id)
            row = connection.execute(self._sql.job_details, (job_id,)).fetchone()
            if record is None or row is None:
                return None
            transition, actor, lease, paused, unresolved = row
            left = None if lease is None else lease - self._clock.boot_now()
            behind = self._behind(connection, record)
            return JobDetails(record, transition, actor, left, bool(paused), bool(unresolved), behind)

        return self._db.read_snapshot(work)

    def _behind(self, connection: sqlite3.Connection, job: JobRecord) -> list[Blocker]:
        if job.status != "blocked" or job.external:
            return []
        wanted = {"job": job.id, "limit": MOST_BEHIND, "most": MOST_WALKED}
        return [Blocker(*row) for row in connection.execute(self._sql.behind_blockers, wanted).fetchall()]

    def ahead_of(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        """Count ready jobs of these tasks that come before it, for a worker that serves these queues in this order;
        of a message, the messages of its queue."""

        def work(connection: sqlite3.Connection) -> int:
            count = 0
            for queue, task in self._pairs_ahead(connection, job, queues, tasks):
                in_turn = queues is None or queue == job.queue  # otherwise the whole queue comes before
                names = ("ready_of_higher_priority", "ready_before") if in_turn else ("ready_in_all",)
                wanted = {"queue": queue, "task": task, "priority": job.priority, "id": job.id, "limit": limit}
                for name in names:
                    if count < limit:
                        count += connection.execute(getattr(self._sql, name), wanted).fetchone()[0]
            return min(limit, count)

        return self._db.read(work)

    def _pairs_ahead(
        self, connection: sqlite3.Connection, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str]
    ) -> Sequence[tuple[str, str | None]]:
        """Find the queues and tasks that a worker looks at together with the job's own, or before: see Places."""
        if job.task is None:
            return [(job.queue, None)]
        wanted: dict[str, Any] = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
        if queues is not None:
            wanted["queues"] = as_json(queues)
            _, *rows = connection.execute(self._sql.ready_pairs_in, wanted).fetchall()
        else:
            wanted |= {"queue": START[0], "task": START[1], "most": WINDOW + 1}
            _, *rows = connection.execute(self._sql.ready_pairs, wanted).fetchall()
            if len(rows) > WINDOW:  # then each pair gets its share
                rows = [(job.queue, job.task, False)]
        return [(queue, task) for queue, task, paused in rows if not paused and task in tasks]
