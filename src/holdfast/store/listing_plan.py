"""Choose the access path of a search: the index that yields the fewest jobs that do not match.

The planner counts the entries of each candidate, up to a bound, so it needs no statistics. Only if no index helps,
the counts of the statistics tell which queues and tasks have jobs in the wanted states at all.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

from ..model.job import STATUSES, Criteria, Status
from ..model.stats import Count
from .database import Connection, SharedDatabase
from .statements import Statements, as_json
from .statistics import StatisticsReader

SMALL = 5_000  # a path of at most this many jobs is taken without further search
MAX_SORTED = 50_000  # entries of an index that is not in the order of ids, for one page
MAX_RANGES = 1_000  # each costs a few lookups, to find it and its first job
MAX_COUNTED_PAIRS = 5_000  # ranges that are known from the counts, which saves the lookups to find them
MAX_UNFOLDED = 20_000  # events: with more of them, reading the counts costs too much
QueueTask = tuple[str, str | None]  # the task of a message is None

FIRST_CHUNK = 8  # ids of a range; each further chunk is longer
MAX_CHUNK = 1024
MIN_ID, MAX_ID = -(2**63), 2**63 - 1


class IdRange(NamedTuple):
    """The ids between two others, exclusive, and the direction of the search."""

    low: int = MIN_ID
    high: int = MAX_ID
    ascending: bool = False  # oldest first; otherwise newest first

    def beyond(self, id: int) -> "IdRange":
        """Return what is left after this id."""
        return self._replace(low=id) if self.ascending else self._replace(high=id)

    def up_to(self, id: int) -> "IdRange":
        """Return the part up to and including this id."""
        return self._replace(high=id + 1) if self.ascending else self._replace(low=id - 1)

    def in_zones(self, zones: Collection[int], size: int, max_parts: int) -> list["IdRange"]:
        """Return the parts that lie in these zones of `size` ids each, in search order.

        Adjacent zones form one part. If there are more than `max_parts`, the last ones are joined.
        """
        runs: list[tuple[int, int]] = []
        for zone in sorted(zones):
            if runs and zone == runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], zone)
            else:
                runs.append((zone, zone))
        found = [
            self._replace(low=first * size - 1 if first > 0 else MIN_ID, high=(last + 1) * size)
            for first, last in runs
        ]
        found = [part for one in found if (part := one.intersection(self)) is not None]
        if not self.ascending:
            found.reverse()
        if len(found) > max_parts:
            ends = found[max_parts - 1], found[-1]
            found[max_parts - 1 :] = [self._replace(low=min(ends).low, high=max(ends).high)]
        return found

    def intersection(self, other: "IdRange") -> "IdRange | None":
        both = self._replace(low=max(self.low, other.low), high=min(self.high, other.high))
        return both if both.low < both.high - 1 else None

    @property
    def bounds(self) -> dict[str, int]:
        return {"low": self.low, "high": self.high}

    def fill(self, statement: str) -> str:
        """Put the direction into a statement."""
        first, order = ("min", "") if self.ascending else ("max", "DESC")
        return statement.replace("{first}", first).replace("{order}", order)

    def sort(self, ids: Any) -> list[int]:
        return sorted(ids, reverse=not self.ascending)


class AccessPath(Protocol):
    """A way to the ids of jobs that may match."""

    def size(self, connection: Connection, bound: int) -> int:
        """Count the ids, in any range of ids. Stops at `bound`."""
        ...

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        """Yield the ids in the span, in its direction. at_once: how many the caller probably needs."""
        ...


class GivenIds:
    """Ids that the caller named."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def size(self, connection: Connection, bound: int) -> int:
        del connection
        return min(len(self._ids), bound)

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        del connection, at_once
        yield from span.sort({id for id in self._ids if span.low < id < span.high})


class SortedScan(NamedTuple):
    """A part of an index that is not in the order of ids. Each read sorts it."""

    sql: Statements
    source: str
    range: str
    values: dict[str, Any]

    def size(self, connection: Connection, bound: int) -> int:
        statement = self._fill(self.sql.size_of_part)
        return int(connection.execute(statement, self.values | {"bound": bound}).fetchone()[0])

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        statement = span.fill(self._fill(self.sql.sorted_ids))
        at_once = max(at_once, MAX_CHUNK)  # sorting again costs more than reading too many
        while True:
            values = self.values | span.bounds | {"limit": at_once}
            rows = connection.execute(statement, values).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < at_once:
                return
            span, at_once = span.beyond(rows[-1][0]), 16 * at_once

    def _fill(self, statement: str) -> str:
        return statement.replace("{source}", self.source).replace("{range}", self.range)


