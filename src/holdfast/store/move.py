"""Copy everything from one database to another: large payloads, and rows in chunks, which are compared first.

Chunks that are equal on both sides are skipped, so copying again after an interruption continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ..errors import BlobMissing, CannotMove
from .blobs import CheckedBlobs
from .database import MOVED, Connection, SharedDatabase
from .statements import as_json

CHUNK = 2000  # rows
ALL_VERBS: tuple[str, ...] = ("INSERT", "UPDATE", "DELETE")
REFUSED = dict.fromkeys(("jobs", "schedules", "queues", "batches", "operations"), ALL_VERBS)
REFUSED["workers"] = ("INSERT",)  # so that none starts; those that stop say so
T = TypeVar("T")
Rows = Callable[[str, Sequence[Any]], list[Any]]


class Moving(Protocol):
    """The steps of a move that differ between SQLite and PostgreSQL."""

    place: str
    """Where the database is, without a password."""

    def columns(self, connection: Connection, table: str, /) -> list[str]: ...

    def rows(self, connection: Connection, statement: str, values: Sequence[Any], /) -> list[Any]:
        """Read rows as they are. Raises CannotMove if a text is not UTF-8: it would arrive as another one."""
        ...

    def lock(self, connection: Connection, /) -> None:
        """Keep all other connections from writing until the transaction ends."""
        ...

    def without_triggers(self, connection: Connection, table: str, /) -> AbstractContextManager[None]: ...

    def refuse_writes(self, connection: Connection, message: str, /) -> None:
        """Make the writes in REFUSED fail with this message, also by plain SQL."""
        ...

    def accept_writes(self, connection: Connection, /) -> None: ...

    def highest_ids(self, connection: Connection, /) -> dict[str, int]:
        """Return the highest id that was ever given out, by table."""
        ...

    def continue_ids(self, connection: Connection, highest: dict[str, int], /) -> None: ...

    def require_later_events(self, connection: Connection, last: int, /) -> None:
        """Raise CannotMove if new events would stand before this one in the log."""
        ...


class Side:
    """The source or the destination of a move."""

    def __init__(self, database: SharedDatabase, moving: Moving, blobs: CheckedBlobs) -> None:
        self.database, self.moving, self.blobs = database, moving, blobs
        self._sql = database.sql

    @property
    def place(self) -> str:
        return f"{self.moving.place} ({self.database.tables})"

    def meta(self, name: str) -> str | None:
        rows = self.database.rows(self._sql.get_meta, (name,))
        return None if not rows else str(rows[0][0])

    def columns(self, table: str) -> list[str]:
        return self.database.read(lambda connection: self.moving.columns(connection, table))

    def is_empty(self) -> bool:
        return bool(self.database.rows(self._sql.is_empty)[0][0])

    def sizes(self) -> tuple[int, int]:
        """Return how many jobs and events there are."""
        ((jobs, events),) = self.database.rows(self._sql.sizes_of_tables)
        return jobs, events

    def count_running(self) -> int:
        return int(self.database.rows(self._sql.count_running)[0][0])

    def last_event(self, read: Rows | None = None) -> int:
        return int((read or self.rows)(self._sql.last_event_id, ())[0][0])

    def rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Read rows as they are, for the other side."""
        return self.database.read(lambda connection: self.moving.rows(connection, statement, values))

    def require_later_events(self, last: int) -> None:
        """Raise CannotMove if new events would stand before this one in the log."""
        self.database.read(lambda connection: self.moving.require_later_events(connection, last))

    def history(self) -> list[MovedTable]:
        """Return what is copied while the workers run: jobs that have ended, and the log until now."""
        job = int(self.database.rows(self._sql.last_job_id)[0][0])
        return [
            MovedTable("jobs", ("id",), f"{SETTLED} AND id <= {job:d}"),
            MovedTable("events", ("id",), f"id <= {self.last_event():d}"),
        ]

    def begin_filling(self, source: Side) -> None:
        """Mark a destination, so that it refuses jobs from other programs."""
        message = f"{MOVED}this database is being filled from {source.place}: wait until 'holdfast move' has ended"

        def work(connection: Any) -> None:
            connection.execute(self._sql.set_meta, ("moving_from", source.place))
            self.moving.refuse_writes(connection, message)

        self.database.run_in_this_thread(work)

    def end_filling(self) -> None:
        """Take the destination into service."""

        def work(connection: Any) -> None:
            self.moving.accept_writes(connection)
            connection.execute(self._sql.delete_meta, ("moving_from",))

        self.database.run_in_this_thread(work)

    def continue_ids(self, highest: dict[str, int]) -> None:
        self.database.run_in_this_thread(lambda connection: self.moving.continue_ids(connection, highest))

    def hand_over(self, destination: Side, actor: str, reason: str, copy: Callable[[Rows, dict[str, int]], T]) -> T:
        """Give back running jobs, copy, and refuse writes from then on, in one transaction.

        copy: called with a function that reads from the source, and with the highest ids that were given out. No
            other connection can write meanwhile.
        """
        message = f"{MOVED}this database was moved to {destination.place}: use that one"

        def work(connection: Any) -> T:
            self.moving.lock(connection)
            now = self.database.clock.now()
            detail = {"to": destination.place} | ({"reason": reason} if reason else {})
            connection.execute(self._sql.return_running, {"actor": actor, "now": now})
            event = {"now": now, "event": "moved", "actor": actor, "detail": as_json(detail)}
            connection.execute(self._sql.log_event, event)
            highest = self.moving.highest_ids(connection)
            result = copy(partial(self.moving.rows, connection), highest)
            connection.execute(self._sql.set_meta, ("moved_to", destination.place))
            self.moving.refuse_writes(connection, message)
            return result

        return self.database.run_in_this_thread(work)


