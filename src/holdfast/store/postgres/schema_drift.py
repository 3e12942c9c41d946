"""Compare the schema with what the migrations create."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...model.diagnosis import Schema, SchemaDifference
from ..statements import Statements
from .connection import Driver, Handle
from .migrate import Names, PostgresMigrations

PARTS_TO_CREATE = ("function", "view", "index", "trigger")  # in this order; the others hold rows
_TEMPORARY = re.compile(r"\bpg_temp(_\d+)?\.")


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
