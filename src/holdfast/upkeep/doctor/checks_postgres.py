"""Checks of a PostgreSQL server: settings, VACUUM and what holds it up, connections, clock."""

from __future__ import annotations

from ...clock import SECOND
from ...model.diagnosis import DatabaseServer, Diagnosis, TableRows, XminHolder
from ...text import clean, listed, plural, short, span
from .check import Case, Check, Evidence, always, found, quoted

FLUSHING = ("fsync", "full_page_writes")
MUST_BE_ON = FLUSHING
HELD_SECONDS = 300.0  # a transaction that is older holds up VACUUM
HELD_TRANSACTIONS = 100_000  # that began since
DEAD_ROWS = 50_000
DEAD_SHARE = 0.5  # of a table's rows
FEW_CONNECTIONS = 8
LARGEST_OFFSET = 60 * SECOND
MOST_NAMED = 5


def _server(diagnosis: Diagnosis) -> DatabaseServer:
    assert diagnosis.server is not None, "these checks are for a server"
    return diagnosis.server


def _cannot_connect(diagnosis: Diagnosis) -> Evidence | None:
    error = diagnosis.open_error
    return None if error is None else found({"error": type(error).__name__}, message=str(error).rstrip("."))


def _connected(diagnosis: Diagnosis) -> Evidence | None:
    if diagnosis.open_error is not None:
        return None
    server = _server(diagnosis)
    return found({"version": server.version}, server=clean(server.shown), version=clean(server.version))


def _not_flushed(diagnosis: Diagnosis) -> Evidence | None:
    off = [name for name in _server(diagnosis).off if name in MUST_BE_ON]
    return found({"off": off}, settings=listed(off), setting=off[0]) if off else None


def _asynchronous(diagnosis: Diagnosis) -> Evidence | None:
    level = _server(diagnosis).synchronous_commit
    return found({"synchronous_commit": level}) if level == "off" else None


def _autovacuum_off(diagnosis: Diagnosis) -> Evidence | None:
    off = [name for name in _server(diagnosis).off if name in ("autovacuum", "track_counts")]
    return found({"off": off}, settings=listed(off), setting=off[0]) if off else None


def _tables_without_autovacuum(diagnosis: Diagnosis) -> Evidence | None:
    names = [clean(table.name) for table in diagnosis.tables if not table.autovacuum]
    table = f"{_server(diagnosis).schema}.{names[0]}" if names else ""
    return found({"tables": names}, tables=listed(names), table=table) if names else None


def _is_held(one: XminHolder) -> bool:
    return (one.seconds or 0) > HELD_SECONDS or one.transactions > HELD_TRANSACTIONS


def _holders(diagnosis: Diagnosis, kind: str) -> Evidence | None:
    holders = [one for one in diagnosis.horizon if one.kind == kind and _is_held(one)]
    if not holders:
        return None
    longest = max(holders, key=lambda one: (one.seconds or 0, one.transactions))
    told = [
        f"{short(clean(one.name))} ({short(clean(one.told))}"
        + (f", for {span(int(one.seconds))})" if one.seconds is not None else ")")
        for one in holders[:MOST_NAMED]
    ]
    return found(
        {"held_by": [one.name for one in holders], "transactions": longest.transactions},
        holders=listed(told),
        name=quoted(clean(longest.name)),
        literal=clean(longest.name).replace("'", "''"),
        transactions=plural(longest.transactions, "transaction"),
    )


def _is_bloated(table: TableRows) -> bool:
    return table.dead > DEAD_ROWS and table.dead > DEAD_SHARE * (table.live + table.dead)


def _dead_rows(diagnosis: Diagnosis) -> Evidence | None:
    tables = [table for table in diagnosis.tables if _is_bloated(table)]
    if not tables:
        return None
    return found(
        {"tables": {table.name: table.dead for table in tables}},
        tables=listed([f"{clean(table.name)} ({table.dead:,} beside {table.live:,})" for table in tables]),
    )


def _few_connections(diagnosis: Diagnosis) -> Evidence | None:
    free = diagnosis.connections.most - diagnosis.connections.used
    return _connections(diagnosis) if free < FEW_CONNECTIONS else None


def _connections(diagnosis: Diagnosis) -> Evidence | None:
    has = diagnosis.connections
    detail = {"used": has.used, "most": has.most, "own": has.own}
    return found(detail, used=str(has.used), most=str(has.most), own=str(has.own))