class MovedTable(NamedTuple):
    name: str
    keys: tuple[str, ...]
    where: str = ""  # the rows that are moved


NOT_MOVED = ("boot_id", "blob_store", "recount", "moved_to", "moving_from")  # names in the table `meta`
TABLES = (
    MovedTable("jobs", ("id",)),
    MovedTable("events", ("id",)),
    MovedTable("tags", ("job_id", "tag")),
    MovedTable("blockers", ("job_id", "position")),
    MovedTable("batches", ("id",)),
    MovedTable("endings", ("id",)),
    MovedTable("tracebacks", ("fingerprint",)),
    MovedTable("fold", ("id",)),
    MovedTable("counts", ("queue", "task", "status")),
    MovedTable("minutes", ("minute", "queue", "task", "measure", "bucket")),
    MovedTable("rollups", ("minutes", "last", "queue", "task", "measure", "bucket")),
    MovedTable("totals", ("queue", "task", "measure", "bucket")),
    MovedTable("failures", ("error_code", "queue", "task", "fingerprint")),
    MovedTable("failure_minutes", ("minute", "error_code", "queue", "task", "fingerprint")),
    MovedTable("error_totals", ("error_code", "queue", "task")),
    MovedTable("zones", ("zone",)),
    MovedTable("queues", ("name",)),
    MovedTable("schedules", ("name",)),
    MovedTable("fires", ("id",)),
    MovedTable("operations", ("id",)),
    MovedTable("meta", ("name",), f"name NOT IN ({', '.join(repr(name) for name in NOT_MOVED)})"),
)
OF_PROCESSES = {"inode", "place", "slot"}
BLOCKED_SLOT = "CASE WHEN slot IS NOT NULL AND sealed_at IS NULL THEN -1 END AS slot"  # its process uses the source
# Only jobs that hold no key, so that no row violates the unique index while the source changes.
UNFINISHED_CHAIN = "continued = 1 AND chain_ended_at IS NULL AND key IS NOT NULL"
SETTLED = f"status IN ('succeeded', 'failed', 'cancelled') AND NOT ({UNFINISHED_CHAIN})"


