"""Which index to take for a search: the one that leads to the fewest jobs that do not fit, as far as a look tells.

How many entries a part of an index has is counted, up to a bound: so the choice needs no statistics. Only where no
index helps do the counts of the statistics tell which queues and tasks have jobs in the wanted states at all.
"""

import heapq
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

from ...model.job import Criteria, Status
from ...model.stats import Count
from ..statements import Statements, as_json
from ..statistics import StatisticsReader

FIRST_CHUNK = 8  # of a range; each further one is longer
MOST_CHUNK = 1024
LEAST, MOST = -(2**63), 2**63 - 1


class IdRange(NamedTuple):
    """Ids between two others, and from which end."""

    low: int = LEAST
    high: int = MOST
    newer: bool = False  # the oldest first

    def beyond(self, id: int) -> "IdRange":
        return self._replace(low=id) if self.newer else self._replace(high=id)

    def upto(self, id: int) -> "IdRange":
        """To this one, and no further."""
        return self._replace(high=id + 1) if self.newer else self._replace(low=id - 1)

    def parts(self, zones: Collection[int], size: int, most: int) -> list["IdRange"]:
        """What of it lies in zones of so many ids each, in order. Zones side by side are one part. Where there are
        too many parts, the last of them are one."""
        runs: list[tuple[int, int]] = []
        for zone in sorted(zones):
            if runs and zone == runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], zone)
            else:
                runs.append((zone, zone))
        found = [
            self._replace(low=first * size - 1 if first > 0 else LEAST, high=(last + 1) * size)
            for first, last in runs
        ]
        found = [part for one in found if (part := one.within(self)) is not None]
        if not self.newer:
            found.reverse()
        if len(found) > most:
            ends = found[most - 1], found[-1]
            found[most - 1 :] = [self._replace(low=min(ends).low, high=max(ends).high)]
        return found

    def within(self, other: "IdRange") -> "IdRange | None":
        both = self._replace(low=max(self.low, other.low), high=min(self.high, other.high))
        return both if both.low < both.high - 1 else None

    @property
    def bounds(self) -> dict[str, int]:
        return {"low": self.low, "high": self.high}

    def put_into(self, statement: str) -> str:
        first, order = ("min", "") if self.newer else ("max", "DESC")
        return statement.replace("{first}", first).replace("{order}", order)

    def sort(self, ids: Any) -> list[int]:
        return sorted(ids, reverse=not self.newer)


class Path(Protocol):
    def size(self, connection: sqlite3.Connection, most: int) -> int:
        """How many ids there are, in any span; `most` if there are as many or more."""
        ...

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        """In the order of the span. at_once: how many will be needed, probably."""
        ...


class Given:
    """Ids that are known."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        del connection
        return min(len(self._ids), most)

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        del connection, at_once
        yield from span.sort({id for id in self._ids if span.low < id < span.high})


class IdSource(NamedTuple):
    """A part of an index that is not in the order of ids. It is sorted whenever some of it is asked for."""

    sql: Statements
    source: str
    range: str
    values: dict[str, Any]

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        statement = self._put_into(self.sql.size_of_part)
        return int(connection.execute(statement, self.values | {"most": most}).fetchone()[0])

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        statement = span.put_into(self._put_into(self.sql.sorted_ids))
        at_once = max(at_once, MOST_CHUNK)  # to sort it again costs more than to read some for nothing
        while True:
            values = self.values | span.bounds | {"limit": at_once}
            rows = connection.execute(statement, values).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < at_once:
                return
            span, at_once = span.beyond(rows[-1][0]), 16 * at_once

    def _put_into(self, statement: str) -> str:
        return statement.replace("{source}", self.source).replace("{range}", self.range)


class ListOrder(NamedTuple):
    """An index in which each range of some leading columns is in the order of ids."""

    source: str  # the table, and which index
    state: str  # what the index is restricted to
    columns: tuple[str, ...]  # conditions; {} is the value
    id: str = "id"

    def put_into(self, statement: str, values: Sequence[str] = ()) -> str:
        columns = (column.format(value) for column, value in zip(self.columns, values, strict=False))
        filled = statement.replace("{source}", self.source).replace("{id}", self.id)
        return filled.replace("{range}", " AND ".join([self.state, *columns]))


class Ranges:
    """Some ranges of an index, merged."""

    def __init__(self, sql: Statements, order: ListOrder, ranges: Sequence[Sequence[Any]]) -> None:
        self._sql, self._order, self._ranges = sql, order, ranges
        self._extracted = [f"json_extract(range.value, '$[{n}]')" for n, _ in enumerate(order.columns)]
        self._bound = [f":value_{n}" for n, _ in enumerate(order.columns)]

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        statement = self._order.put_into(self._sql.size_of_ranges, self._extracted)
        return int(connection.execute(statement, {"ranges": as_json(self._ranges), "most": most}).fetchone()[0])

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        if len(self._ranges) == 1:
            return self._one(connection, self._ranges[0], span, at_once)
        return self._merged(connection, span)

    def _merged(self, connection: sqlite3.Connection, span: IdRange) -> Iterator[int]:
        """Only those ranges are read further whose turn it is."""
        sign = 1 if span.newer else -1
        heads = span.put_into(self._order.put_into(self._sql.heads, self._extracted))
        rows = connection.execute(heads, {"ranges": as_json(self._ranges)} | span.bounds).fetchall()
        heap = [(sign * id, index) for index, id in rows if id is not None]
        heapq.heapify(heap)
        rests: dict[int, Iterator[int]] = {}
        last = None
        while heap:
            key, index = heap[0]
            if key != last:  # a job with two of the wanted tags is in two ranges
                yield sign * key
            last = key
            if index not in rests:
                beyond = span.beyond(sign * key)
                rests[index] = self._one(connection, self._ranges[index], beyond, FIRST_CHUNK)
            following = next(rests[index], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (sign * following, index))

    def _one(self, connection: sqlite3.Connection, range: Sequence[Any], span: IdRange, chunk: int) -> Iterator[int]:
        values = {f"value_{n}": value for n, value in enumerate(range)}
        statement = span.put_into(self._order.put_into(self._sql.range_ids, self._bound))
        while True:
            rows = connection.execute(statement, values | span.bounds | {"limit": chunk}).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < chunk:
                return
            span, chunk = span.beyond(rows[-1][0]), max(chunk, min(4 * chunk, MOST_CHUNK))


class Continued:
    """The roots of all chains of more than one job."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        return int(connection.execute(self._sql.size_of_chains, {"most": most}).fetchone()[0])

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        while True:
            bounds = ("found.chain", ":high") if span.newer else (":low", "found.chain")
            statement = self._sql.continued_chains.replace("{low}", bounds[0]).replace("{high}", bounds[1])
            values = span.bounds | {"limit": at_once}
            rows = connection.execute(span.put_into(statement), values).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < at_once:
                return
            span = span.beyond(rows[-1][0])


