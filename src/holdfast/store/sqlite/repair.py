"""The doctor's repairs. None of them loses data, and each may run while the database is in use, or twice."""

import secrets
import sqlite3

from ..statements import as_json
from ..statistics import Statistics
from .database import Database
from .diagnose import CLOCK_TOLERANCE, LIMIT
from .migrate import compare, expected

TABLES_OF_JOBS = ("events", "tags", "blockers")
RECOUNT = "recount"  # in the table `meta`: the token of the process that recounts


class Repairs:
    def __init__(self, db: Database, statistics: Statistics) -> None:
        self._db, self._sql, self._clock, self._statistics = db, db.sql, db.clock, statistics

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers and return their names. Changed ones are left as they are."""

        def work(connection: sqlite3.Connection) -> list[str]:
            wanted = expected(self._sql, self._db.options.prefix)
            differences = compare(connection, self._sql, self._db.options.prefix).differences
            names = [part.name for part in differences if part.how == "missing" and part.kind in ("index", "trigger")]
            for name in names:
                connection.execute(wanted[name].sql)
            return names

        return self._db.run(work)

    def delete_orphaned_rows(self) -> int:
        """Delete some events, tags or blockers of deleted jobs. Return how many rows; 0: none is left."""
        self._statistics.fold_all()  # orphaned events still count
        for table in TABLES_OF_JOBS:
            orphaned = self._db.rows(getattr(self._sql, f"orphaned_{table}"), {"window": -1, "limit": LIMIT})
            statement = self._sql.delete_orphaned_rows.replace("{table}", f"{self._db.options.prefix}{table}")
            if orphaned and (deleted := self._change(statement, {"jobs": as_json([row[0] for row in orphaned])})):
                return deleted
        return 0

    def repair_finish_times(self) -> int:
        """Set `finished_at` to now where it is missing or in the future, of some jobs. Return how many; 0: none is
        left."""
        now = self._clock.now()
        values = {"future": now + CLOCK_TOLERANCE, "newest": -1, "limit": LIMIT}
        jobs = self._db.rows(self._sql.finished_without_time, values) or self._db.rows(
            self._sql.finished_in_future, values
        )
        batch = as_json([row[0] for row in jobs])
        return self._change(self._sql.set_finished_now, values | {"now": now, "batch": batch}) if jobs else 0

    def recount(self) -> int:
        """Correct wrong counts and return how many. Adds differences only, because jobs may finish meanwhile."""
        token = secrets.token_hex(8)
        self._db.run(lambda connection: connection.execute(self._sql.set_meta, (RECOUNT, token)) and None)
        rows = self._db.read_snapshot(self._statistics.recount)
        changes = [(queue, task, status, actual - counted) for queue, task, status, counted, actual in rows]

        def work(connection: sqlite3.Connection) -> int:
            # Of two processes that recount at once, only the last to begin may apply its changes.
            if connection.execute(self._sql.get_meta, (RECOUNT,)).fetchone() != (token,):
                return 0
            connection.execute(self._sql.delete_meta, (RECOUNT,))
            connection.executemany(self._sql.add_counts, changes)
            connection.execute(self._sql.delete_empty_counts)
            return len(changes)

        return self._db.run(work)

    def insert_missed_endings(self) -> int:
        """Record finished jobs that others still wait for, so that a sweep of endings releases those."""
        return self._change(self._sql.insert_missed_endings, {"limit": LIMIT})

    def _change(self, statement: str, values: dict[str, object]) -> int:
        return self._db.run(lambda connection: connection.execute(statement, values).rowcount)
