"""Apply numbered migrations, each in one transaction, and compare the schema with what they create."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from ...clock import Clock, SystemClock
from ...errors import MigrationFailed, SchemaOutdated, SchemaTooNew, SchemaUnsupported
from ...model.diagnosis import Schema, SchemaDifference
from ...text import clean
from ..statements import Statements, text, with_prefix
from .engine.errors import BusyRetry, is_busy

DEFAULT_PREFIX = "holdfast_"
FOLDER = Path(__file__).parent / "migrations"
UNRELEASED = "0001_initial"  # the first migration of the versions before the first release
_COMMENT = re.compile(r"--[^\n]*")
# The wall clock in microseconds. SQLite before 3.42 has a resolution of milliseconds.
NOW = "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)"


class Migrations:
    """The migrations of one set of tables."""

    def __init__(self, connection: sqlite3.Connection, prefix: str, folder: Path | None = None) -> None:
        self._connection, self._prefix = connection, prefix
        self._known = {file.stem: file for file in sorted((folder or FOLDER).glob("[0-9]*.sql"))}

    def require_current(self) -> None:
        """Raise unless all migrations of this version are applied."""
        pending = self.pending()
        if pending:
            raise SchemaOutdated(
                f"found {len(self._known) - len(pending)} migrations, need {len(self._known)}: "
                f"run '{self._command()}', or open the database once with migrate=True, which is the default"
            )

    def _command(self) -> str:
        """Return the command that migrates this database."""
        from shlex import quote

        path = self._connection.execute("PRAGMA database_list").fetchone()[2]
        prefix = "" if self._prefix == DEFAULT_PREFIX else f" --prefix {self._prefix}"
        return f"holdfast migrate --db {quote(path)}{prefix}"

    def pending(self) -> list[str]:
        applied = self.applied()
        if UNRELEASED in applied:
            raise SchemaUnsupported(
                f"the tables {self._prefix}… were created by a development version of Holdfast and cannot be "
                "migrated: move the database file away and start with a new one, or pass another prefix="
            )
        unknown = sorted(applied - self._known.keys())
        if unknown:
            raise SchemaTooNew(
                f"this database was migrated by a newer Holdfast ({', '.join(unknown)}): "
                "upgrade with 'pip install --upgrade holdfast'"
            )
        return [name for name in self._known if name not in applied]

    def apply(self, clock: Clock, busy_retry: BusyRetry) -> list[str]:
        """Apply pending migrations. Returns their names. Safe if several processes do so at the same time."""
        done: list[str] = []
        while busy_retry.run(self.pending):
            busy_retry.run(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                pending = self.pending()  # again, now with the write lock
                if pending:
                    self._apply_one(pending[0], clock.now())
                    done.append(pending[0])
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        return done

    def apply_here(self, now: int) -> list[str]:
        """Apply pending migrations in the open transaction. Returns the statements that drop what they created."""
        before = set(self._drop_statements())
        for name in self.pending():
            self._apply_one(name, now)
        return [statement for statement in self._drop_statements() if statement not in before]

    def _drop_statements(self) -> list[str]:
        """Return a statement for each table and view, those that were created last first."""
        rows = self._connection.execute(
            "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' "
            "ORDER BY rowid DESC"
        ).fetchall()
        return [f'DROP {kind} "{name}"' for kind, name in rows]

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
                f"migration {name} failed and was rolled back ({error}): the database is unchanged"
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
            rows = self._connection.execute(f"SELECT name FROM {table}").fetchall()  # noqa: S608
            return {clean(text(name)) for (name,) in rows}
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise
            raise MigrationFailed(
                f"the table {table} is not Holdfast's ({error}): pass another prefix, such as prefix='jobs_'"
            ) from error


def _statements(script: str) -> Iterator[str]:
    """Split a script into complete statements. Semicolons inside a trigger do not end a statement."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if with_prefix(statement, ""):
        yield statement


class SchemaObject(NamedTuple):
    """A table, index or trigger."""

    kind: str
    table: str
    sql: str


def compare(connection: sqlite3.Connection, sql: Statements, prefix: str) -> Schema:
    """Compare the schema of a database with this version's."""
    migrations = Migrations(connection, prefix)
    applied, known = migrations.applied(), migrations.known()
    pending = [name for name in known if name not in applied]
    unknown = sorted(applied - set(known))
    is_current = not pending and not unknown
    drift = drift_from(expected(sql, prefix), _objects(connection, sql, prefix), prefix) if is_current else []
    others = [] if applied else [row[0] for row in connection.execute(sql.prefixes).fetchall()]
    return Schema(sorted(applied), pending, unknown, drift, others, UNRELEASED in applied)


def expected(sql: Statements, prefix: str) -> dict[str, SchemaObject]:
    """Return the schema that the migrations create in an empty database."""
    empty = sqlite3.connect(":memory:", isolation_level=None)
    try:
        Migrations(empty, prefix).apply(SystemClock(), BusyRetry(Random(), 0))
        return _objects(empty, sql, prefix)
    finally:
        empty.close()


def drift_from(
    wanted: dict[str, SchemaObject], found: dict[str, SchemaObject], prefix: str
) -> list[SchemaDifference]:
    """List the missing, changed and additional objects."""
    missing = [
        SchemaDifference("missing", one.kind, name, one.table) for name, one in wanted.items() if name not in found
    ]
    changed = [
        SchemaDifference("changed", one.kind, name, one.table)
        for name, one in wanted.items()
        if name in found and _normalized(found[name].sql) != _normalized(one.sql)
    ]
    tables = {one.table for one in wanted.values()}
    others = _other_prefixes(found, prefix)
    extra = [
        SchemaDifference("extra", one.kind, name, one.table)
        for name, one in found.items()
        if name not in wanted
        and (one.table in tables or not one.table.startswith(others))
        and not name.startswith(f"{prefix}moved")  # triggers that refuse writes after a move
    ]
    return [*missing, *changed, *extra]


def _objects(connection: sqlite3.Connection, sql: Statements, prefix: str) -> dict[str, SchemaObject]:
    rows = connection.execute(sql.schema_objects, {"prefix": prefix}).fetchall()
    return {name: SchemaObject(kind, table, text) for kind, name, table, text in rows}


def _other_prefixes(found: dict[str, SchemaObject], prefix: str) -> tuple[str, ...]:
    """Return the prefixes of other sets of Holdfast's tables in the same file that begin with this prefix."""
    own = f"{prefix}migrations"
    return tuple(name.removesuffix("migrations") for name in found if name.endswith("migrations") and name != own)


def _normalized(sql: str) -> str:
    """Strip comments and normalize spaces."""
    return " ".join(_COMMENT.sub("", sql).replace('"', "").split()).replace("( ", "(").replace(" )", ")")
