"""Apply numbered migrations, each in one transaction, and compare the schema with what they create."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from ...clock import Clock
from ...errors import InvalidInput, MigrationFailed, SchemaOutdated, SchemaTooNew
from ...model.diagnosis import Schema, SchemaDifference
from ..statements import Statements, with_prefix
from .connection import rollback
from .dialect import Driver, Handle
from .errors import is_lost

FOLDER = Path(__file__).parent / "migrations"
NOW = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
LOCK_NUMBER = 2  # of the advisory lock
PARTS_TO_CREATE = ("function", "view", "index", "trigger")  # in this order; the others hold rows
_TEMPORARY = re.compile(r"\bpg_temp(_\d+)?\.")


class Names:
    """The schema and the prefix of the tables, and what is named after them."""

    def __init__(self, schema: str, prefix: str, channel: str | None = None) -> None:
        self.schema, self.prefix = schema, prefix
        self.tables = f"{schema}.{prefix}"
        self.channel = channel or f"{schema}.{prefix}"  # at most 63 bytes
        self.given = {"schema": schema, "prefix": prefix}

    def fill(self, text: str) -> str:
        text = with_prefix(text, self.tables)
        return text.replace("{n}", self.prefix).replace("{now}", NOW).replace("{channel}", self.channel)


class PostgresMigrations:
    """The migrations of one set of tables."""

    def __init__(self, driver: Driver, names: Names, lock_class: int) -> None:
        self._driver, self._names, self._class = driver, names, lock_class
        self._known = {file.stem: file for file in sorted(FOLDER.glob("[0-9]*.sql"))}

    def require_current(self) -> None:
        pending = self.pending()
        if pending:
            raise SchemaOutdated(
                f"found {len(self._known) - len(pending)} migrations, need {len(self._known)}: open the database "
                "once with migrate=True, which is the default"
            )

    def pending(self) -> list[str]:
        applied = self.applied()
        unknown = sorted(applied - self._known.keys())
        if unknown:
            raise SchemaTooNew(
                f"this database was migrated by a newer Holdfast ({', '.join(unknown)}): "
                "upgrade with 'pip install --upgrade holdfast'"
            )
        return [name for name in self._known if name not in applied]

    def known(self) -> list[str]:
        return list(self._known)

    def create_all(self) -> None:
        """Create what all migrations create, in an open transaction, without a record of it."""
        for file in self._known.values():
            self._driver.execute(self._names.fill(file.read_text(encoding="utf-8")))

    def applied(self) -> set[str]:
        table = f"{self._names.tables}migrations"
        (found,) = self._driver.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone() or (False,)
        if not found:
            return set()
        return {row[0] for row in self._driver.execute(f"SELECT name FROM {table}").fetchall()}  # noqa: S608

    def apply(self, clock: Clock) -> list[str]:
        """Apply pending migrations. Returns their names. Processes that do so at the same time take turns."""
        if not self.pending():
            return []
        done: list[str] = []
        try:
            self._driver.execute("BEGIN")
            self._driver.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", (self._class, LOCK_NUMBER))
            for name in self.pending():  # again, now with the lock
                self._apply_one(name, clock.now())
                done.append(name)
            self._driver.execute("COMMIT")
        finally:
            rollback(self._driver)
        return done

    def _apply_one(self, name: str, now: int) -> None:
        table = f"{self._names.tables}migrations"
        try:
            if self._names.schema != "public":
                self._driver.execute(f"CREATE SCHEMA IF NOT EXISTS {self._names.schema}")
            self._driver.execute(self._names.fill(self._known[name].read_text(encoding="utf-8")))
            self._driver.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (name text PRIMARY KEY, applied_at bigint NOT NULL)"
            )
            self._driver.execute(f"INSERT INTO {table} (name, applied_at) VALUES (%s, %s)", (name, now))  # noqa: S608
        except (psycopg.errors.SerializationFailure, psycopg.errors.InsufficientPrivilege):
            raise
        except psycopg.Error as error:
            if is_lost(error, self._driver):
                raise
            told = str(error).strip().splitlines()[0]
            if isinstance(error, psycopg.errors.SyntaxError):
                raise InvalidInput(
                    f"schema={self._names.schema!r} cannot be used, since it is a word of SQL ({told}): pass another"
                ) from error
            raise MigrationFailed(
                f"migration {name} failed and was rolled back ({told}): the database is unchanged. If a table of "
                "that name is not Holdfast's, pass another prefix="
            ) from error


# --- drift ---


class Definition(NamedTuple):
    kind: str
    table: str
    sql: str


def compare(driver: Driver, sql: Statements, names: Names) -> Schema:
    """Compare with this version's schema, in an open transaction that is to be rolled back."""
    handle = Handle(driver)
    migrations = PostgresMigrations(driver, names, 0)
    applied, known = migrations.applied(), migrations.known()
    pending = [name for name in known if name not in applied]
    unknown = sorted(applied - set(known))
    others = [] if applied else [row[0] for row in handle.execute(sql.prefixes, names.given).fetchall()]
    drift = []
    if not pending and not unknown:
        wanted = expected(driver, sql, names)
        drift = _differences(wanted, _found(handle, sql, names), names)
    return Schema(sorted(applied), pending, unknown, drift, others)