class OrderedIndex(NamedTuple):
    """An index in which the entries with the same leading columns are in the order of ids."""

    source: str  # the table, INDEXED BY the index
    condition: str  # of a partial index
    columns: tuple[str, ...]  # conditions on the leading columns; {} is the value
    id: str = "id"

    def fill(self, statement: str, values: Sequence[str] = ()) -> str:
        columns = (column.format(value) for column, value in zip(self.columns, values, strict=False))
        filled = statement.replace("{source}", self.source).replace("{id}", self.id)
        return filled.replace("{range}", " AND ".join([self.condition, *columns]))


class RangeScan:
    """RangeScan of an ordered index, merged by id."""

    def __init__(self, db: SharedDatabase, index: OrderedIndex, ranges: Sequence[Sequence[Any]]) -> None:
        self._sql, self._index, self._ranges = db.sql, index, ranges
        self._extracted = [db.dialect.element("range.value", n) for n, _ in enumerate(index.columns)]
        self._bound = [f":value_{n}" for n, _ in enumerate(index.columns)]

    def size(self, connection: Connection, bound: int) -> int:
        statement = self._index.fill(self._sql.size_of_ranges, self._extracted)
        return int(connection.execute(statement, {"ranges": as_json(self._ranges), "bound": bound}).fetchone()[0])

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        if len(self._ranges) == 1:
            return self._range_ids(connection, self._ranges[0], span, at_once)
        return self._merged(connection, span)

    def _merged(self, connection: Connection, span: IdRange) -> Iterator[int]:
        """Merge with a heap: a range is read further only when its next id is due."""
        sign = 1 if span.ascending else -1
        heads = span.fill(self._index.fill(self._sql.heads, self._extracted))
        rows = connection.execute(heads, {"ranges": as_json(self._ranges)} | span.bounds).fetchall()
        heap = [(sign * id, index) for index, id in rows if id is not None]
        heapq.heapify(heap)
        rest: dict[int, Iterator[int]] = {}
        last = None
        while heap:
            key, index = heap[0]
            if key != last:  # a job with two of the wanted tags occurs in two ranges
                yield sign * key
            last = key
            if index not in rest:
                beyond = span.beyond(sign * key)
                rest[index] = self._range_ids(connection, self._ranges[index], beyond, FIRST_CHUNK)
            following = next(rest[index], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (sign * following, index))

    def _range_ids(self, connection: Connection, range: Sequence[Any], span: IdRange, chunk: int) -> Iterator[int]:
        values = {f"value_{n}": value for n, value in enumerate(range)}
        statement = span.fill(self._index.fill(self._sql.range_ids, self._bound))
        while True:
            rows = connection.execute(statement, values | span.bounds | {"limit": chunk}).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < chunk:
                return
            span, chunk = span.beyond(rows[-1][0]), max(chunk, min(4 * chunk, MAX_CHUNK))


