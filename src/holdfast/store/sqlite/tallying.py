"""What only counts up: for meters that are read from outside."""

import sqlite3

from ...tally import Tallies, Tally
from .part import Part


class Tallying(Part):
    def tallies(self) -> Tallies:
        def work(connection: sqlite3.Connection) -> Tallies:
            table = f"{self._options.prefix}jobs"
            enqueued = connection.execute(self._sql.ever_enqueued, (table,)).fetchone()
            rows = connection.execute(self._sql.tallies).fetchall()
            paused = connection.execute(self._sql.paused_queues).fetchall()
            return Tallies(enqueued[0] if enqueued else 0, [Tally(*row) for row in rows], [row[0] for row in paused])

        return self._read(work)
