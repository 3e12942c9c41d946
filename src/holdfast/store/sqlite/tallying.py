"""What only counts up: for meters that are read from outside."""

import sqlite3

from ...tally import Tallies, read
from .part import Part


class Tallying(Part):
    def tallies(self) -> Tallies:
        def work(connection: sqlite3.Connection) -> Tallies:
            table = f"{self._options.prefix}jobs"
            enqueued = connection.execute(self._sql.ever_enqueued, (table,)).fetchone()
            rows = connection.execute(self._sql.tallies).fetchall()
            paused = connection.execute(self._sql.paused_queues).fetchall()
            kept = [one for row in rows for one in read(*row)]
            return Tallies(enqueued[0] if enqueued else 0, kept, [row[0] for row in paused])

        return self._read(work)
