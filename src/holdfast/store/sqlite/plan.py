"""Which index to take for a search: the one that leads to the fewest jobs that do not fit, as far as a look tells.

How many entries a part of an index has is counted, up to a bound: so the choice needs no statistics. Only where no
index helps do the counts of the statistics tell which queues and tasks have jobs in the wanted states at all.
"""

import sqlite3
from collections.abc import Sequence
from itertools import product
from typing import Any

from ...model import Criteria, Status
from ...observations import Count
from ..statements import Statements, as_json
from ..statistics import Reader
from .paths import Continued, Given, Indexes, Order, Path, Ranges, Span, Union

SMALL = 5_000  # so many jobs are looked at one by one
MOST_SORTED = 50_000  # entries of an index that is not in the order of ids, for one page
MOST_RANGES = 1_000  # each costs a few look-ups, to find it and its first job
MOST_COUNTED_PLACES = 5_000  # the same for those that the counts name
MOST_UNFOLDED = 20_000  # events: with more of them the counts cost too much

Place = tuple[str, str | None]


class Plan:
    """Of one search, on a connection that is in a transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Statements,
        indexes: Indexes,
        criteria: Criteria,
        most_sorted: int,
    ) -> None:
        self._connection, self._sql, self._indexes, self._wanted = connection, sql, indexes, criteria
        self._most_sorted = most_sorted
        self._statuses = [Status(one) for one in dict.fromkeys(criteria.status or criteria.chain_status)]
        self._is_about_places = bool(criteria.queue or criteria.task or criteria.messages)

    @property
    def is_direct(self) -> bool:
        """Whether a filter names what few jobs have, as a rule."""
        wanted = self._wanted
        return wanted.ids is not None or bool(wanted.key or wanted.tag or wanted.error_code)

    def path(self) -> Path | None:
        """None: there is none, so that all jobs have to be looked at, one by one."""
        if self._wanted.ids is not None:
            return Given(self._wanted.ids)
        in_order, unsorted = self._named_in_order(), self._named_unsorted()
        is_named = bool(in_order or unsorted)
        whole = Union([self._indexes.all_of(status) for status in self._statuses])
        if self._wanted.chain_status:
            if self._size(whole, SMALL) <= SMALL:
                return self._roots_of(whole)
        elif self._statuses:
            unsorted.append(whole)
        by_status = self._by_status() if self._wanted.queue else None
        small = self._smallest(_there(by_status, *in_order, *unsorted), SMALL)
        if small is None and not is_named and not self._is_about_places:
            small = self._smallest(unsorted, self._most_sorted)
        if small is not None:
            return small
        by_status = by_status or self._by_status()
        if by_status is not None and not is_named:
            return by_status
        by_place = self._by_place(self._indexes.place) if self._is_about_places else None
        in_order += _there(by_status, by_place)
        return self._smallest([*in_order, *unsorted], self._most_sorted) or next(iter(in_order), None)

    def _smallest(self, paths: Sequence[Path], most: int) -> Path | None:
        sizes = [self._size(path, most) for path in paths]
        least = min(sizes, default=most + 1)
        return paths[sizes.index(least)] if least <= most else None

    def _size(self, path: Path, most: int) -> int:
        return path.size(self._connection, most + 1)

    # --- by what a job has ---

    def _named_in_order(self) -> list[Path]:
        found: list[Path] = []
        for order, values in (
            (self._indexes.error_code, self._wanted.error_code),
            (self._indexes.tag, self._wanted.tag),
        ):
            if values:
                found.append(Ranges(self._sql, order, [[value] for value in dict.fromkeys(values)]))
        return found

    def _named_unsorted(self) -> list[Path]:
        wanted, found = self._wanted, list[Path]()
        if wanted.key:
            found.append(Union([self._indexes.with_key(key) for key in dict.fromkeys(wanted.key)]))
        if wanted.finished_from is not None or wanted.finished_before is not None:
            times = wanted.finished_from, wanted.finished_before
            statuses = [Status(one) for one in dict.fromkeys(wanted.status)] or [*Status]
            found.append(Union([self._indexes.finished(status, *times) for status in statuses]))
        return found

    def _by_status(self) -> Path | None:
        """By the ranges of each state. Of a state that has none in its index, only few jobs may be there."""
        paths: list[Path] = []
        for status in self._statuses:
            order, whole = self._indexes.by_status.get(status), self._indexes.all_of(status)
            path: Path | None = None
            if order is not None and self._wanted.queue:
                path = self._by_place(order)
            if path is None and self._size(whole, SMALL) <= SMALL:
                path = whole
            if path is None and order is not None and not self._wanted.queue:
                path = self._by_place(order)
            if path is None:
                return None
            paths.append(path)
        if self._wanted.chain_status:
            paths.append(Continued(self._sql))
        return Union(paths) if paths else None

    def _roots_of(self, path: Path) -> Path:
        """Of the chains of these jobs: the last job of a chain has its status, the first its id."""
        ids = [*path.ids(self._connection, Span(), SMALL)]
        rows = self._connection.execute(self._sql.chains_of, {"batch": as_json(ids)}).fetchall()
        return Given([row[0] for row in rows])

    # --- by queue and task ---

    def _by_place(self, order: Order) -> Path | None:
        ranges: Sequence[Sequence[Any]] | None = self._places(order)
        if ranges is not None and order is self._indexes.by_status[Status.READY]:
            ranges = self._steps(order.put_into(self._sql.priorities_in), {"places": as_json(ranges)})
        return None if ranges is None or len(ranges) > MOST_RANGES else Ranges(self._sql, order, ranges)

    def _places(self, order: Order) -> list[Place] | None:
        """The wanted queues and tasks of which the index may have jobs. None: too many, or not to be named."""
        wanted = self._wanted
        queues: Sequence[str] | None = [*dict.fromkeys(wanted.queue)]
        if not queues:
            rows = self._steps(order.put_into(self._sql.queues_in), {})
            queues = None if rows is None else [row[0] for row in rows]
        if queues is None or len(queues) > MOST_RANGES:
            return None
        places: list[Place]
        if wanted.task or wanted.messages:
            tasks: list[str | None] = [*dict.fromkeys(wanted.task)]
            if wanted.messages:
                tasks = [] if tasks else [None]  # a message has no task
            places = [*product(queues, tasks)]
        else:
            rows = self._steps(order.put_into(self._sql.tasks_in), {"queues": as_json(queues)})
            if rows is None:
                return None
            places = [(queue, task or None) for queue, is_there, task in rows if is_there]
            places = [place for place in places if place[1] is not None or wanted.messages is None]
        return places if len(places) <= MOST_RANGES and all(map(_can_be_named, places)) else None

    def _steps(self, statement: str, values: dict[str, Any]) -> list[Any] | None:
        """None: there are more than are worth it. The last step of each row of steps finds nothing."""
        most = 2 * MOST_RANGES + 2
        rows = self._connection.execute(statement, values | {"most": most}).fetchall()
        return None if len(rows) >= most else [row for row in rows if row[-1] is not None]

    # --- by counts ---

    def path_by_counts(self, statistics: Reader) -> Path | None:
        """By the queues and tasks that have such jobs at all. None: that is of no help."""
        wanted, by_status = self._wanted, self._indexes.by_status
        if self.is_direct or wanted.chain_status or not (wanted.status or self._is_about_places):
            return None
        if statistics.position(self._connection).unfolded > MOST_UNFOLDED:
            return None
        counts = statistics.counts(self._connection)
        places = {(one.queue, one.task): None for one in counts if one.count != 0 and fits(wanted, one)}
        if len(places) > MOST_COUNTED_PLACES or not all(map(_can_be_named, places)):
            return None
        total = sum(one.count or 0 for one in counts)
        if 2 * sum(one.count or 0 for one in counts if (one.queue, one.task) in places) > total:
            return None  # there is something of it nearly everywhere
        orders = {by_status.get(status, self._indexes.place) for status in self._statuses}
        if not orders or not orders <= {by_status[Status.FAILED], by_status[Status.BLOCKED]}:
            orders = {self._indexes.place}
        return Union([Ranges(self._sql, order, [*places]) for order in orders])


def fits(criteria: Criteria, count: Count) -> bool:
    """Whether the jobs that were counted there fit, by queue, task and status."""
    return (
        (not criteria.status or count.status in criteria.status)
        and (not criteria.queue or count.queue in criteria.queue)
        and (not criteria.task or count.task in criteria.task)
        and criteria.messages in (None, count.task is None)
    )


def _there(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


def _can_be_named(place: Place) -> bool:
    """Whether its names come back from the database as they were: a NUL, or what is not UTF-8, does not."""
    return not any("\ufffd" in name or "\0" in name for name in place if name is not None)
