"""List and count jobs by filters, in the order of ids, in bounded time for any content of the tables.

If most jobs match, a short scan by id fills the page. Otherwise the planner chooses an index: see listing_plan.py. If
no index helps, a longer scan by id follows, up to a bound. The result then says how far the search went, and the next
call continues there.
"""

import builtins
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..model.job import Counted, Criteria, Cursor, JobRecord, Listed, Status
from ..model.stats import Count
from . import listing_plan
from .database import Connection, Result, SharedDatabase
from .listing_plan import AccessPath, IdRange, JobIndexes, ListPlanner
from .read import job_columns
from .statements import Statements, as_json, record
from .statistics import ZONE_IDS, Statistics

SHORT_SCAN = 1_000  # jobs, before an index is chosen
LONG_SCAN = 20_000  # jobs, if no index helps
MAX_LOOKUPS = 5_000  # jobs that an index yields, each looked up by id
STEP = 20_000  # jobs in one read, to find all that match
CACHED_JOBS = 400  # that are looked at twice: their pages fit into the cache of a reading connection
MAX_SORTED_IN_STEPS = 200_000  # as listing_plan.MAX_SORTED, to find all that match
MAX_PARTS = 4  # ranges of ids that are searched one after the other

_FIELDS = ("queue", "task", "key", "error_code", "fingerprint", "batch_id")
_RANGES = {
    "created_from": "created_at >= :created_from",
    "created_before": "created_at < :created_before",
    "finished_from": "finished_at >= :finished_from",
    "finished_before": "finished_at < :finished_before",
}


