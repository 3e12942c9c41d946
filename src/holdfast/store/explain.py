"""Read what explains the state of a job, and count the jobs ahead of it. Each read is bounded."""

from collections.abc import Collection, Sequence
from typing import Any

from ..model.job import JobRecord
from ..model.workflow import Blocker, JobDetails
from .claim import START, WINDOW_STEPS, read_pairs
from .database import Connection, SharedDatabase
from .read import get_record
from .statements import as_json, integer, record
from .workflow import MAX_SCANNED

MAX_INDIRECT_BLOCKERS = 10


class Explain:
    """Explains why a job waits."""

    def __init__(self, db: SharedDatabase) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock

    def job_details(self, job_id: int) -> JobDetails | None:
        def work(connection: Connection) -> JobDetails | None:
            job = get_record(connection, self._db, job_id)
            row = connection.execute(self._sql.job_details, (job_id,)).fetchone()
            if job is None or row is None:
                return None
            transition, actor, reason, lease, paused, unresolved = row
            left = None if lease is None else integer(lease) - self._clock.boot_now()
            behind = self._indirect_blockers(connection, job)
            values = (job, transition, actor, reason, left, bool(paused), bool(unresolved), behind)
            return record(JobDetails, values)

        return self._db.read_snapshot(work)

    def _indirect_blockers(self, connection: Connection, job: JobRecord) -> list[Blocker]:
        if job.status != "blocked" or job.external:
            return []
        wanted = {"job": job.id, "limit": MAX_INDIRECT_BLOCKERS, "bound": MAX_SCANNED}
        return [record(Blocker, row) for row in connection.execute(self._sql.indirect_blockers, wanted).fetchall()]

    def count_ahead(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        """Count the ready jobs that a worker with these queues, in this order, and these tasks would run first.

        For a message, count the messages of its queue that are ahead of it.
        """

        def work(connection: Connection) -> int:
            count = 0
            for queue, task in self._pairs_ahead(connection, job, queues, tasks):
                same_rank = queues is None or queue == job.queue  # otherwise the whole queue comes first
                names = ("ready_of_higher_priority", "ready_before") if same_rank else ("all_ready",)
                wanted = {"queue": queue, "task": task, "priority": job.priority, "id": job.id, "limit": limit}
                for name in names:
                    if count < limit:
                        count += connection.execute(getattr(self._sql, name), wanted).fetchone()[0]
            return min(limit, count)

        return self._db.read(work)

    def _pairs_ahead(
        self, connection: Connection, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str]
    ) -> Sequence[tuple[str, str | None]]:
        """Return the queues and tasks that a worker claims from together with the job's own, or before it."""
        if job.task is None:
            return [(job.queue, None)]
        wanted: dict[str, Any] = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
        if queues is not None:
            wanted["queues"] = as_json(queues)
            _, *rows = read_pairs(connection, self._sql.ready_pairs_in, wanted)
        else:
            wanted |= {"queue": START[0], "task": START[1], "most": WINDOW_STEPS + 1}
            _, *rows = read_pairs(connection, self._sql.ready_pairs, wanted)
            if len(rows) > WINDOW_STEPS:  # the worker then claims from all pairs in turn
                rows = [(job.queue, job.task, False)]
        return [(queue, task) for queue, task, paused in rows if not paused and task in tasks]