class Union:
    """Several paths, merged."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        found = 0
        for path in self._paths:
            if found < most:
                found += path.size(connection, most - found)
        return found

    def ids(self, connection: sqlite3.Connection, span: IdRange, at_once: int) -> Iterator[int]:
        last = None
        all_ids = [path.ids(connection, span, at_once) for path in self._paths]
        for id in heapq.merge(*all_ids, reverse=not span.newer):
            if id != last:
                yield id
            last = id


class Indexes:
    """The indexes of jobs and tags, as paths use them."""

    def __init__(self, sql: Statements, prefix: str) -> None:
        self._sql = sql
        self._jobs = f"{prefix}jobs INDEXED BY {prefix}jobs_"
        place = ("queue = {}", "task IS {}")
        self.place = ListOrder(f"{self._jobs}place", "true", place)
        self.error_code = ListOrder(f"{self._jobs}error", "true", ("error_code = {}",))
        self.tag = ListOrder(f"{prefix}tags INDEXED BY {prefix}tags_tag", "true", ("tag = {}",), "job_id")
        self.without_history = IdSource(sql, f"{self._jobs}unlogged", "history = 0", {})
        self.by_status = {
            Status.READY: ListOrder(f"{self._jobs}ready", _is(Status.READY), (*place, "priority = {}")),
            Status.BLOCKED: ListOrder(f"{self._jobs}blocked", _is(Status.BLOCKED), place),
            Status.FAILED: ListOrder(f"{self._jobs}failed", _is(Status.FAILED), place),
        }
        """Those that have ranges in the order of ids."""
        self._others = {
            Status.SCHEDULED: "scheduled",
            Status.RUNNING: "running",
            Status.SUCCEEDED: "finished",
            Status.CANCELLED: "finished",
        }

    def all_of(self, status: Status) -> IdSource:
        """All jobs in one state."""
        order = self.by_status.get(status)
        source = order.source if order is not None else f"{self._jobs}{self._others[status]}"
        return IdSource(self._sql, source, _is(status), {})

    def finished(self, status: Status, since: int | None, before: int | None) -> IdSource:
        """Jobs in one state that ended within a time."""
        clauses, values = [_is(status), "finished_at IS NOT NULL"], dict[str, Any]()
        if since is not None:
            clauses.append("finished_at >= :since")
            values["since"] = since
        if before is not None:
            clauses.append("finished_at < :before")
            values["before"] = before
        return IdSource(self._sql, f"{self._jobs}finished", " AND ".join(clauses), values)

    def with_key(self, key: str) -> IdSource:
        return IdSource(self._sql, f"{self._jobs}key", "key = :wanted", {"wanted": key})


def _is(status: Status) -> str:
    # Written out, not bound: only so does SQLite see that a partial index has all of them.
    return f"status = '{status.value}'"


SMALL = 5_000  # so many jobs are looked at one by one
MOST_SORTED = 50_000  # entries of an index that is not in the order of ids, for one page
MOST_RANGES = 1_000  # each costs a few look-ups, to find it and its first job
MOST_COUNTED_PLACES = 5_000  # the same for those that the counts name
MOST_UNFOLDED = 20_000  # events: with more of them the counts cost too much
Place = tuple[str, str | None]


class ListPlan:
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
        ids = [*path.ids(self._connection, IdRange(), SMALL)]
        rows = self._connection.execute(self._sql.chains_of, {"batch": as_json(ids)}).fetchall()
        return Given([row[0] for row in rows])

    # --- by queue and task ---

    def _by_place(self, order: ListOrder) -> Path | None:
        ranges: Sequence[Sequence[Any]] | None = self._places(order)
        if ranges is not None and order is self._indexes.by_status[Status.READY]:
            ranges = self._steps(order.put_into(self._sql.priorities_in), {"places": as_json(ranges)})
        return None if ranges is None or len(ranges) > MOST_RANGES else Ranges(self._sql, order, ranges)

    def _places(self, order: ListOrder) -> list[Place] | None:
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

    def path_by_counts(self, statistics: StatisticsReader) -> Path | None:
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
