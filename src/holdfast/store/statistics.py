"""Fold the event log into statistics, and read these plus the events that are not folded yet.

Folding reads without the write lock, then stores sums and cursor in one short transaction. That transaction changes
nothing if another process has moved the cursor meanwhile. So a kill at any point, or two processes that fold at once,
neither lose nor double-count an event. See docs/internals/statistics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

from ..clock import Clock
from ..fold import ATTEMPT, ENQUEUED, MINUTE, RUN, WAIT, Sums, fold
from ..model.stats import Count, Counts, EventRecord, FailureRecord, MinuteRecord, Pause, Storage, Totals, WaitingJob
from .database import Connection, DamageGuard, SharedDatabase
from .read import EVENT_COLUMNS, event_record
from .statements import Statements, as_json, integer, record, text

T = TypeVar("T")
WITH_ERROR_CODE = frozenset({"failed", "retry_scheduled", "recovered"})  # events, by the trigger jobs_changed
FOLD_EVENTS = 5_000  # per step: they fit into the cache of a reading connection
MAX_UNFOLDED_EVENTS = 1_000_000  # with more, a reader folds first
MAX_UNLOGGED_JOBS = 20_000  # jobs without history that are counted one by one
UNLOGGED_STATUSES = (
    "scheduled",
    "ready",
    "running",
    "failed",
    "cancelled",
)  # a job without history is deleted when it succeeds
REMOVED_JOBS = 500  # per transaction
HOUR, QUARTER, DAY = 60, 6 * 60, 24 * 60  # minutes of rollups
OF_ALL = -HOUR  # the length of hours of all queues and tasks
NO_MINUTE = 2**62  # after all
ROLLED_ROWS = 2_000  # per transaction
MAX_SUM = 2**62  # microseconds; half of the largest integer in SQLite
HISTOGRAMS = (WAIT, RUN)
ZONE_IDS = 8192  # also in the schema
MAX_EVENTS_FOR_ZONES = 100_000  # unfolded
FailureKey = tuple[str, str, str, str]  # error code, queue, task, fingerprint


class Position:
    """How far the log is folded."""

    def __init__(self, cursor: int, folded_at: int, last: int, unfolded: int, horizon: int) -> None:
        """unfolded: how many events, about. horizon: no event will appear before it any more."""
        self.cursor, self.folded_at, self.last, self.unfolded, self.horizon = (
            cursor,
            folded_at,
            last,
            unfolded,
            horizon,
        )


class Zone(NamedTuple):
    """What the jobs of ZONE_IDS consecutive ids have in common, except jobs without history."""

    zone: int
    first_at: int | None
    last_at: int | None
    succeeded: int
    cancelled: int

    def has(self, since: int | None, before: int | None) -> bool:
        """Return whether one of its jobs may have been created in this range of time."""
        return (since is None or self.last_at is None or self.last_at >= since) and (
            before is None or self.first_at is None or self.first_at < before
        )


class StatisticsReader:
    """Reads the sums, plus the events that are not folded yet, on a connection with an open transaction."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._memo = 0, 0, fold((), ())  # two cursors, and the sums of the events between them, which never change

    def position(self, connection: Any) -> Position:
        return Position(*map(integer, connection.execute(self._sql.fold_position).fetchone() or (0, 0, 0, 0, 0)))

    def counts(self, connection: Any, queue: str | None = None, tasks: Collection[str] = ()) -> list[Count]:
        """Count the jobs by queue, task and status. tasks: only these, if any are named; messages have ''."""
        values = {"queue": queue}
        statement = self._sql.folded_counts
        if tasks:  # filtered by the database, since there may be tens of thousands of rows
            statement, values = self._sql.folded_counts_of_tasks, {"queue": queue, "tasks": as_json([*tasks])}
        found = _added_up(connection.execute(statement, values).fetchall())
        for key, n in self.tail(connection).counts.items():
            if queue is None or key[0] == queue:
                found[text(key[0]), text(key[1]), text(key[2])] += n
        unlogged, unknown = self._unlogged(connection, queue)
        found.update(unlogged)
        return [
            Count(status, in_queue, task or None, None if (in_queue, task, status) in unknown else n)
            for (in_queue, task, status), n in sorted({**dict.fromkeys(unknown, 0), **found}.items())
            if (n or (in_queue, task, status) in unknown) and (not tasks or task in tasks)
        ]

    def total(self, connection: Any) -> int:
        """Return the number of jobs, about: without those that are not folded yet or have no history."""
        (total,) = connection.execute(self._sql.folded_total).fetchone()
        return int(total)

    def _unlogged(
        self, connection: Any, queue: str | None
    ) -> tuple[Counter[tuple[str, str, str]], set[tuple[str, str, str]]]:
        """Count the jobs without history, up to a limit. Return also the keys whose count is unknown."""
        values = {"queue": queue, "most": MAX_UNLOGGED_JOBS}
        statement = self._sql.unlogged_counts if queue is None else self._sql.unlogged_counts_of_queue
        rows = connection.execute(statement, values).fetchall()
        found = _added_up(rows)
        if found.total() < MAX_UNLOGGED_JOBS:
            return found, set()
        last = max((in_queue, task) for in_queue, task, _ in found)
        pairs = connection.execute(self._sql.unlogged_pairs, {"queue": last[0]}).fetchall()
        if queue is not None:
            pairs = [pair for pair in pairs if pair[0] == queue]
        return found, {(*pair, status) for pair in pairs if pair >= last for status in UNLOGGED_STATUSES}

    def minutes(
        self,
        connection: Any,
        since: int,
        step: int = 1,
        task: str | None = None,
        queue: str | None = None,
        merged: bool = False,
        timed: bool | None = None,
    ) -> list[MinuteRecord]:
        """Return the measures since a minute, in steps of `step` minutes: see the protocol."""
        values = {"since": since, "step": step, "task": task, "queue": queue, "merged": merged, "timed": timed}
        found: Counter[tuple[int, str, str, str, int]] = Counter()
        is_of_some = merged and (task, queue) != (None, None)
        parts = {} if is_of_some else _parts(since, step, self._rolled(connection))
        by_parts = self._sql.folded_hours if merged else self._sql.folded_rollups
        statement = by_parts if parts else self._sql.folded_minutes
        for *key, n in connection.execute(statement, values | parts).fetchall():
            found[key[0], key[1], key[2], key[3], key[4]] += n
        for (minute, in_queue, of_task, measure, bucket), n in self.tail(connection).minutes.items():
            is_wanted = timed is None or (measure in HISTOGRAMS) == timed
            if is_wanted and minute >= since and queue in (None, in_queue) and task in (None, of_task):
                pair = ("", "") if merged else (in_queue, of_task)
                found[minute // step * step, *pair, measure, bucket] += n
        return [
            MinuteRecord(minute, in_queue, of_task or None, measure, bucket, n)
            for (minute, in_queue, of_task, measure, bucket), n in sorted(found.items())
        ]

    def _rolled(self, connection: Any) -> int:
        """Return the minute before which all minutes are in the rollups."""
        row = connection.execute(self._sql.rolled).fetchone()
        return 0 if row is None else int(row[0])

    def totals(self, connection: Any, enqueued: int) -> Totals:
        """Return the sums since the database was created."""
        outcomes: Counter[tuple[str, str, str]] = Counter()
        histograms: dict[tuple[str, str, str], Counter[int]] = {}
        durations: Counter[tuple[str, str, str]] = Counter()
        tail = self.tail(connection)
        rows = connection.execute(self._sql.folded_totals).fetchall()
        rows += [(*key, one.n, one.sum) for key, one in tail.totals.items()]
        for queue, task, measure, bucket, n, duration in rows:
            key = queue, task, measure
            if measure in HISTOGRAMS:
                histograms.setdefault(key, Counter())[bucket] += n
                durations[key] += duration
            elif measure not in (ENQUEUED, ATTEMPT):
                outcomes[key] += n
        errors = tail.error_totals()
        for code, queue, task, n in connection.execute(self._sql.folded_error_totals).fetchall():
            errors[code, queue, task] += n
        return Totals(
            enqueued,
            dict(outcomes),
            {key: dict(one) for key, one in histograms.items()},
            dict(durations),
            dict(errors),
        )

    def failures(
        self,
        connection: Any,
        since: int | None,
        limit: int,
        task: str | None = None,
        queue: str | None = None,
        trend: tuple[int, int] | None = None,
    ) -> list[FailureRecord]:
        """Return the failures since a minute, or of all time, the most frequent first. trend: see the protocol."""
        values = {"since": since, "limit": limit, "task": task, "queue": queue}
        statement = self._sql.folded_failures if since is None else self._sql.folded_failures_since
        found = {row[:4]: list(row[4:]) for row in connection.execute(statement, values).fetchall()}
        self._add_unfolded_failures(connection, found, since, task, queue)
        first = dict(sorted(found.items(), key=lambda item: (-item[1][3], -item[1][1]))[:limit])
        trends = {} if trend is None or not first else self._trends(connection, first, *trend)
        return [
            record(FailureRecord, (*key[:2], key[2] or None, key[3] or None, *rest, trends.get(key, {})))
            for key, rest in first.items()
        ]

    def _trends(
        self, connection: Any, keys: Collection[FailureKey], since: int, step: int
    ) -> dict[FailureKey, dict[int, int]]:
        """Count each of these failures since a minute, in steps of `step` minutes."""
        found: dict[FailureKey, Counter[int]] = {key: Counter() for key in keys}
        values = {"since": since, "step": step, "keys": as_json(sorted(keys))}
        for minute, *rest, n in connection.execute(self._sql.failure_steps_by_key, values).fetchall():
            found[rest[0], rest[1], rest[2], rest[3]][minute] += n
        for (minute, *rest), n in self.tail(connection).failure_minutes.items():
            key = rest[0], rest[1], rest[2], rest[3]
            if minute >= since and key in found:
                found[key][minute // step * step] += n
        return {key: dict(counts) for key, counts in found.items()}

    def _add_unfolded_failures(
        self,
        connection: Any,
        found: dict[FailureKey, list[int]],
        since: int | None,
        task: str | None,
        queue: str | None,
    ) -> None:
        tail = self.tail(connection)
        unfolded: Counter[FailureKey] = Counter()
        for (minute, *rest), n in tail.failure_minutes.items():
            key = (rest[0], rest[1], rest[2], rest[3])
            if (since is None or minute >= since) and queue in (None, key[1]) and task in (None, key[2]):
                unfolded[key] += n
        missing = [key for key in unfolded if key not in found]
        if missing:  # they may have folded rows that were below the limit
            values = {"keys": as_json(missing), "since": since}
            for row in connection.execute(self._sql.failures_by_key, values).fetchall():
                found[row[:4]] = [*row[4:7], row[7] if since is None else 0]
            if since is not None:
                for *rest, n in connection.execute(self._sql.failure_minutes_by_key, values).fetchall():
                    key = (rest[0], rest[1], rest[2], rest[3])
                    one = tail.failures[key]  # the row in `failures` may be pruned before its minutes
                    found.setdefault(key, [one.first_seen, one.last_seen, one.last_job_id, 0])[3] = n
        for key, n in unfolded.items():
            one = tail.failures[key]
            first, last, _, count = found.get(key, [one.first_seen, one.last_seen, 0, 0])
            found[key] = [min(first, one.first_seen), max(last, one.last_seen), one.last_job_id, count + n]

    def tail(self, connection: Any) -> Sums:
        """Return the sums of the events that are not folded yet."""
        position = self.position(connection)
        if self._memo[:2] == (position.cursor, position.last):
            return self._memo[2]
        sums = self._sums(connection, position.cursor, position.last)
        if position.last < position.horizon:
            self._memo = position.cursor, position.last, sums
        return sums

    def _sums(self, connection: Any, after: int, upto: int) -> Sums:
        values = {"after": after, "upto": upto}
        if after == upto:
            return fold((), ())
        groups = connection.execute(self._sql.event_groups, values).fetchall()
        if WITH_ERROR_CODE.isdisjoint(row[3] for row in groups):
            return fold(groups, ())
        return fold(groups, connection.execute(self._sql.event_failures, values).fetchall())

    def zones(self, connection: Any) -> list[Zone] | None:
        """Return the zones; one can occur twice. Return None if too many events are not folded yet."""
        position = self.position(connection)
        if position.unfolded > MAX_EVENTS_FOR_ZONES:
            return None
        rows = connection.execute(self._sql.folded_zones).fetchall()
        return [Zone(*row) for row in rows + self._zones_of(connection, position.cursor, position.last)]

    def _zones_of(self, connection: Any, after: int, upto: int) -> list[Any]:
        values = {"after": after, "upto": upto, "ids": ZONE_IDS}
        return connection.execute(self._sql.event_zones, values).fetchall() if after < upto else []

    def recount(self, connection: Any) -> list[tuple[str, str, str, int, int]]:
        """Compare the counts with the jobs. Return the differences: queue, task, status, count, actual number."""
        counted = _added_up(connection.execute(self._sql.folded_counts, {"queue": None}).fetchall())
        counted.update(self.tail(connection).counts)
        actual = _added_up(connection.execute(self._sql.recounted).fetchall())
        keys = sorted({*counted, *actual})
        return [(*key, counted[key], actual[key]) for key in keys if counted[key] != actual[key]]


class Statistics(StatisticsReader):
    """Reads and folds, each in transactions of its own."""

    def __init__(self, database: SharedDatabase, sql: Statements, clock: Clock) -> None:
        super().__init__(sql)
        self._database, self._clock = database, clock
        self._rolled_before = 0  # minutes before this one need no check

    def read(self, work: Callable[[Any], T]) -> T:
        """Run reads that all see the same snapshot. If too many events are not folded yet, fold first, in steps."""
        while self._database.read_snapshot(self.position).unfolded > MAX_UNFOLDED_EVENTS and self.fold():
            pass
        return self._database.read_snapshot(work)

    def fold(self) -> int:
        """Fold one step of events, or roll up minutes. Return how many; 0 if there are none or another was faster."""
        return self._fold_events() or self._roll_up()

    def _roll_up(self) -> int:
        """Add one step of past minutes to hours and days. Return how many minutes it processed."""
        before = self._clock.now() // MINUTE
        if before <= self._rolled_before:
            return 0
        values = {"before": before, "limit": ROLLED_ROWS}
        after, upto = self._database.read_snapshot(
            lambda connection: connection.execute(self._sql.last_minute_to_roll, values).fetchone() or (0, None)
        )
        if upto is None:
            self._rolled_before = before
            return 0
        return upto + 1 - after if self._database.run(lambda on: self._store_rollups(on, after, upto)) else 0

    def _store_rollups(self, connection: Any, after: int, upto: int) -> bool:
        """Store sums of whole minutes. A process that folds meanwhile waits for `fold`, then sees the rollups."""
        values = {"after": after, "upto": upto}
        if connection.execute(self._sql.move_rolled, values).rowcount == 0:
            return False
        for length in (HOUR, QUARTER, DAY):
            connection.execute(self._sql.roll_minutes, values | {"length": length})
        connection.execute(self._sql.roll_hours, values)
        return True

    def _fold_events(self) -> int:

        def add_up(connection: Any) -> tuple[int, int, int, Sums, list[Any]]:
            cursor = self.position(connection).cursor
            values = {"after": cursor, "limit": FOLD_EVENTS}
            upto, n = connection.execute(self._sql.last_event_to_fold, values).fetchone()
            zones = self._zones_of(connection, cursor, upto)
            return cursor, upto, n, self._sums(connection, cursor, upto), zones

        after, upto, n, sums, zones = self._database.read_snapshot(add_up)
        if after == upto:
            return 0
        return n if self._database.run(lambda on: self._store(on, after, upto, sums, zones)) else 0

    def fold_all(self) -> None:
        """Fold all events that exist now, but not those that are written meanwhile."""
        last = self._database.read_snapshot(self.position).last
        while (before := self._database.read_snapshot(self.position).cursor) < last:
            if self.fold():
                continue
            self._database.run(lambda connection: connection.execute(self._sql.wait_for_fold))
            if self._database.read_snapshot(self.position).cursor == before:
                return  # transactions that are open may still write events before the others

    def _store(self, connection: Any, after: int, upto: int, sums: Sums, zones: list[tuple[int, int, int]]) -> bool:
        """Store the sums and move the cursor. Return False if another process has moved it."""
        moved = connection.execute(self._sql.move_fold, {"after": after, "upto": upto, "now": self._clock.now()})
        if moved.rowcount == 0:
            return False
        sql = self._sql
        connection.executemany(sql.add_counts, _rows(sums.counts))
        connection.execute(sql.delete_empty_counts)
        if zones:
            connection.executemany(sql.add_zones, zones)
            connection.execute(sql.delete_empty_zones, {"ids": ZONE_IDS})
        connection.executemany(sql.add_minutes, _rows(sums.minutes))
        if late := _late(sums.minutes, self._rolled(connection)):
            connection.executemany(sql.add_rollups, late)
        totals = [(*key, one.n, min(one.sum, MAX_SUM)) for key, one in sums.totals.items()]
        connection.executemany(sql.add_totals, totals)
        if sums.failures:
            rows = [
                (*key, one.first_seen, one.last_seen, one.last_job_id, one.n) for key, one in sums.failures.items()
            ]
            connection.executemany(sql.add_failures, rows)
            connection.executemany(sql.add_failure_minutes, _rows(sums.failure_minutes))
            connection.executemany(sql.add_error_totals, _rows(sums.error_totals()))
        return True

    def delete_removed(self) -> int:
        """Delete leftover events of deleted jobs, which were kept until they were folded. Return how many."""
        rows = self._database.read_snapshot(
            lambda connection: connection.execute(self._sql.removed_jobs, {"limit": REMOVED_JOBS}).fetchall()
        )
        if not rows:
            return 0
        values = {"jobs": as_json([row[0] for row in rows])}
        deleted: int = self._database.run(
            lambda connection: connection.execute(self._sql.delete_events_of_removed, values).rowcount
        )
        return deleted


def _added_up(rows: Iterable[tuple[Any, ...]]) -> Counter[tuple[str, str, str]]:
    """Add up rows of queue, task, status and count."""
    found: Counter[tuple[str, str, str]] = Counter()
    for queue, task, status, n in rows:
        found[text(queue), text(task), text(status)] += integer(n)
    return found


def _rows(sums: Counter[Any]) -> Iterable[tuple[Any, ...]]:
    return [(*key, n) for key, n in sums.items() if n]


def _late(minutes: Counter[tuple[int, str, str, str, int]], rolled: int) -> list[tuple[Any, ...]]:
    """Return what was folded after its minute was rolled up, as rows of the rollups."""
    late = [(key, n) for key, n in minutes.items() if n and key[0] < rolled]
    lengths = (HOUR, QUARTER, DAY)
    found = [(length, key[0] // length * length + length - 1, *key[1:], n) for length in lengths for key, n in late]
    return found + [(OF_ALL, key[0] // HOUR * HOUR + HOUR - 1, "", "", *key[3:], n) for key, n in late]


def _parts(since: int, step: int, rolled: int) -> dict[str, int]:
    """Split a period into minutes, hours, quarters of days, days, and the minutes that are not rolled up.

    Return {} if a step may begin within an hour, or if no whole hour begins before `rolled`.
    """
    first_hour, first_quarter, first_day = (-(-since // length) * length for length in (HOUR, QUARTER, DAY))
    if step % HOUR or first_hour > rolled:
        return {}
    return {
        "first_hour": first_hour,
        "first_quarter": NO_MINUTE if step % QUARTER else first_quarter,
        "first_day": NO_MINUTE if step % DAY else first_day,
        "rolled": rolled,
    }


LAST_EVENT = 2**63 - 1
MAX_RUNNING = 5_000

# The longest waiting ready job is searched among the first jobs of each priority, in a limited number of priorities.
LONGEST_READY = {"each": 100, "most": 1000}
NO_LIMIT = -1
WAITING = ("running", "ready", "scheduled", "blocked")


class StoredStatistics:
    """Implements StatisticsStore."""

    def __init__(
        self, db: SharedDatabase, statistics: Statistics, guarded: DamageGuard, size: Callable[[], Storage]
    ) -> None:
        self._db, self._sql, self._clock, self._statistics = db, db.sql, db.clock, statistics
        self._fold, self.size = guarded(statistics.fold), size

    def fold(self) -> int:
        return self._fold() + self._statistics.delete_removed()

    # --- counts ---

    def counts(self, queue: str | None = None) -> Counts:
        def work(connection: Connection) -> Counts:
            rows = connection.execute(self._sql.queues_ever_paused).fetchall()
            return Counts(
                self._statistics.counts(connection, queue),
                {text(name): at is not None for name, at, _, _ in rows},
                {text(name): record(Pause, (at, by, reason)) for name, at, by, reason in rows if at is not None},
            )

        return self._statistics.read(work)

    def oldest(self, limit: int, statuses: Collection[str] = WAITING, queue: str | None = None) -> list[WaitingJob]:
        def work(connection: Connection) -> list[WaitingJob]:
            counts = self._statistics.counts(connection, queue)
            found: list[WaitingJob] = []
            for status in statuses:
                places = as_json([(one.queue, one.task or "") for one in counts if one.status == status])
                given = {"places": places, "limit": limit, "now": self._clock.now()}
                rows = self._oldest(connection, status, given)
                found += [record(WaitingJob, (*row, status)) for row in rows]
            return found

        return self._statistics.read(work)

    def _oldest(self, connection: Connection, status: str, given: dict[str, Any]) -> list[Any]:
        if status == "running":
            return connection.execute(self._sql.longest_running, given | {"most": MAX_RUNNING}).fetchall()
        statement = {"ready": "longest_ready", "blocked": "longest_blocked", "scheduled": "longest_due"}[status]
        return connection.execute(getattr(self._sql, statement), given | LONGEST_READY).fetchall()

    # --- rates and failures ---

    def minutes(
        self,
        since_minute: int,
        step: int = 1,
        task: str | None = None,
        queue: str | None = None,
        merged: bool = False,
        timed: bool | None = None,
    ) -> list[MinuteRecord]:
        return self._statistics.read(
            lambda connection: self._statistics.minutes(connection, since_minute, step, task, queue, merged, timed)
        )

    def failures(
        self,
        since_minute: int | None,
        limit: int,
        task: str | None = None,
        queue: str | None = None,
        trend: tuple[int, int] | None = None,
    ) -> list[FailureRecord]:
        return self._statistics.read(
            lambda connection: self._statistics.failures(connection, since_minute, limit, task, queue, trend)
        )

    def totals(self) -> Totals:
        def work(connection: Connection) -> Totals:
            table = f"{self._db.tables}jobs"
            enqueued = connection.execute(self._sql.ever_enqueued, (table,)).fetchone()
            return self._statistics.totals(connection, enqueued[0] if enqueued else 0)

        return self._statistics.read(work)

    # --- the event log ---

    def events(
        self, limit: int, *, after: int | None = None, before: int | None = None, job_id: int | None = None
    ) -> list[EventRecord]:
        name = "events" if job_id is None else "events_of_job"
        statement: str = getattr(self._sql, f"{name}_after" if after is not None else f"last_{name}")
        given = {"limit": limit, "job": job_id, "after": after, "before": LAST_EVENT if before is None else before}
        rows = self._db.rows(statement.replace("{columns}", EVENT_COLUMNS), given)
        found = [event_record(*row) for row in rows]
        return found if after is not None else found[::-1]
