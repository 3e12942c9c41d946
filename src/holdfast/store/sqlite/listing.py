"""Finding jobs by filters, in the order of ids, whatever the tables hold.

Where most jobs fit, a short walk by id fills the page. Otherwise the index is taken that leads to the fewest others:
see plan.py. What no index leads to is looked for by id, up to a bound. Then the result says how far the search went,
and the next call goes on from there.
"""

import builtins
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...model.job import Counted, Criteria, Cursor, JobRecord, Listed, Status
from ..statements import Statements, as_json
from ..statistics import ZONE_IDS, Statistics
from . import listing_plan
from .database import Database
from .listing_plan import IdRange, Indexes, ListPlan, Path
from .read import COLUMNS

_FIELDS = ("queue", "task", "key", "error_code")
_RANGES = {
    "created_from": "created_at >= :created_from",
    "created_before": "created_at < :created_before",
    "finished_from": "finished_at >= :finished_from",
    "finished_before": "finished_at < :finished_before",
}


def where(criteria: Criteria, prefix: str) -> tuple[str, dict[str, Any]]:
    clauses, values = ["true"], dict[str, Any]()
    if criteria.status:
        # Written out, not bound: only so does the planner see which partial index serves.
        names = ", ".join(f"'{Status(status).value}'" for status in criteria.status)
        clauses.append(f"status = {names}" if len(criteria.status) == 1 else f"status IN ({names})")
    for field in _FIELDS:
        wanted = getattr(criteria, field)
        if len(wanted) == 1:
            clauses.append(f"{field} = :{field}")
            values[field] = wanted[0]
        elif wanted:
            clauses.append(f"{field} IN (SELECT value FROM json_each(:{field}))")  # noqa: S608
            values[field] = as_json(wanted)
    if criteria.tag:
        # Looked up for each job: as a list of ids it would have to be made in full first.
        clauses.append(
            f"EXISTS (SELECT 1 FROM {prefix}tags WHERE job_id = id AND tag IN (SELECT value FROM json_each(:tag)))"  # noqa: S608
        )
        values["tag"] = as_json(criteria.tag)
    for field, clause in _RANGES.items():
        if getattr(criteria, field) is not None:
            clauses.append(clause)
            values[field] = getattr(criteria, field)
    if criteria.ids is not None:
        clauses.append("id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = as_json(criteria.ids)
    if criteria.roots:
        clauses.append("chain_id IS NULL")
    if criteria.chain_status:
        clauses.append(f"{_chain_status(prefix)} IN (SELECT value FROM json_each(:chain_status))")  # noqa: S608
        values["chain_status"] = as_json(criteria.chain_status)
    if criteria.messages is not None:
        clauses.append("task IS NULL" if criteria.messages else "task IS NOT NULL")
    return " AND ".join(clauses), values


def _chain_status(prefix: str) -> str:
    """Of a root: how its last job stands."""
    last = f"SELECT last.status FROM {prefix}jobs AS last WHERE last.chain_id = {prefix}jobs.id"  # noqa: S608
    return f"CASE WHEN continued THEN ({last} ORDER BY last.chain_index DESC LIMIT 1) ELSE status END"


SHORT_WALK = 1_000  # jobs, before anything is planned
LONG_WALK = 20_000  # jobs, one after the other
MOST_LOOKUPS = 5_000  # jobs that lie apart
STEP = 20_000  # jobs at once, where all that fit are wanted
MOST_SORTED_IN_STEPS = 200_000  # see listing_plan.MOST_SORTED
MOST_PARTS = 4  # of the ids that are searched one after the other


class Scanned(NamedTuple):
    """Some of those that fit."""

    ids: list[int]
    looked_at: int
    rest: IdRange | None  # what is left to look at; None: nothing


class Search:
    """One search: the ids that were found, in order, and how far it went."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Statements,
        clause: str,
        values: dict[str, Any],
        span: IdRange,
        limit: int,
    ) -> None:
        self._connection, self._sql, self._clause, self._values = connection, sql, clause, values
        self._all = self.span = span
        self.limit = limit
        self.found: list[int] = []
        self.looked_at = 0
        self.is_complete = False
        """Whether all jobs of the span were looked at that could fit."""

    @property
    def is_full(self) -> bool:
        return len(self.found) >= self.limit

    @property
    def is_done(self) -> bool:
        return self.is_complete or self.is_full

    def enter(self, part: IdRange) -> None:
        self.span, self.is_complete = part, False

    @property
    def rest(self) -> IdRange:
        """What is left of all that is to be searched, not only of the part where it is."""
        if self._all.newer:
            return self._all._replace(low=self.span.low)
        return self._all._replace(high=self.span.high)

    def walk(self, most: int) -> None:
        """Look at so many jobs, one after the other."""
        values = self.span.bounds | {"most": most}
        row = self._execute(self.span.put_into(self._sql.walk_end), values).fetchone()
        end = self.span if row is None else self.span.upto(row[0])
        values = self._values | end.bounds | {"limit": self._missing}
        self.found += [found for (found,) in self._execute(self.span.put_into(self._filled(self._sql.walk)), values)]
        self.looked_at += most  # or less, if all were looked at: then nobody asks
        self._go_on(None if row is None else row[0])

    def follow(self, path: Path, most: int) -> None:
        """Look at so many jobs that a path leads to."""
        ids = path.ids(self._connection, self.span, self._missing)
        batch, left = self._missing, most
        while not self.is_done and left:
            size = min(batch, left)
            some = [*islice(ids, size)]
            self._keep_fitting(some)
            self.looked_at += len(some)
            self._go_on(some[-1] if len(some) == size else None)
            left -= len(some)
            batch *= 4

    def _go_on(self, reached: int | None) -> None:
        """None: there are no more."""
        self.is_complete = reached is None and not self.is_full
        if self.is_full:
            self.span = self.span.beyond(self.found[-1])
        elif reached is not None:
            self.span = self.span.beyond(reached)

    def _keep_fitting(self, ids: Sequence[int]) -> None:
        rows = self._execute(self._filled(self._sql.fitting), self._values | {"batch": as_json(ids)})
        self.found += self.span.sort(found for (found,) in rows)[: self._missing]

    @property
    def _missing(self) -> int:
        return self.limit - len(self.found)

    def _filled(self, statement: str) -> str:
        return statement.replace("{where}", self._clause)

    def _execute(self, statement: str, values: dict[str, Any]) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


class Listing:
    def __init__(self, db: Database, statistics: Statistics) -> None:
        self._db, self._sql, self._statistics = db, db.sql, statistics
        self._indexes = Indexes(db.sql, db.options.prefix)

    # --- a page ---

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> Listed:
        span = IdRange() if cursor is None else IdRange(newer=cursor.newer).beyond(cursor.id)

        def work(connection: sqlite3.Connection) -> Listed:
            search = self._search(connection, criteria, span, limit)
            chosen = ListPlan(connection, self._sql, self._indexes, criteria, listing_plan.MOST_SORTED)
            self._look_for_page(connection, criteria, chosen, search)
            records = self._records(connection, search.found)
            if search.is_done:
                return Listed(records)
            return Listed(records, search.looked_at, search.span.low if span.newer else search.span.high)

        return self._db.read_snapshot(work)

    def _look_for_page(
        self, connection: sqlite3.Connection, criteria: Criteria, chosen: ListPlan, search: Search
    ) -> None:
        """Each way goes on where the one before has stopped."""
        if not chosen.is_direct:
            search.walk(max(SHORT_WALK, 2 * search.limit))
        if search.is_done:
            return
        path = chosen.path()
        search.is_complete = True
        for part in self._parts(connection, criteria, search.span):
            search.enter(part)
            if path is None:
                search.walk(LONG_WALK)
            else:
                search.follow(path, MOST_LOOKUPS)
            if not search.is_complete:  # stopped, or full
                break
        if not search.is_done:
            path = chosen.path_by_counts(self._statistics)
            if path is not None:
                search.enter(search.rest)
                search.follow(path, MOST_LOOKUPS)

    def _records(self, connection: sqlite3.Connection, ids: Sequence[int]) -> builtins.list[JobRecord]:
        statement = self._sql.records.replace("{columns}", COLUMNS)
        return [JobRecord(*row) for row in connection.execute(statement, {"batch": as_json(ids)}).fetchall()]

    def _search(self, connection: sqlite3.Connection, criteria: Criteria, span: IdRange, limit: int) -> Search:
        clause, values = where(replace(criteria, ids=None), self._db.options.prefix)
        return Search(connection, self._sql, clause, values, span, limit)

    def _parts(self, connection: sqlite3.Connection, criteria: Criteria, span: IdRange) -> builtins.list[IdRange]:
        """Where such jobs may be, in the order of the span: by when they were created, and by how they ended."""
        times, statuses = (criteria.created_from, criteria.created_before), set(criteria.status)
        is_about_ends = bool(statuses) and statuses <= {Status.SUCCEEDED, Status.CANCELLED}
        if times == (None, None) and not is_about_ends:
            return [span]
        zones = self._statistics.zones(connection)
        if (
            zones is None
            or self._indexes.without_history.size(connection, listing_plan.MOST_SORTED + 1) > listing_plan.MOST_SORTED
        ):
            return [span]
        rows = connection.execute(self._sql.zones_without_history, {"ids": ZONE_IDS}).fetchall()
        fitting = {row[0] for row in rows}
        for zone in zones:
            if zone.has(*times) and (not is_about_ends or any(getattr(zone, status) for status in statuses)):
                fitting.add(zone.zone)
        return span.parts(fitting, ZONE_IDS, MOST_PARTS)

    # --- all of them, in steps ---

    def steps(self, criteria: Criteria) -> Iterator[Scanned]:
        """All ids that fit, the oldest first, of jobs that are there when it begins. Each step is a short read."""
        span, path = self._db.read_snapshot(partial(self._begin, criteria=criteria))
        while True:
            step = self._db.read_snapshot(partial(self._step, criteria=criteria, path=path, span=span))
            yield step
            if step.rest is None:
                return
            span = step.rest

    def _begin(self, connection: sqlite3.Connection, criteria: Criteria) -> tuple[IdRange, Path | None]:
        (last,) = connection.execute(self._sql.last_job).fetchone()
        chosen = ListPlan(connection, self._sql, self._indexes, criteria, MOST_SORTED_IN_STEPS)
        return IdRange(newer=True, high=last + 1), chosen.path()

    def _step(self, connection: sqlite3.Connection, criteria: Criteria, path: Path | None, span: IdRange) -> Scanned:
        parts = self._parts(connection, criteria, span)
        if not parts:
            return Scanned([], 0, None)
        search = self._search(connection, criteria, span, STEP)
        search.enter(parts[0])
        if path is None:
            search.walk(LONG_WALK)
        else:
            search.follow(path, STEP)
        if not search.is_complete:
            return Scanned(search.found, search.looked_at, search.rest)
        rest = span._replace(low=parts[0].high - 1) if len(parts) > 1 else None
        return Scanned(search.found, search.looked_at, rest)

    # --- counts ---

    def count(self, criteria: Criteria, deletable: bool = False, most: int | None = None) -> Counted:
        counted = self._count_by_statistics(criteria, deletable)
        if counted is not None:
            return Counted(counted)
        count = looked_at = 0
        for step in self.steps(criteria):
            if deletable and step.ids:
                count += self._db.read(partial(self._deletable, criteria=criteria, ids=step.ids))
            else:
                count += len(step.ids)
            looked_at += step.looked_at
            if most is not None and looked_at >= most and step.rest is not None:
                return Counted(count, is_complete=False)
        return Counted(count)

    def _count_by_statistics(self, criteria: Criteria, deletable: bool) -> int | None:
        """None: the filters are about more than queue, task and status, or many jobs are without history."""
        statuses = tuple(one for one in criteria.status or Status if not deletable or one != Status.RUNNING)
        if not statuses:
            return 0
        wanted = Criteria(status=statuses, queue=criteria.queue, task=criteria.task, messages=criteria.messages)
        if replace(criteria, status=statuses) != wanted:
            return None

        def work(connection: sqlite3.Connection) -> int | None:
            queue = wanted.queue[0] if len(wanted.queue) == 1 else None
            counts = [
                one.count for one in self._statistics.counts(connection, queue) if listing_plan.fits(wanted, one)
            ]
            known = [count for count in counts if count is not None]
            linked = self._linked(connection, wanted) if deletable else []
            if len(known) < len(counts) or linked is None:
                return None
            return sum(known) - len(linked) + (self._deletable(connection, wanted, linked) if linked else 0)

        return self._statistics.read(work)

    def _linked(self, connection: sqlite3.Connection, criteria: Criteria) -> builtins.list[int] | None:
        """Those that fit of all jobs that are part of a chain or that others wait for. None: there are too many."""
        bound = {"most": listing_plan.SMALL + 1}
        sizes = [
            connection.execute(one, bound).fetchone()[0]
            for one in (self._sql.size_of_chains, self._sql.size_of_blockers)
        ]
        if max(sizes) > listing_plan.SMALL:
            return None
        ids = {
            row[0]
            for one in (self._sql.in_chains, self._sql.awaited_chains)
            for row in connection.execute(one).fetchall()
        }
        clause, values = where(criteria, self._db.options.prefix)
        statement = self._sql.fitting.replace("{where}", clause)
        return [row[0] for row in connection.execute(statement, values | {"batch": as_json(sorted(ids))}).fetchall()]

    def _deletable(self, connection: sqlite3.Connection, criteria: Criteria, ids: Sequence[int]) -> int:
        clause, values = where(criteria, self._db.options.prefix)
        statement = self._sql.count_deletable.replace("{where}", clause)
        return int(connection.execute(statement, values | {"batch": as_json(ids)}).fetchone()[0])