class ChainRootScan:
    """The first jobs of all chains of more than one job."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def size(self, connection: Connection, bound: int) -> int:
        return int(connection.execute(self._sql.size_of_chains, {"bound": bound}).fetchone()[0])

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        while True:
            bounds = ("found.chain", ":high") if span.ascending else (":low", "found.chain")
            statement = self._sql.continued_chains.replace("{low}", bounds[0]).replace("{high}", bounds[1])
            values = span.bounds | {"limit": at_once}
            rows = connection.execute(span.fill(statement), values).fetchall()
            yield from (row[0] for row in rows)
            if len(rows) < at_once:
                return
            span = span.beyond(rows[-1][0])


class UnionScan:
    """Several access paths, merged by id."""

    def __init__(self, paths: Sequence[AccessPath]) -> None:
        self._paths = paths

    def size(self, connection: Connection, bound: int) -> int:
        count = 0
        for path in self._paths:
            if count < bound:
                count += path.size(connection, bound - count)
        return count

    def ids(self, connection: Connection, span: IdRange, at_once: int) -> Iterator[int]:
        last = None
        all_ids = [path.ids(connection, span, at_once) for path in self._paths]
        for id in heapq.merge(*all_ids, reverse=not span.ascending):
            if id != last:
                yield id
            last = id


class JobIndexes:
    """The indexes of jobs and tags, as access paths use them."""

    def __init__(self, db: SharedDatabase) -> None:
        self._db, self._sql, using = db, db.sql, db.dialect.using
        queue_task = ("queue = {}", db.dialect.same_task("{}"))
        self.queue_task: tuple[OrderedIndex, ...] = (
            OrderedIndex(self._jobs("logged"), "history = 1", queue_task),
            OrderedIndex(self._jobs("unlogged"), "history = 0", queue_task),
        )
        """Every job is in one of them."""
        self.error_code = OrderedIndex(self._jobs("error"), "true", ("error_code = {}",))
        self.fingerprint = OrderedIndex(self._jobs("fingerprint"), "true", ("fingerprint = {}",))
        waiting = f"external = 1 AND {_is(Status.BLOCKED)}"
        self.external = OrderedIndex(self._jobs("external"), waiting, ("external = CAST({} AS BIGINT)",))
        in_batch = ("batch_id = CAST({} AS BIGINT)", "continued = CAST({} AS BIGINT)", "status = {}")
        self.batch = OrderedIndex(self._jobs("batch"), "batch_id IS NOT NULL", in_batch)
        self.tag = OrderedIndex(using(f"{db.tables}tags", f"{db.tables}tags_tag"), "true", ("tag = {}",), "job_id")
        self.without_history = SortedScan(db.sql, self._jobs("unlogged"), "history = 0", {})
        self.by_status = {
            Status.READY: OrderedIndex(
                self._jobs("ready"), _is(Status.READY), (*queue_task, "priority = CAST({} AS BIGINT)")
            ),
            Status.BLOCKED: OrderedIndex(self._jobs("blocked"), _is(Status.BLOCKED), queue_task),
            Status.FAILED: OrderedIndex(self._jobs("failed"), _is(Status.FAILED), queue_task),
        }
        """The statuses whose index has ranges in the order of ids."""
        self._unordered = {
            Status.SCHEDULED: "scheduled",
            Status.RUNNING: "running",
            Status.SUCCEEDED: "finished",
            Status.CANCELLED: "finished",
        }

    def _jobs(self, index: str) -> str:
        return self._db.dialect.using(f"{self._db.tables}jobs", f"{self._db.tables}jobs_{index}")

    def all_of(self, status: Status) -> SortedScan:
        """All jobs with this status."""
        index = self.by_status.get(status)
        source = index.source if index is not None else self._jobs(self._unordered[status])
        return SortedScan(self._sql, source, _is(status), {})

    def finished(self, status: Status, since: int | None, before: int | None) -> SortedScan:
        """Jobs with this status that finished within a period."""
        clauses, values = [_is(status), "finished_at IS NOT NULL"], dict[str, Any]()
        if since is not None:
            clauses.append("finished_at >= :since")
            values["since"] = since
        if before is not None:
            clauses.append("finished_at < :before")
            values["before"] = before
        return SortedScan(self._sql, self._jobs("finished"), " AND ".join(clauses), values)

    def with_key(self, key: str) -> SortedScan:
        return SortedScan(self._sql, self._jobs("key"), "key = :wanted", {"wanted": key})


def _is(status: Status) -> str:
    # A literal, not a bound value: SQLite uses a partial index only if it can see that the condition holds.
    return f"status = '{status.value}'"


class ListPlanner:
    """Plans one search, on a connection that is in a read transaction."""

    def __init__(
        self,
        connection: Connection,
        db: SharedDatabase,
        indexes: JobIndexes,
        criteria: Criteria,
        max_sorted: int,
        statistics: StatisticsReader | None = None,
    ) -> None:
        """statistics: for a search that reads everything in one transaction."""
        self._statistics = statistics
        self.asked_counts = False
        self._connection, self._indexes, self._wanted = connection, indexes, criteria
        self._db, self._sql = db, db.sql
        self._max_sorted = max_sorted
        self._statuses = [Status(one) for one in dict.fromkeys(criteria.status or criteria.chain_status)]
        self._names_queue_or_task = bool(criteria.queue or criteria.task or criteria.messages)

    @property
    def is_selective(self) -> bool:
        """Whether a filter, such as a key or tag, usually matches few jobs."""
        wanted = self._wanted
        return wanted.ids is not None or bool(
            wanted.key or wanted.tag or wanted.error_code or wanted.fingerprint or wanted.batch_id or wanted.inbox
        )

    def path(self) -> AccessPath | None:
        """Choose the access path. None: no index helps, so all jobs have to be scanned by id."""
        if self._wanted.ids is not None:
            return GivenIds(self._wanted.ids)
        if self._wanted.inbox:
            return RangeScan(self._db, self._indexes.external, [[1]])
        in_order, unsorted = self._ordered_paths(), self._sorted_paths()
        has_value_path = bool(in_order or unsorted)
        whole = UnionScan([self._indexes.all_of(status) for status in self._statuses])
        if self._wanted.chain_status:
            if self._size(whole, SMALL) <= SMALL:
                return self._roots_of(whole)
        elif self._statuses:
            unsorted.append(whole)
        by_status = self._by_status() if self._wanted.queue else None
        small = self._smallest(_present(by_status, *in_order, *unsorted), SMALL)
        if small is None and not has_value_path and not self._names_queue_or_task:
            small = self._smallest(unsorted, self._max_sorted)
        if small is not None:
            return small
        by_status = by_status or self._by_status()
        if by_status is not None and not has_value_path:
            return by_status
        exact = self._of_queue_and_task() if self._names_queue_or_task else None
        if exact is None and not has_value_path and (self._wanted.task or self._wanted.messages):
            counted = self.path_by_counts()
            if counted is not None:
                return counted
        in_order += _present(by_status, exact)
        return self._smallest([*in_order, *unsorted], self._max_sorted) or next(iter(in_order), None)

    def _smallest(self, paths: Sequence[AccessPath], max_size: int) -> AccessPath | None:
        sizes = [self._size(path, max_size) for path in paths]
        smallest = min(sizes, default=max_size + 1)
        return paths[sizes.index(smallest)] if smallest <= max_size else None

    def _size(self, path: AccessPath, max_size: int) -> int:
        return path.size(self._connection, max_size + 1)

    # --- by a column's value ---

    def _ordered_paths(self) -> list[AccessPath]:
        found: list[AccessPath] = []
        for index, values in (
            (self._indexes.error_code, self._wanted.error_code),
            (self._indexes.fingerprint, self._wanted.fingerprint),
            (self._indexes.tag, self._wanted.tag),
        ):
            if values:
                found.append(RangeScan(self._db, index, [[value] for value in dict.fromkeys(values)]))
        if self._wanted.batch_id:
            statuses = [] if self._wanted.chain_status else [status.value for status in self._statuses]
            statuses = statuses or sorted(STATUSES)
            ranges = [*product(dict.fromkeys(self._wanted.batch_id), (0, 1), statuses)]
            found.append(RangeScan(self._db, self._indexes.batch, ranges))
        return found

    def _sorted_paths(self) -> list[AccessPath]:
        wanted, found = self._wanted, list[AccessPath]()
        if wanted.key:
            found.append(UnionScan([self._indexes.with_key(key) for key in dict.fromkeys(wanted.key)]))
        if wanted.finished_from is not None or wanted.finished_before is not None:
            times = wanted.finished_from, wanted.finished_before
            statuses = [Status(one) for one in dict.fromkeys(wanted.status)] or [*Status]
            found.append(UnionScan([self._indexes.finished(status, *times) for status in statuses]))
        return found

    def _by_status(self) -> AccessPath | None:
        """Merge the paths of the wanted statuses. None: one of them has no ordered index and too many jobs."""
        paths: list[AccessPath] = []
        for status in self._statuses:
            index, whole = self._indexes.by_status.get(status), self._indexes.all_of(status)
            path: AccessPath | None = None
            if index is not None and self._wanted.queue:
                path = self._by_queue_and_task(index)
            if path is None and self._size(whole, SMALL) <= SMALL:
                path = whole
            if path is None and index is not None and not self._wanted.queue:
                path = self._by_queue_and_task(index)
            if path is None:
                return None
            paths.append(path)
        if self._wanted.chain_status:
            paths.append(ChainRootScan(self._sql))
        return UnionScan(paths) if paths else None

    def _roots_of(self, path: AccessPath) -> AccessPath:
        """Return the first jobs of these jobs' chains: the last job of a chain has its status, the first its id."""
        ids = [*path.ids(self._connection, IdRange(), SMALL)]
        rows = self._connection.execute(self._sql.chains_of, {"batch": as_json(ids)}).fetchall()
        return GivenIds([row[0] for row in rows])

    # --- by queue and task ---

    def _of_queue_and_task(self) -> AccessPath | None:
        """Return the path to the jobs of the wanted queues and tasks, whatever their status. None: too many pairs."""
        paths = [self._by_queue_and_task(index) for index in self._indexes.queue_task]
        found = _present(*paths)
        return UnionScan(found) if len(found) == len(paths) else None

    def _by_queue_and_task(self, index: OrderedIndex) -> AccessPath | None:
        ranges: Sequence[Sequence[Any]] | None = self._pairs(index)
        if ranges is not None and index is self._indexes.by_status[Status.READY]:
            ranges = self._skip_scan(index.fill(self._sql.priorities_in), {"pairs": as_json(ranges)})
        return None if ranges is None or len(ranges) > MAX_RANGES else RangeScan(self._db, index, ranges)

    def _pairs(self, index: OrderedIndex) -> list[QueueTask] | None:
        """Return the wanted queues and tasks that the index may have jobs of. None: too many, or a damaged name."""
        wanted = self._wanted
        queues: Sequence[str] | None = [*dict.fromkeys(wanted.queue)]
        if not queues:
            rows = self._skip_scan(index.fill(self._sql.queues_in), {}, MAX_RANGES + 2)
            queues = None if rows is None else [row[0] for row in rows]
        if queues is None or len(queues) > MAX_RANGES:
            return None
        pairs: list[QueueTask]
        if wanted.task or wanted.messages:
            tasks: list[str | None] = [*dict.fromkeys(wanted.task)]
            if wanted.messages:
                tasks = [] if tasks else [None]  # a message has no task
            pairs = [*product(queues, tasks)]
        else:
            rows = self._skip_scan(index.fill(self._sql.tasks_in), {"queues": as_json(queues)})
            if rows is None:
                return None
            pairs = [(queue, task or None) for queue, exists, task in rows if exists]
            pairs = [pair for pair in pairs if pair[1] is not None or wanted.messages is None]
        return pairs if len(pairs) <= MAX_RANGES and all(map(_is_intact, pairs)) else None

    def _skip_scan(self, statement: str, values: dict[str, Any], bound: int | None = None) -> list[Any] | None:
        """Read distinct values with one lookup each. None: too many. The last lookup of each series yields NULL."""
        bound = 2 * MAX_RANGES + 2 if bound is None else bound
        rows = self._connection.execute(statement, values | {"bound": bound}).fetchall()
        return None if len(rows) >= bound else [row for row in rows if row[-1] is not None]

    # --- by counts ---

    def path_by_counts(self) -> AccessPath | None:
        """Return the ranges of the queues and tasks that have such jobs, by the counts. None: that does not help."""
        wanted, by_status, statistics = self._wanted, self._indexes.by_status, self._statistics
        if statistics is None or self.is_selective or wanted.chain_status:
            return None
        if not (wanted.status or self._names_queue_or_task):
            return None
        self.asked_counts = True
        if statistics.position(self._connection).unfolded > MAX_UNFOLDED:
            return None
        queue = wanted.queue[0] if len(wanted.queue) == 1 else None
        tasks = wanted.task or ([""] if wanted.messages else ())
        counts = statistics.counts(self._connection, queue, tasks)
        pairs = {(one.queue, one.task): None for one in counts if one.count != 0 and matches(wanted, one)}
        if len(pairs) > MAX_COUNTED_PAIRS or not all(map(_is_intact, pairs)):
            return None
        jobs = sum(one.count or 0 for one in counts if (one.queue, one.task) in pairs)
        if 2 * jobs > statistics.total(self._connection):
            return None  # most jobs are of such queues and tasks
        indexes = self._indexes.queue_task
        if self._statuses and {*self._statuses} <= {Status.FAILED, Status.BLOCKED}:
            indexes = tuple(by_status[status] for status in self._statuses)
        return UnionScan([RangeScan(self._db, index, [*pairs]) for index in indexes])


def matches(criteria: Criteria, count: Count) -> bool:
    """Return whether the counted jobs match, by queue, task and status."""
    return (
        (not criteria.status or count.status in criteria.status)
        and (not criteria.queue or count.queue in criteria.queue)
        and (not criteria.task or count.task in criteria.task)
        and criteria.messages in (None, count.task is None)
    )


def error_codes(connection: Connection, sql: Statements) -> list[str] | None:
    """Return the error codes of all jobs. None: too many."""
    rows = connection.execute(sql.error_codes, {"bound": MAX_RANGES + 1}).fetchall()
    return None if len(rows) > MAX_RANGES else [row[0] for row in rows if row[0] is not None]


def _present(*paths: AccessPath | None) -> list[AccessPath]:
    return [path for path in paths if path is not None]


def _is_intact(pair: QueueTask) -> bool:
    """Return whether its names were read as they are stored. Names with a NUL, or invalid UTF-8, are not."""
    return not any("\ufffd" in name or "\0" in name for name in pair if name is not None)
