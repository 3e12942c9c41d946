"""How many there are, and what waits longest: from totals that the database keeps, and by steps through indexes."""

import sqlite3
from collections import defaultdict

from ...clock import SECOND
from ...model import QueueOverview, QueueStats
from ...observations import Count, WaitingJob
from .part import Part

# Of the jobs that are ready, so many in line of each priority, and so many priorities, are looked at.
LONGEST_READY = {"each": 100, "most": 1000}

EVERY = -1
SHOWN = ("ready", "scheduled", "blocked", "running", "failed")  # of a queue, in an overview


class Counting(Part):
    def counts(self) -> list[Count]:
        return self._read(self._counts)

    def longest_ready(self, limit: int = EVERY) -> list[WaitingJob]:
        return self._read(lambda connection: self._longest_ready(connection, limit))

    def longest_due(self, limit: int) -> list[WaitingJob]:
        values = {"now": self._clock.now(), "limit": limit}
        rows = self._read(lambda connection: connection.execute(self._sql.longest_due, values).fetchall())
        return [WaitingJob(*row) for row in rows]

    def longest_blocked(self, limit: int) -> list[WaitingJob]:
        values = {"limit": limit}
        rows = self._read(lambda connection: connection.execute(self._sql.longest_blocked, values).fetchall())
        return [WaitingJob(*row) for row in rows]

    def message_stats(self, queue: str) -> QueueStats:
        def work(connection: sqlite3.Connection) -> QueueStats:
            found = {one.status: one.count for one in self._counts(connection, queue) if one.task is None}
            n = {status: found.get(status, 0) for status in ("ready", "scheduled", "running", "failed")}
            waiting = [one for one in self._longest_ready(connection, queue=queue) if one.task is None]
            return QueueStats(
                total=sum(n.values()),
                **n,
                oldest_ready_age=self._age(waiting),
                paused=self._paused(connection)[queue],
            )

        return self._read(work)

    def queue_overview(self) -> list[QueueOverview]:
        def work(connection: sqlite3.Connection) -> list[QueueOverview]:
            paused = self._paused(connection)
            found = {name: dict.fromkeys(SHOWN, 0) for name in paused}
            for one in self._counts(connection):
                if one.status in SHOWN:
                    found.setdefault(one.queue, dict.fromkeys(SHOWN, 0))[one.status] += one.count
            ages = {one.queue: self._age([one]) for one in reversed(self._longest_ready(connection))}
            return [
                QueueOverview(name=name, **found[name], oldest_ready_age=ages.get(name), paused=paused[name])
                for name in sorted(found)
            ]

        return self._read(work)

    def _counts(self, connection: sqlite3.Connection, queue: str | None = None) -> list[Count]:
        rows = connection.execute(self._sql.counts, {"queue": queue}).fetchall()
        return [Count(status, name, task or None, n) for status, name, task, n in rows]

    def _longest_ready(
        self, connection: sqlite3.Connection, limit: int = EVERY, queue: str | None = None
    ) -> list[WaitingJob]:
        values = {"limit": limit, "queue": queue} | LONGEST_READY
        return [WaitingJob(*row) for row in connection.execute(self._sql.longest_ready, values).fetchall()]

    def _paused(self, connection: sqlite3.Connection) -> dict[str, bool]:
        """Of the queues that ever were."""
        rows = connection.execute(self._sql.queues_ever_paused).fetchall()
        return defaultdict(bool, {name: bool(is_paused) for name, is_paused in rows})

    def _age(self, waiting: list[WaitingJob]) -> float | None:
        """Of the first of these, in seconds."""
        return max(0.0, (self._clock.now() - waiting[0].since) / SECOND) if waiting else None
