"""Ways to find jobs: each gives the ids of some jobs, in the order of ids, by an index.

A path leads to all jobs that fit some filters, and maybe to others: whoever follows it looks at each job. All of them
go in one direction through a span of ids, so that one can go on where another has stopped.
"""

import heapq
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ...model import Status
from ..statements import Statements, as_json

FIRST_CHUNK = 8  # of a range; each further one is longer
MOST_CHUNK = 1024
LEAST, MOST = -(2**63), 2**63 - 1


class Span(NamedTuple):
    """Ids between two others, and from which end."""

    low: int = LEAST
    high: int = MOST
    newer: bool = False  # the oldest first

    def beyond(self, id: int) -> "Span":
        return self._replace(low=id) if self.newer else self._replace(high=id)

    def upto(self, id: int) -> "Span":
        """To this one, and no further."""
        return self._replace(high=id + 1) if self.newer else self._replace(low=id - 1)

    def parts(self, zones: Collection[int], size: int, most: int) -> list["Span"]:
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

    def within(self, other: "Span") -> "Span | None":
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

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
        """In the order of the span. at_once: how many will be needed, probably."""
        ...


class Given:
    """Ids that are known."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        del connection
        return min(len(self._ids), most)

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
        del connection, at_once
        yield from span.sort({id for id in self._ids if span.low < id < span.high})


class Part(NamedTuple):
    """A part of an index that is not in the order of ids. It is sorted whenever some of it is asked for."""

    sql: Statements
    source: str
    range: str
    values: dict[str, Any]

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        statement = self._put_into(self.sql.size_of_part)
        return int(connection.execute(statement, self.values | {"most": most}).fetchone()[0])

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
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


class Order(NamedTuple):
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

    def __init__(self, sql: Statements, order: Order, ranges: Sequence[Sequence[Any]]) -> None:
        self._sql, self._order, self._ranges = sql, order, ranges
        self._extracted = [f"json_extract(range.value, '$[{n}]')" for n, _ in enumerate(order.columns)]
        self._bound = [f":value_{n}" for n, _ in enumerate(order.columns)]

    def size(self, connection: sqlite3.Connection, most: int) -> int:
        statement = self._order.put_into(self._sql.size_of_ranges, self._extracted)
        return int(connection.execute(statement, {"ranges": as_json(self._ranges), "most": most}).fetchone()[0])

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
        if len(self._ranges) == 1:
            return self._one(connection, self._ranges[0], span, at_once)
        return self._merged(connection, span)

    def _merged(self, connection: sqlite3.Connection, span: Span) -> Iterator[int]:
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

    def _one(self, connection: sqlite3.Connection, range: Sequence[Any], span: Span, chunk: int) -> Iterator[int]:
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

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
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

    def ids(self, connection: sqlite3.Connection, span: Span, at_once: int) -> Iterator[int]:
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
        self.place = Order(f"{self._jobs}place", "true", place)
        self.error_code = Order(f"{self._jobs}error", "true", ("error_code = {}",))
        self.tag = Order(f"{prefix}tags INDEXED BY {prefix}tags_tag", "true", ("tag = {}",), "job_id")
        self.without_history = Part(sql, f"{self._jobs}unlogged", "history = 0", {})
        self.by_status = {
            Status.READY: Order(f"{self._jobs}ready", _is(Status.READY), (*place, "priority = {}")),
            Status.BLOCKED: Order(f"{self._jobs}blocked", _is(Status.BLOCKED), place),
            Status.FAILED: Order(f"{self._jobs}failed", _is(Status.FAILED), place),
        }
        """Those that have ranges in the order of ids."""
        self._others = {
            Status.SCHEDULED: "scheduled",
            Status.RUNNING: "running",
            Status.SUCCEEDED: "finished",
            Status.CANCELLED: "finished",
        }

    def all_of(self, status: Status) -> Part:
        """All jobs in one state."""
        order = self.by_status.get(status)
        source = order.source if order is not None else f"{self._jobs}{self._others[status]}"
        return Part(self._sql, source, _is(status), {})

    def finished(self, status: Status, since: int | None, before: int | None) -> Part:
        """Jobs in one state that ended within a time."""
        clauses, values = [_is(status), "finished_at IS NOT NULL"], dict[str, Any]()
        if since is not None:
            clauses.append("finished_at >= :since")
            values["since"] = since
        if before is not None:
            clauses.append("finished_at < :before")
            values["before"] = before
        return Part(self._sql, f"{self._jobs}finished", " AND ".join(clauses), values)

    def with_key(self, key: str) -> Part:
        return Part(self._sql, f"{self._jobs}key", "key = :wanted", {"wanted": key})


def _is(status: Status) -> str:
    # Written out, not bound: only so does SQLite see that a partial index has all of them.
    return f"status = '{status.value}'"
