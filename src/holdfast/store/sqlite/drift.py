"""The schema as it is, against the schema as the migrations make it."""

import re
import sqlite3
from random import Random
from typing import NamedTuple

from ...clock import SystemClock
from ..examination import Drift, Schema
from ..statements import Statements
from .migrate import UNRELEASED, Migrations
from .patience import Patience

_COMMENT = re.compile(r"--[^\n]*")


class Part(NamedTuple):
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


def expected(sql: Statements, prefix: str) -> dict[str, Part]:
    """What the migrations make of an empty database."""
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    try:
        Migrations(fresh, prefix).apply(SystemClock(), Patience(Random(), 0))
        return _parts(fresh, sql, prefix)
    finally:
        fresh.close()


def drift_from(wanted: dict[str, Part], there: dict[str, Part], prefix: str) -> list[Drift]:
    missing = [Drift("missing", part.kind, name, part.table) for name, part in wanted.items() if name not in there]
    changed = [
        Drift("changed", part.kind, name, part.table)
        for name, part in wanted.items()
        if name in there and _plain(there[name].sql) != _plain(part.sql)
    ]
    tables = {part.table for part in wanted.values()}
    others = _other_prefixes(there, prefix)
    extra = [
        Drift("extra", part.kind, name, part.table)
        for name, part in there.items()
        if name not in wanted and (part.table in tables or not part.table.startswith(others))
    ]
    return [*missing, *changed, *extra]


def _parts(connection: sqlite3.Connection, sql: Statements, prefix: str) -> dict[str, Part]:
    rows = connection.execute(sql.schema_objects, {"prefix": prefix}).fetchall()
    return {name: Part(kind, table, text) for kind, name, table, text in rows}


def _other_prefixes(there: dict[str, Part], prefix: str) -> tuple[str, ...]:
    """Of other sets of Holdfast's tables in the same file, whose prefixes begin with this one."""
    ends = f"{prefix}migrations"
    return tuple(name.removesuffix("migrations") for name in there if name.endswith("migrations") and name != ends)


def _plain(sql: str) -> str:
    """Without comments, and spaces as they come."""
    return " ".join(_COMMENT.sub("", sql).replace('"', "").split()).replace("( ", "(").replace(" )", ")")