def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether a text matches a pattern in which `*` is any text.

    Each part is searched for once, from the left, so a pattern of many `*` takes no longer. A regular expression
    would try all ways to split the text.
    """
    first, *between = pattern.split("*")
    if not between:
        return text == pattern
    last = between.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in between:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def where(criteria: Criteria, db: SharedDatabase) -> tuple[str, dict[str, Any]]:
    clauses, values = ["true"], dict[str, Any]()
    listed = db.dialect.listed
    if criteria.status:
        # Literals, not bound values: SQLite uses a partial index only if it can see that the condition holds.
        names = ", ".join(f"'{Status(status).value}'" for status in criteria.status)
        clauses.append(f"status = {names}" if len(criteria.status) == 1 else f"status IN ({names})")
    for field in _FIELDS:
        wanted, options = getattr(criteria, field), list[str]()
        if len(wanted) == 1:
            options.append(f"{field} = :{field}")
            values[field] = wanted[0]
        elif wanted:
            options.append(f"{field} IN ({listed(field, 'integer' if field == 'batch_id' else 'text')})")
            values[field] = as_json(wanted)
        for number, (_, pattern) in enumerate(one for one in criteria.like if one[0] == field):
            options.append(db.dialect.like(field, f"{field}_like_{number}"))
            values[f"{field}_like_{number}"] = db.dialect.pattern(pattern)
        if options:
            clauses.append(options[0] if len(options) == 1 else f"({' OR '.join(options)})")
    for number, (path, pattern) in enumerate(criteria.args):
        clauses.append(db.dialect.like(db.dialect.argument(f"args_path_{number}"), f"args_value_{number}"))
        values[f"args_path_{number}"] = db.dialect.path(path.split("."))
        values[f"args_value_{number}"] = db.dialect.pattern(pattern)
    if criteria.tag:
        # A lookup for each job: a list of ids would have to be built completely first.
        clauses.append(
            f"EXISTS (SELECT 1 FROM {db.tables}tags WHERE job_id = id AND tag IN ({listed('tag', 'text')}))"  # noqa: S608
        )
        values["tag"] = as_json(criteria.tag)
    for field, clause in _RANGES.items():
        if getattr(criteria, field) is not None:
            clauses.append(clause)
            values[field] = getattr(criteria, field)
    if criteria.ids is not None:
        clauses.append(f"id IN ({listed('ids', 'integer')})")
        values["ids"] = as_json(criteria.ids)
    if criteria.inbox:
        clauses.append("external = 1 AND status = 'blocked'")
    if criteria.roots:
        clauses.append("chain_id IS NULL")
    if criteria.chain_status:
        clauses.append(f"{_chain_status(db.tables)} IN ({listed('chain_status', 'text')})")
        values["chain_status"] = as_json(criteria.chain_status)
    if criteria.messages is not None:
        clauses.append("task IS NULL" if criteria.messages else "task IS NOT NULL")
    return " AND ".join(clauses), values


def _chain_status(prefix: str) -> str:
    """The status of a chain, by its first job: the status of its last job."""
    last = f"SELECT last.status FROM {prefix}jobs AS last WHERE last.chain_id = {prefix}jobs.id"  # noqa: S608
    return f"CASE WHEN continued = 1 THEN ({last} ORDER BY last.chain_index DESC LIMIT 1) ELSE status END"


class ScanStep(NamedTuple):
    """Some of the ids that match."""

    ids: list[int]
    scanned: int
    rest: IdRange | None  # what is left to scan, if anything


class Search:
    """One search: the ids found so far, in order, and how far it went."""

    def __init__(
        self,
        connection: Connection,
        sql: Statements,
        clause: str,
        values: dict[str, Any],
        span: IdRange,
        limit: int,
    ) -> None:
        self._connection, self._sql, self._clause, self._values = connection, sql, clause, values
        self._whole_span = self.span = span
        self.limit = limit
        self.found: list[int] = []
        self.scanned = 0
        self.is_complete = False
        """Whether all jobs of the span that could match were scanned."""

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
        """What is left of the whole search, not only of the current part."""
        if self._whole_span.ascending:
            return self._whole_span._replace(low=self.span.low)
        return self._whole_span._replace(high=self.span.high)

    def scan_by_id(self, max_jobs: int) -> None:
        """Scan jobs in the order of ids."""
        values = self.span.bounds | {"max_jobs": max_jobs}
        row = self._execute(self.span.fill(self._sql.scan_end), values).fetchone()
        end = self.span if row is None else self.span.up_to(row[0])
        values = self._values | end.bounds | {"limit": self._missing}
        statement = self.span.fill(self._filled(self._sql.scan_ids))
        self.found += [found for (found,) in self._execute(statement, values).fetchall()]
        self.scanned += max_jobs  # too many if there were fewer, but then the search is complete and this is not used
        self._advance(None if row is None else row[0])

    def follow(self, path: AccessPath, max_jobs: int, matching: bool = True) -> None:
        """Look up the jobs that an access path yields. matching: False takes all of them, without a look."""
        ids = path.ids(self._connection, self.span, self._missing)
        batch, left = self._missing, max_jobs
        while not self.is_done and left:
            size = min(batch, left)
            some = [*islice(ids, size)]
            if matching:
                self._add_matching(some)
            else:
                self.found += some
            self.scanned += len(some)
            self._advance(some[-1] if len(some) == size else None)
            left -= len(some)
            batch *= 4

    def _advance(self, reached: int | None) -> None:
        """Move the span beyond what was scanned. reached: the last id; None: there are no more."""
        self.is_complete = reached is None and not self.is_full
        if self.is_full:
            self.span = self.span.beyond(self.found[-1])
        elif reached is not None:
            self.span = self.span.beyond(reached)

    def _add_matching(self, ids: Sequence[int]) -> None:
        rows = self._execute(self._filled(self._sql.matching), self._values | {"batch": as_json(ids)}).fetchall()
        self.found += self.span.sort(found for (found,) in rows)[: self._missing]

    @property
    def _missing(self) -> int:
        return self.limit - len(self.found)

    def _filled(self, statement: str) -> str:
        return statement.replace("{where}", self._clause)

    def _execute(self, statement: str, values: dict[str, Any]) -> Result:
        return self._connection.execute(statement, values)


class Listing:
    """Lists and counts jobs."""

    def __init__(self, db: SharedDatabase, statistics: Statistics) -> None:
        self._db, self._sql, self._statistics = db, db.sql, statistics
        self._indexes = JobIndexes(db)

    # --- a page ---

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> Listed:
        span = IdRange() if cursor is None else IdRange(ascending=cursor.newer).beyond(cursor.id)

        def work(connection: Connection) -> Listed:
            search = self._search(connection, criteria, span, limit)
            named = self._named(connection, criteria)
            sources = connection, self._db, self._indexes
            planner = ListPlanner(*sources, named, listing_plan.MAX_SORTED, self._statistics)
            self._fill_page(connection, criteria, planner, search)
            records = self._records(connection, search.found)
            if search.is_done:
                return Listed(records)
            return Listed(records, search.scanned, search.span.low if span.ascending else search.span.high)

        return self._db.read_snapshot(work)

    def _fill_page(self, connection: Connection, criteria: Criteria, planner: ListPlanner, search: Search) -> None:
        """Search in stages; each continues where the one before stopped."""
        if not planner.is_selective:
            search.scan_by_id(max(SHORT_SCAN, 2 * search.limit))
        if search.is_done:
            return
        path = planner.path()
        search.is_complete = True
        for part in self._parts(connection, criteria, search.span):
            search.enter(part)
            if path is None:
                search.scan_by_id(LONG_SCAN)
            else:
                search.follow(path, MAX_LOOKUPS)
            if not search.is_complete:  # stopped early, or the page is full
                break
        if not search.is_done and not planner.asked_counts:
            path = planner.path_by_counts()
            if path is not None:
                search.enter(search.rest)
                search.follow(path, MAX_LOOKUPS)

    def _records(self, connection: Connection, ids: Sequence[int]) -> builtins.list[JobRecord]:
        statement = self._sql.records.replace("{columns}", job_columns(self._db.dialect))
        return [record(JobRecord, row) for row in connection.execute(statement, {"batch": as_json(ids)}).fetchall()]

    def _search(self, connection: Connection, criteria: Criteria, span: IdRange, limit: int) -> Search:
        clause, values = where(replace(criteria, ids=None), self._db)
        return Search(connection, self._sql, clause, values, span, limit)

    def _parts(self, connection: Connection, criteria: Criteria, span: IdRange) -> builtins.list[IdRange]:
        """Return the parts of the span that may have such jobs, by the zones: see docs/internals/listing.md."""
        times, statuses = (criteria.created_from, criteria.created_before), set(criteria.status)
        only_finished = bool(statuses) and statuses <= {Status.SUCCEEDED, Status.CANCELLED}
        if times == (None, None) and not only_finished:
            return [span]
        zones = self._statistics.zones(connection)
        if (
            zones is None
            or self._indexes.without_history.size(connection, listing_plan.MAX_SORTED + 1) > listing_plan.MAX_SORTED
        ):
            return [span]
        rows = connection.execute(self._sql.zones_without_history, {"ids": ZONE_IDS}).fetchall()
        matching = {row[0] for row in rows}
        for zone in zones:
            if zone.has(*times) and (not only_finished or any(getattr(zone, status) for status in statuses)):
                matching.add(zone.zone)
        return span.in_zones(matching, ZONE_IDS, MAX_PARTS)

    def _named(self, connection: Connection, criteria: Criteria) -> Criteria:
        """Replace patterns by the names that match them, for the planner."""
        if not criteria.like:
            return criteria
        wanted = replace(criteria, like=())
        counts: Sequence[Count] | None = None
        for field in dict.fromkeys(name for name, _ in criteria.like):
            known: Sequence[str | None] | None
            if field == "error_code":
                known = listing_plan.error_codes(connection, self._sql)
            else:
                if counts is None and self._statistics.position(connection).unfolded <= listing_plan.MAX_UNFOLDED:
                    counts = self._statistics.counts(connection)
                known = None if counts is None else [getattr(one, field) for one in counts]
            if known is None:  # too many: no index of this field helps
                wanted = replace(wanted, **{field: ()})
                continue
            patterns = [pattern for name, pattern in criteria.like if name == field]
            found = {one for one in known if one is not None and any(matches_pattern(one, each) for each in patterns)}
            names = (*getattr(criteria, field), *sorted(found))
            wanted = replace(wanted, **{field: names}) if names else replace(wanted, ids=())
        return wanted

    # --- all of them, in steps ---

    def steps(self, criteria: Criteria, matching: bool = True) -> Iterator[ScanStep]:
        """Find all ids that match, oldest first, among the jobs that exist at the start, in short reads.

        matching: False may yield others as well, for a caller that looks at each job itself.
        """
        span, path = self._db.read_snapshot(partial(self._begin, criteria=criteria))
        while True:
            step = self._db.read_snapshot(
                partial(self._step, criteria=criteria, path=path, span=span, matching=matching)
            )
            yield step
            if step.rest is None:
                return
            span = step.rest

    def ids_after(self, criteria: Criteria, after: int, until: int) -> tuple[builtins.list[int], int]:
        """Return some ids that match, oldest first, and up to which id all were found."""

        def work(connection: Connection) -> ScanStep:
            _, path = self._begin(connection, criteria)
            return self._step(connection, criteria, path, IdRange(after, until + 1, ascending=True))

        step = self._db.read_snapshot(work)
        return step.ids, until if step.rest is None else step.rest.low

    def _begin(self, connection: Connection, criteria: Criteria) -> tuple[IdRange, AccessPath | None]:
        (last,) = connection.execute(self._sql.last_job).fetchone()
        named = self._named(connection, criteria)
        planner = ListPlanner(connection, self._db, self._indexes, named, MAX_SORTED_IN_STEPS)
        return IdRange(ascending=True, high=last + 1), planner.path()

    def _step(
        self,
        connection: Connection,
        criteria: Criteria,
        path: AccessPath | None,
        span: IdRange,
        matching: bool = True,
    ) -> ScanStep:
        parts = self._parts(connection, criteria, span)
        if not parts:
            return ScanStep([], 0, None)
        search = self._search(connection, criteria, span, STEP)
        search.enter(parts[0])
        if path is None:
            search.scan_by_id(LONG_SCAN)
        else:
            search.follow(path, STEP, matching)
        if not search.is_complete:
            return ScanStep(search.found, search.scanned, search.rest)
        rest = span._replace(low=parts[0].high - 1) if len(parts) > 1 else None
        return ScanStep(search.found, search.scanned, rest)

    # --- counts ---

    def count(self, criteria: Criteria, deletable: bool = False, max_scanned: int | None = None) -> Counted:
        counted = self._count_by_statistics(criteria, deletable)
        if counted is not None:
            return Counted(counted)
        count = scanned = 0
        for step in self.steps(criteria, matching=not deletable):
            if deletable and step.ids:
                count += self._db.read(partial(self._deletable, criteria=criteria, ids=step.ids))
            else:
                count += len(step.ids)
            scanned += step.scanned
            if max_scanned is not None and scanned >= max_scanned and step.rest is not None:
                return Counted(count, is_complete=False)
        return Counted(count)

    def _count_by_statistics(self, criteria: Criteria, deletable: bool) -> int | None:
        """Count with the statistics. None: there are filters other than queue, task and status, or many jobs without
        history."""
        statuses = tuple(one for one in criteria.status or Status if not deletable or one != Status.RUNNING)
        if not statuses:
            return 0
        wanted = Criteria(status=statuses, queue=criteria.queue, task=criteria.task, messages=criteria.messages)
        if replace(criteria, status=statuses) != wanted:
            return None

        def work(connection: Connection) -> int | None:
            queue = wanted.queue[0] if len(wanted.queue) == 1 else None
            counts = [
                one.count for one in self._statistics.counts(connection, queue) if listing_plan.matches(wanted, one)
            ]
            known = [count for count in counts if count is not None]
            linked = self._linked(connection, wanted) if deletable else []
            if len(known) < len(counts) or linked is None:
                return None
            return sum(known) - len(linked) + (self._deletable(connection, wanted, linked) if linked else 0)

        return self._statistics.read(work)

    def _linked(self, connection: Connection, criteria: Criteria) -> builtins.list[int] | None:
        """Return the matching jobs that are part of a chain or that others wait for. None: there are too many."""
        bound = {"bound": listing_plan.SMALL + 1}
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
        clause, values = where(criteria, self._db)
        statement = self._sql.matching.replace("{where}", clause)
        return [row[0] for row in connection.execute(statement, values | {"batch": as_json(sorted(ids))}).fetchall()]

    def _deletable(self, connection: Connection, criteria: Criteria, ids: Sequence[int]) -> int:
        clause, values = where(criteria, self._db)
        statement = self._sql.count_deletable.replace("{where}", clause)
        batches = (ids[start : start + CACHED_JOBS] for start in range(0, len(ids), CACHED_JOBS))
        return sum(connection.execute(statement, values | {"batch": as_json(one)}).fetchone()[0] for one in batches)
