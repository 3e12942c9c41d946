"""Read the failures that a hook was not told about yet, and enqueue the jobs that tell it.

The cursor of a hook is a row of `meta`. Enqueueing moves it in the same transaction, unless another process was
first.
"""

from collections.abc import Sequence

from ..clock import as_datetime
from ..model.job import FailedJob, NewJob, UnreportedFailures
from .database import Connection, SharedDatabase
from .enqueue import Enqueue

MAX_SCANNED = 10_000  # events in one read
MAX_REPORTED = 100  # failures in one transaction


class Failures:
    def __init__(self, db: SharedDatabase, enqueue: Enqueue) -> None:
        self._db, self._sql, self._enqueue = db, db.sql, enqueue

    def unreported_failures(self, hook: str, after: int) -> UnreportedFailures:
        def work(connection: Connection) -> UnreportedFailures:
            cursor = _stored_cursor(connection.execute(self._sql.get_meta, (hook,)).fetchone())
            (newest,) = connection.execute(self._sql.newest_event).fetchone()
            if cursor is None:
                return UnreportedFailures(None, newest, [], more=False)
            scan = {"after": max(after, cursor), "newest": newest, "scan": MAX_SCANNED}
            (until,) = connection.execute(self._sql.failures_scan_end, scan).fetchone()
            wanted = scan | {"until": until, "limit": MAX_REPORTED}
            rows = connection.execute(self._sql.failures_between, wanted).fetchall()
            until = rows[-1][0] if len(rows) == MAX_REPORTED else until
            return UnreportedFailures(cursor, until, [_failed_job(*row) for row in rows], more=until < newest)

        return self._db.read_snapshot(work)

    def report_failures(self, hook: str, found: UnreportedFailures, jobs: Sequence[NewJob]) -> list[int]:
        def work(connection: Connection) -> list[int]:
            values = {
                "name": hook,
                "old": None if found.cursor is None else str(found.cursor),
                "new": str(found.until),
            }
            statement = self._sql.add_cursor if found.cursor is None else self._sql.move_cursor
            if connection.execute(statement, values).rowcount == 0:
                return []  # another process reports them
            return [self._enqueue.insert_one(connection, job).id for job in jobs]

        # Not flushed: a power cut loses the cursor with the jobs, and the failures are reported again.
        self._db.require_space(sum(len(job.args) for job in jobs))
        return self._db.run(work, wakes=True)


def _stored_cursor(row: tuple[str] | None) -> int | None:
    return int(row[0]) if row is not None and row[0].isdecimal() else None


def _failed_job(
    _event: int,
    id: int,
    task: str | None,
    queue: str,
    attempt: int,
    max_attempts: int,
    error_code: str | None,
    error_detail: str | None,
    at: int,
    worker: str | None,
    fingerprint: str | None,
) -> FailedJob:
    told = (error_code or "", error_detail or "", as_datetime(at))
    return FailedJob(id, task, queue, attempt, max_attempts, *told, worker, fingerprint)
