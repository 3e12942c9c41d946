"""How many there are: from the totals that the database keeps, and from what runs. None walks over the jobs."""

import sqlite3
from collections.abc import Iterable, Sequence

from ...clock import SECOND
from ...model import QueueOverview, QueueStats
from ...observations import Count
from .criteria import as_json
from .part import Part

MOST_LEVELS = 1000  # of priority, that are looked at for the first of those that are ready

Pair = tuple[str, str | None]  # queue and task; None: messages


class Counting(Part):
    def counts(self) -> list[Count]:
        return self._read(lambda connection: list(self._counts(connection)))

    def message_stats(self, queue: str) -> QueueStats:
        def work(connection: sqlite3.Connection) -> QueueStats:
            found = {one.status: one for one in self._counts(connection, queue) if one.task is None}
            n = {status: one.count for status, one in found.items()}
            ready, scheduled, running, failed = (
                n.get(name, 0) for name in ("ready", "scheduled", "running", "failed")
            )
            age = self._age(connection, [one.oldest_id for one in found.values()])
            paused = bool(dict(connection.execute(self._sql.queues_ever_paused).fetchall()).get(queue))
            return QueueStats(ready + scheduled + running + failed, ready, scheduled, running, failed, age, paused)

        return self._read(work)

    def queue_overview(self) -> list[QueueOverview]:
        def work(connection: sqlite3.Connection) -> list[QueueOverview]:
            paused = dict(connection.execute(self._sql.queues_ever_paused).fetchall())
            queues: dict[str, list[Count]] = {name: [] for name in paused}
            for one in self._counts(connection):
                if one.status not in ("succeeded", "cancelled"):
                    queues.setdefault(one.queue, []).append(one)
            return [self._overview(connection, name, queues[name], bool(paused.get(name))) for name in sorted(queues)]

        return self._read(work)

    def oldest_ready(self, ids: Sequence[int]) -> dict[str, int]:
        rows = self._read(lambda connection: connection.execute(self._sql.ready_since, (as_json(ids),)).fetchall())
        found: dict[str, int] = {}
        for queue, since in rows:
            found[queue] = min(since, found.get(queue, since))
        return found

    def _counts(self, connection: sqlite3.Connection, queue: str | None = None) -> Iterable[Count]:
        rows = connection.execute(self._sql.counts, {"queue": queue}).fetchall()
        first = {
            status: self._first(connection, status, [(row[1], row[2] or None) for row in rows if row[0] == status])
            for status in ("ready", "blocked")
        }
        for status, name, task, n in rows:
            oldest = first[status].get((name, task or None)) if status in first else None
            yield Count(status, name, task or None, n, oldest)

    def _first(self, connection: sqlite3.Connection, status: str, pairs: list[Pair]) -> dict[Pair, int]:
        if not pairs:
            return {}
        statement = self._sql.first_ready if status == "ready" else self._sql.first_blocked
        values = {"pairs": as_json(pairs), "most": MOST_LEVELS + len(pairs)}
        rows = connection.execute(statement, values).fetchall()
        return {(queue, task): job_id for queue, task, job_id in rows if job_id is not None}

    def _overview(
        self, connection: sqlite3.Connection, name: str, counts: list[Count], paused: bool
    ) -> QueueOverview:
        n = dict.fromkeys(("ready", "scheduled", "blocked", "running", "failed"), 0)
        for one in counts:
            n[one.status] += one.count
        age = self._age(connection, [one.oldest_id for one in counts if one.status == "ready"])
        return QueueOverview(name=name, **n, oldest_ready_age=age, paused=paused)

    def _age(self, connection: sqlite3.Connection, ids: Iterable[int | None]) -> float | None:
        """Seconds since the first of these was enqueued."""
        first = min((job_id for job_id in ids if job_id is not None), default=None)
        row = None if first is None else connection.execute(self._sql.created_at, (first,)).fetchone()
        return None if row is None else max(0.0, (self._clock.now() - row[0]) / SECOND)