def _offset(diagnosis: Diagnosis) -> Evidence | None:
    offset = _server(diagnosis).clock_offset
    if abs(offset) <= LARGEST_OFFSET:
        return None
    way = "ahead of" if offset > 0 else "behind"
    return found({"seconds": offset / SECOND}, time=span(abs(offset) // SECOND), way=way)


SERVER, HORIZON, TABLES = ("server",), ("horizon",), ("tables",)
VACUUM_GUIDE = "guides/postgresql.md#vacuum"
HELD = "VACUUM cannot remove rows that died since: {transactions} began. The tables grow, and claims get slower."

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
CHECKS = (
    Check("Can the server be reached, and this database on it?", cases=(
        Case("CANNOT_CONNECT", "error", _cannot_connect,
            "{message}.",
            fix="psql {file}", blocks_repair=True),
        Case("CONNECTED", "ok", _connected, "PostgreSQL {version} answers at {server}."),
    )),
    Check("Can the database be written?", needs=SERVER, cases=(
        Case("NOT_WRITABLE", "error", lambda d: not _server(d).writable,
            "This server is a standby, or default_transaction_read_only is on.",
            "Nothing can be enqueued, claimed or settled. Pass a URL that leads to the primary: with several hosts "
            "in it, add target_session_attrs=read-write.",
            "psql {file} -c 'SELECT pg_is_in_recovery()'", blocks_repair=True),
    )),
    Check("Does the server keep what it has acknowledged?", needs=SERVER, cases=(
        Case("FLUSH_OFF", "error", _not_flushed,
            "Off on the server: {settings}.",
            "A crash of its machine can lose acknowledged jobs or damage the database. Switch it on.",
            "psql {file} -c 'ALTER SYSTEM SET {setting} = on' -c 'SELECT pg_reload_conf()'",
            guide="guides/postgresql.md#durability"),
        Case("COMMITS_NOT_FLUSHED", "warning", _asynchronous,
            "synchronous_commit is off for new sessions.",
            "A crash of the server can lose jobs that were just enqueued. Holdfast flushes its claims anyway. "
            "Switch it on, unless that is wanted.",
            "psql {file} -c 'SHOW synchronous_commit'", guide="guides/postgresql.md#durability"),
        Case("COMMITS", "ok", always, "The server flushes commits."),
    )),
    Check("Does anything hold up VACUUM?", needs=HORIZON, cases=(
        Case("HELD_BY_TRANSACTION", "warning", lambda d: _holders(d, "transaction"),
            "A transaction is open for long: session {holders}.",
            f"{HELD} End it, or let the program commit sooner.",
            "psql {file} -c 'SELECT pg_terminate_backend({literal})'", guide=VACUUM_GUIDE),
        Case("HELD_BY_PREPARED", "warning", lambda d: _holders(d, "prepared"),
            "A prepared transaction was neither committed nor rolled back: {holders}.",
            f"{HELD} Let its coordinator end it, or roll it back.",
            "psql {file} -c \"ROLLBACK PREPARED '{literal}'\"", guide=VACUUM_GUIDE),
        Case("HELD_BY_SLOT", "warning", lambda d: _holders(d, "slot"),
            "A replication slot holds an old state: {holders}.",
            f"{HELD} If its standby is gone for good, drop the slot.",
            "psql {file} -c \"SELECT pg_drop_replication_slot('{literal}')\"", guide=VACUUM_GUIDE),
        Case("HELD_BY_STANDBY", "warning", lambda d: _holders(d, "standby"),
            "A standby with hot_standby_feedback holds an old state: {holders}.",
            f"{HELD} End the long query there.",
            "psql {file} -c 'TABLE pg_stat_replication'", guide=VACUUM_GUIDE),
        Case("VACUUM_FREE", "ok", always, "Nothing holds up VACUUM."),
    )),
    Check("Are dead rows removed?", needs=(*SERVER, *TABLES), cases=(
        Case("AUTOVACUUM_OFF", "error", _autovacuum_off,
            "Off on the server: {settings}.",
            "Dead rows are never removed: the tables grow, and claims get slower. Switch it on.",
            "psql {file} -c 'ALTER SYSTEM SET {setting} = on' -c 'SELECT pg_reload_conf()'", guide=VACUUM_GUIDE),
        Case("AUTOVACUUM_OFF", "error", _tables_without_autovacuum,
            "autovacuum is off for {tables}.",
            "Dead rows are never removed: the tables grow, and claims get slower.",
            "psql {file} -c 'ALTER TABLE {table} RESET (autovacuum_enabled)'", guide=VACUUM_GUIDE),
        Case("DEAD_ROWS", "warning", _dead_rows,
            "Dead rows that were not removed yet: {tables}.",
            "autovacuum does not keep up, or something holds it up. Run VACUUM.",
            "holdfast vacuum {database}", guide=VACUUM_GUIDE),
        Case("VACUUMED", "ok", always, "Dead rows are removed."),
    )),
    Check("Is there a connection pooler in between?", needs=SERVER, cases=(
        Case("POOLER", "note", lambda d: _server(d).pooled,
            "A pooler gives each transaction another session.",
            "Advisory locks and LISTEN do not work there: workers are seen by their heartbeats, and waiting programs "
            "poll. Pass a URL that leads to the server itself for a faster start of jobs.",
            guide="guides/postgresql.md#poolers"),
        Case("POOLER", "ok", always, "Connections lead to the server itself."),
    )),
    Check("Are there free connections?", needs=("connections",), cases=(
        Case("CONNECTIONS_LOW", "warning", _few_connections,
            "{used} of {most} connections are in use, {own} of them by Holdfast in this database.",
            "Each process of Holdfast uses four at most. Without a free one, programs cannot start or reconnect. End "
            "idle programs, or raise max_connections.",
            "psql {file} -c 'TABLE pg_stat_activity'"),
        Case("CONNECTIONS", "ok", _connections,
            "{used} of {most} connections are in use, {own} of them by Holdfast."),
    )),
    Check("Is the clock of this machine that of the server?", needs=SERVER, cases=(
        Case("CLOCK_OFFSET", "warning", _offset,
            "The server's clock is {time} {way} that of this machine.",
            "Holdfast goes by the server's. A run_at that a program computes from its own clock is off by as much.",
            "timedatectl status"),
    )),
)
# fmt: on
