"""Numbered migrations, each applied in one transaction and recorded by name and time."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from ...clock import Clock, SystemClock
from ...errors import MigrationFailed, SchemaOutdated, SchemaTooNew, SchemaUnsupported
from ...model.diagnosis import Schema, SchemaDifference
from ..statements import Statements, with_prefix
from .engine.errors import Patience, is_busy

DEFAULT_PREFIX = "holdfast_"
FOLDER = Path(__file__).parent / "migrations"
UNRELEASED = "0001_initial"  # the first migration of the versions before the first release

# The wall clock in microseconds; SQLite before 3.42 gives no more than milliseconds.
NOW = "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)"


class Migrations:
    def __init__(self, connection: sqlite3.Connection, prefix: str, folder: Path | None = None) -> None:
        self._connection, self._prefix = connection, prefix
        self._known = {file.stem: file for file in sorted((folder or FOLDER).glob("[0-9]*.sql"))}

    def require_current(self) -> None:
        """Raise unless the tables are exactly those of this version."""
        pending = self.pending()
        if pending:
            raise SchemaOutdated(
                f"found {len(self._known) - len(pending)} migrations, need {len(self._known)}: "
                f"run '{self._command()}', or open it once with migrate=True, which is the default"
            )

    def _command(self) -> str:
        """What an operator types to migrate this very database."""
        from shlex import quote

        path = self._connection.execute("PRAGMA database_list").fetchone()[2]
        prefix = "" if self._prefix == DEFAULT_PREFIX else f" --prefix {self._prefix}"
        return f"holdfast migrate --db {quote(path)}{prefix}"

    def pending(self) -> list[str]:
        applied = self.applied()
        if UNRELEASED in applied:
            raise SchemaUnsupported(
                f"the tables {self._prefix}… were made by a development version of Holdfast and cannot be migrated: "
                "move the database file away and start with a new one, or pass another prefix="
            )
        unknown = sorted(applied - self._known.keys())
        if unknown:
            raise SchemaTooNew(
                f"this database was migrated by a newer Holdfast ({', '.join(unknown)}): "
                "upgrade this one with 'pip install --upgrade holdfast'"
            )
        return [name for name in self._known if name not in applied]

    def apply(self, clock: Clock, patience: Patience) -> list[str]:
        """Apply what is missing. Two processes may do so at once: the second finds nothing left to do."""
        done: list[str] = []
        while patience.run(self.pending):
            patience.run(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                pending = self.pending()  # once more, now that nobody else can change it
                if pending:
                    self._apply_one(pending[0], clock.now())
                    done.append(pending[0])
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        return done

    def _apply_one(self, name: str, now: int) -> None:
        try:
            for statement in _statements(self._known[name].read_text(encoding="utf-8")):
                self._connection.execute(with_prefix(statement, self._prefix).replace("{now}", NOW))
            self._connection.execute(self._record_table())
            self._connection.execute(
                f"INSERT INTO {self._prefix}migrations (name, applied_at) VALUES (?, ?)",  # noqa: S608
                (name, now),
            )
        except sqlite3.Error as error:
            if is_busy(error):
                raise
            raise MigrationFailed(
                f"migration {name} failed and was undone ({error}): the database is as it was"
            ) from error

    def _record_table(self) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {self._prefix}migrations "
            "(name TEXT PRIMARY KEY, applied_at INTEGER NOT NULL) WITHOUT ROWID"
        )

    def known(self) -> list[str]:
        return list(self._known)

    def applied(self) -> set[str]:
        table = f"{self._prefix}migrations"
        found = self._connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchall()
        if not found:
            return set()
        try:
            return {row[0] for row in self._connection.execute(f"SELECT name FROM {table}").fetchall()}  # noqa: S608
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise
            raise MigrationFailed(
                f"the table {table} is not Holdfast's ({error}): pass another prefix, such as prefix='jobs_'"
            ) from error


def _statements(script: str) -> Iterator[str]:
    """Split a script where SQLite says a statement is complete: a trigger's inner semicolons are not."""
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(part):
            yield part
            part = ""
    if with_prefix(part, ""):
        yield part


_COMMENT = re.compile(r"--[^\n]*")


class SchemaPart(NamedTuple):
    kind: str
    table: str
    sql: str


def compare(connection: sqlite3.Connection, sql: Statements, prefix: str) -> Schema:
    migrations = Migrations(connection, prefix)
    found, known = migrations.applied(), migrations.known()
    pending = [name for name in known if name not in found]
    unknown = sorted(found - set(known))
    as_one = not pending and not unknown
    drift = drift_from(expected(sql, prefix), _parts(connection, sql, prefix), prefix) if as_one else []
    others = [] if found else [row[0] for row in connection.execute(sql.prefixes).fetchall()]
    return Schema(sorted(found), pending, unknown, drift, others, UNRELEASED in found)


def expected(sql: Statements, prefix: str) -> dict[str, SchemaPart]:
    """What the migrations make of an empty database."""
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    try:
        Migrations(fresh, prefix).apply(SystemClock(), Patience(Random(), 0))
        return _parts(fresh, sql, prefix)
    finally:
        fresh.close()


def drift_from(wanted: dict[str, SchemaPart], there: dict[str, SchemaPart], prefix: str) -> list[SchemaDifference]:
    missing = [
        SchemaDifference("missing", part.kind, name, part.table) for name, part in wanted.items() if name not in there
    ]
    changed = [
        SchemaDifference("changed", part.kind, name, part.table)
        for name, part in wanted.items()
        if name in there and _plain(there[name].sql) != _plain(part.sql)
    ]
    tables = {part.table for part in wanted.values()}
    others = _other_prefixes(there, prefix)
    extra = [
        SchemaDifference("extra", part.kind, name, part.table)
        for name, part in there.items()
        if name not in wanted and (part.table in tables or not part.table.startswith(others))
    ]
    return [*missing, *changed, *extra]


def _parts(connection: sqlite3.Connection, sql: Statements, prefix: str) -> dict[str, SchemaPart]:
    rows = connection.execute(sql.schema_objects, {"prefix": prefix}).fetchall()
    return {name: SchemaPart(kind, table, text) for kind, name, table, text in rows}


def _other_prefixes(there: dict[str, SchemaPart], prefix: str) -> tuple[str, ...]:
    """Of other sets of Holdfast's tables in the same file, whose prefixes begin with this one."""
    ends = f"{prefix}migrations"
    return tuple(name.removesuffix("migrations") for name in there if name.endswith("migrations") and name != ends)


def _plain(sql: str) -> str:
    """Without comments, and spaces as they come."""
    return " ".join(_COMMENT.sub("", sql).replace('"', "").split()).replace("( ", "(").replace(" )", ")")
