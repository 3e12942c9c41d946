"""Repairs that lose nothing: what is left over is removed, what is missing is made, what is wrong is recounted."""

import secrets
import sqlite3
from typing import Any

from ..statements import as_json
from ..statistics import Statistics
from .database import Database
from .diagnose import MOST, SLACK, TABLES
from .migrate import compare, expected

RECOUNT = "recount"  # in the table `meta`: who recounts


class Mending:
    def __init__(self, db: Database, statistics: Statistics) -> None:
        self._db, self._sql, self._clock, self._statistics = db, db.sql, db.clock, statistics

    def restore_schema(self) -> list[str]:
        """Make the indexes and triggers that are missing; returns their names. What was changed is left as it is."""

        def work(connection: sqlite3.Connection) -> list[str]:
            wanted = expected(self._sql, self._db.options.prefix)
            drift = compare(connection, self._sql, self._db.options.prefix).drift
            names = [one.name for one in drift if one.how == "missing" and one.kind in ("index", "trigger")]
            for name in names:
                connection.execute(wanted[name].sql)
            return names

        return self._db.run(work)

    def delete_leftovers(self) -> int:
        """Attempts, events, tags and blockers of jobs that are gone, as the cascade would have: some of them. Returns
        how many rows, 0 if none is left."""
        self._statistics.fold_all()  # what these events count for stays
        for table in TABLES:
            ids = self._left_over(table)
            if ids and (deleted := self._delete_leftovers(table, ids)):
                return deleted
        return 0

    def _left_over(self, table: str) -> list[int]:
        statement = getattr(self._sql, f"orphaned_{table}")
        values = {"window": -1, "most": MOST}
        return [row[0] for row in self._db.read(lambda connection: connection.execute(statement, values).fetchall())]

    def _delete_leftovers(self, table: str, ids: list[int]) -> int:
        statement = self._sql.delete_leftovers.replace("{table}", f"{self._db.options.prefix}{table}")
        return self._db.run(lambda connection: connection.execute(statement, {"jobs": as_json(ids)}).rowcount)

    def mend_ends(self) -> int:
        """Let jobs that ended at no time, or later than now, have ended now: some of them. Returns how many, 0 if
        none is left."""
        now = self._clock.now()
        values: dict[str, Any] = {"after": now + SLACK, "newest": -1, "most": MOST}
        rows = self._db.rows(self._sql.ended_untimed, values) or self._db.rows(self._sql.ended_ahead, values)
        if not rows:
            return 0
        values |= {"now": now, "batch": as_json([row[0] for row in rows])}
        return self._db.run(lambda connection: connection.execute(self._sql.end_now, values).rowcount)

    def recount(self) -> int:
        """Correct the counts that are wrong; returns how many. Jobs end meanwhile: only differences are added."""
        token = secrets.token_hex(8)
        self._db.run(lambda connection: connection.execute(self._sql.set_meta, (RECOUNT, token)) and None)
        rows = self._db.read_snapshot(self._statistics.recount)
        changes = [(queue, task, status, real - counted) for queue, task, status, counted, real in rows]

        def work(connection: sqlite3.Connection) -> int:
            # Of two who recount at once, one must not add to what the other has corrected.
            if connection.execute(self._sql.get_meta, (RECOUNT,)).fetchone() != (token,):
                return 0
            connection.execute(self._sql.forget_meta, (RECOUNT,))
            connection.executemany(self._sql.add_counts, changes)
            connection.execute(self._sql.delete_empty_counts)
            return len(changes)

        return self._db.run(work)

    def note_missed_endings(self) -> int:
        """Note again what has ended, for those that still wait for it; `resolve` sees to the rest."""
        return self._db.run(lambda connection: connection.execute(self._sql.note_missed, {"most": MOST}).rowcount)