class Copier:
    """Copies and compares tables."""

    def __init__(self, source: Side, destination: Side, tick: Callable[[int], None]) -> None:
        """tick: called between two chunks with the rows of the one before."""
        self._source, self._destination, self._tick = source, destination, tick
        self._columns: dict[str, list[str]] = {}

    def copy(self, table: MovedTable, read: Rows, *, compare: bool = False) -> int:
        """Make the rows of a table equal, and return how many there are. read: reads from the source.

        compare: raise CannotMove if rows still differ after they were written. The chunks cover all keys, so rows
        that only the destination has are found, too.
        """
        total, select = 0, self._select(self._source, table)
        for after, upto, rows in _chunks(table, select, read):
            there = self._there(table, after, upto)
            if _plain(rows) != _plain(there):
                write = partial(self._write, table=table, rows=rows, there=there)
                self._destination.database.run_in_this_thread(write)
                if compare and _plain(rows) != _plain(there := self._there(table, after, upto)):
                    raise _differs(table, len(rows), len(there))
            total += len(rows)
            self._tick(len(rows))
        return total

    def require_count(self, table: MovedTable, count: int) -> None:
        """Raise CannotMove unless the destination has so many rows, after all tables were copied."""
        query = self._select(self._destination, table).partition(" FROM ")[2]
        ((found,),) = self._destination.database.rows(f"SELECT count(*) FROM {query}")  # noqa: S608
        if found != count:
            raise _differs(table, count, found)

    def _there(self, table: MovedTable, after: Any, upto: Any) -> list[Any]:
        """Return the rows of the destination in this range, in the order of the source."""
        bounds, values = _range(table, after, upto)
        own = "" if table.name != "meta" else f"{table.where} AND "
        select = self._select(self._destination, table._replace(where=""))
        found = self._destination.database.rows(f"{select} WHERE {own}{bounds}", values)
        return sorted(found, key=lambda row: _key(row, len(table.keys)))

    def copy_blobs(self, read: Rows) -> None:
        """Copy the large payloads and results that are not there yet."""
        blobs, there, prefix = self._source.blobs, self._destination.blobs, self._source.database.tables
        for column in ("args_blob", "result_blob"):
            after = ""
            query = f"SELECT DISTINCT {column} FROM {prefix}jobs WHERE {column} > ? ORDER BY {column} LIMIT 100"  # noqa: S608
            while names := [row[0] for row in read(query, (after,))]:
                after = names[-1]
                for name in names:
                    if not there.has(name):
                        try:
                            there.put(blobs.get(name))
                        except BlobMissing:  # then it is missing on both sides, and the doctor reports it
                            continue
                        self._tick(0)
                self._note_blob_kind()

    def _note_blob_kind(self) -> None:
        database = self._destination.database
        database.change(database.sql.store_blob_kind, (self._destination.blobs.kind,), durable=True)

    def forget_unsettled(self) -> None:
        """Delete what an interrupted move has copied and what may have changed since."""
        database, moving = self._destination.database, self._destination.moving

        def work(connection: Any) -> None:
            with moving.without_triggers(connection, "jobs"):
                connection.execute(f"DELETE FROM {database.tables}jobs WHERE NOT ({SETTLED})")  # noqa: S608

        database.run_in_this_thread(work)

    # --- parts ---

    def _select(self, side: Side, table: MovedTable) -> str:
        names = self.columns(table)
        chosen = [BLOCKED_SLOT if table.name == "batches" and name == "slot" else name for name in names]
        where = f" WHERE {table.where}" if table.where else ""
        return f"SELECT {', '.join(chosen)} FROM {side.database.tables}{table.name}{where}"  # noqa: S608

    def columns(self, table: MovedTable) -> list[str]:
        """Return the columns that both sides have, the keys first."""
        if table.name not in self._columns:
            here = self._source.columns(table.name)
            there = self._destination.columns(table.name)
            own = OF_PROCESSES - {"slot"} if table.name == "batches" else OF_PROCESSES
            left_out = own if table.name in ("batches", "workers", "upkeep") else set[str]()
            if missing := set(here) - set(there) - left_out:
                raise CannotMove(
                    f"the destination has no {table.name}.{min(missing)}: migrate both databases to one version"
                )
            rest = [name for name in here if name in there and name not in left_out and name not in table.keys]
            self._columns[table.name] = [*table.keys, *rest]
        return self._columns[table.name]

    def _write(self, connection: Any, table: MovedTable, rows: list[Any], there: list[Any]) -> None:
        names, keys, tables = self.columns(table), table.keys, self._destination.database.tables
        name, many = f"{tables}{table.name}", len(keys)
        wanted = {tuple(row[:many]): row for row in rows}
        gone = [tuple(row[:many]) for row in there if tuple(row[:many]) not in wanted]
        known = {tuple(row[:many]): tuple(row) for row in there}
        changed = [tuple(row) for key, row in wanted.items() if known.get(key) != tuple(row)]
        updates = ", ".join(f"{one} = excluded.{one}" for one in names if one not in keys)
        action = f"DO UPDATE SET {updates}" if updates else "DO NOTHING"
        with self._destination.moving.without_triggers(connection, table.name):
            if gone:
                connection.executemany(f"DELETE FROM {name} WHERE {' AND '.join(f'{key} = ?' for key in keys)}", gone)  # noqa: S608
            if changed:
                connection.executemany(
                    f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "  # noqa: S608
                    f"ON CONFLICT ({', '.join(keys)}) {action}",
                    changed,
                )


def _differs(table: MovedTable, here: int, there: int) -> CannotMove:
    return CannotMove(
        f"{table.name} differs after copying ({here:,} rows here, {there:,} there): the source stays in service. "
        "Does another program write to the destination? Move again"
    )


def _chunks(table: MovedTable, select: str, read: Rows) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield rows in the order of their keys, with the keys before the first and of the last; None: no bound."""
    many, keys, after = len(table.keys), ", ".join(table.keys), None
    begins = " AND " if table.where else " WHERE "
    while True:
        bounds, values = _range(table, after, None)
        found = read(f"{select}{begins}{bounds} ORDER BY {keys} LIMIT {CHUNK}", values)
        is_last = len(found) < CHUNK
        upto = None if is_last else tuple(found[-1][:many])
        yield after, upto, found
        if is_last:
            return
        after = upto


def _range(table: MovedTable, after: Any, upto: Any) -> tuple[str, list[Any]]:
    keys, marks = ", ".join(table.keys), ", ".join("?" * len(table.keys))
    conditions, values = ["1 = 1"], list[Any]()
    if after is not None:
        conditions.append(f"({keys}) > ({marks})")
        values += after
    if upto is not None:
        conditions.append(f"({keys}) <= ({marks})")
        values += upto
    return " AND ".join(conditions), values


def _key(row: Any, many: int) -> tuple[Any, ...]:
    """Return the key as both databases order it: text by its bytes."""
    return tuple(one.encode(errors="surrogatepass") if isinstance(one, str) else one for one in row[:many])


def _plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(int(one) if isinstance(one, bool) else one for one in row) for row in rows]