def expected(driver: Driver, sql: Statements, names: Names) -> dict[tuple[str, str], Definition]:
    """Return what the migrations create, as this server writes it: they run in the schema of temporary tables.

    In an open transaction; nothing remains of it.
    """
    scratch = Names("pg_temp", names.prefix, names.channel)
    driver.execute("SET LOCAL search_path = pg_catalog")  # so that the server writes the schema before names
    with _undone(driver):
        PostgresMigrations(driver, scratch, 0).create_all()
        return {
            key: one._replace(sql=_TEMPORARY.sub(f"{names.schema}.", one.sql))
            for key, one in _found(Handle(driver), sql, scratch).items()
        }


@contextmanager
def _undone(driver: Driver) -> Iterator[None]:
    driver.execute("SAVEPOINT holdfast_expected")
    yield
    driver.execute("ROLLBACK TO SAVEPOINT holdfast_expected")


def restore(driver: Driver, sql: Statements, names: Names) -> list[str]:
    """Create missing indexes, triggers, functions and views in an open transaction. Return their names."""
    wanted = expected(driver, sql, names)
    found = _found(Handle(driver), sql, names)
    driver.execute(f"SET LOCAL search_path = {names.schema}")  # a view names temporary tables without it
    created = []
    for kind in PARTS_TO_CREATE:
        for key, one in wanted.items():
            if key[0] == kind and key not in found:
                statement = one.sql if kind != "view" else f"CREATE VIEW {names.schema}.{key[1]} AS {one.sql}"
                driver.execute(statement)
                created.append(key[1])
    return created


def _found(handle: Handle, sql: Statements, names: Names) -> dict[tuple[str, str], Definition]:
    given = {"space": _space(handle, names), "prefix": names.prefix}
    rows: list[Any] = handle.execute(sql.schema_objects, given).fetchall()
    own = f"{names.prefix}migrations"  # made beside the migrations
    others = tuple(
        table.removesuffix("migrations") for kind, name, table, _ in rows
        if kind == "table" and name.endswith("migrations") and name != own
    )  # fmt: skip
    return {
        (kind, name): Definition(kind, table, _normalized(text))
        for kind, name, table, text in rows
        if table != own and not (others and table.startswith(others))
    }


def _space(handle: Handle, names: Names) -> str:
    """Return the schema. That of temporary tables has a number for each session."""
    if names.schema != "pg_temp":
        return names.schema
    (found,) = handle.execute("SELECT CAST(CAST(pg_my_temp_schema() AS regnamespace) AS text)").fetchone()
    return str(found)


def _normalized(sql: str) -> str:
    return " ".join(sql.split()) if "LANGUAGE" not in sql else sql.strip()


def _differences(
    wanted: dict[tuple[str, str], Definition], found: dict[tuple[str, str], Definition], names: Names
) -> list[SchemaDifference]:
    def bare(one: Definition) -> str:
        return one.sql.replace(f"{names.schema}.", "")

    def those(how: Any, keys: list[tuple[str, str]], among: dict[tuple[str, str], Definition]) -> Iterator[Any]:
        gone = {among[key].table for key in keys if key[0] == "table"}
        for key in keys:
            if key[0] == "table" or among[key].table not in gone:  # a table stands for what belongs to it
                yield SchemaDifference(how, key[0], key[1], among[key].table)

    missing = [key for key in wanted if key not in found]
    changed = [key for key in wanted if key in found and bare(wanted[key]) != bare(found[key])]
    tables = {one.table for one in wanted.values()}
    moved = f"{names.prefix}moved"  # the triggers that refuse writes after a move, and their function
    extra = [
        key
        for key in found
        if key not in wanted and key[1] != moved and (found[key].table in tables or key[0] == "table")
    ]
    return [
        *those("missing", missing, wanted),
        *those("changed", changed, wanted),
        *those("extra", extra, found),
    ]
