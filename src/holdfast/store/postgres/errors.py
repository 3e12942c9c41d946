"""Translate PostgreSQL's errors into Holdfast's exceptions, and tell which can be tried again."""

import psycopg

from ...errors import (
    CannotOpen,
    ConnectionLost,
    CorruptDatabase,
    DamagedRow,
    DatabaseMoved,
    DiskFull,
    ReadOnlyDatabase,
    StoreBusy,
    StoreError,
    TransactionError,
)
from ..database import MOVED

SERIALIZATION = {"40001", "40P01"}  # serialization_failure, deadlock_detected
_BUSY = {"55P03", "57014"}  # lock_not_available, query_canceled
_READ_ONLY = {"25006"}
# Memory, connections and the like, and a server that starts: those that do not need an operator.
MAX_TOLD = 400  # characters
_PASSING = {"53000", "53200", "53300", "53400", "57P03"}


def is_retryable(error: psycopg.Error) -> bool:
    """Return whether the server has rolled back the transaction for a reason that passes: it can run again."""
    return error.sqlstate in SERIALIZATION or error.sqlstate in _PASSING


def is_overtaken(error: psycopg.Error, prefix: str) -> bool:
    """Return whether another transaction has inserted a row that this one looked for and did not see."""
    return error.sqlstate == "23505" and (error.diag.table_name or "").startswith(prefix)


def is_read_only(error: psycopg.Error) -> bool:
    """Return whether the server takes no writes, as a standby."""
    return error.sqlstate in _READ_ONLY


def is_lost(error: psycopg.Error, connection: psycopg.Connection | psycopg.AsyncConnection | None) -> bool:
    """Return whether the connection is gone."""
    if connection is not None and (connection.closed or connection.broken):
        return True
    if error.sqlstate == "57P03":  # a server that starts refuses connections; it does not end them
        return False
    return (error.sqlstate or "").startswith(("08", "57P")) or (
        isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    )


def translate(error: psycopg.Error, where: str) -> StoreError:
    """Return the exception to raise instead; its message says what to do. where: the database, without a password."""
    state = error.sqlstate or ""
    told = first_line(error)
    if state == "HF001":
        return DatabaseMoved(told.removeprefix(MOVED))
    if state in SERIALIZATION:
        return StoreBusy(f"other transactions on {where} were in the way again and again ({told}): try again")
    if state in _BUSY:
        return StoreBusy(
            f"another transaction on {where} keeps a write lock for too long ({told}): find the program with a "
            "long transaction. If it is this program, pass its connection as conn="
        )
    if state in _READ_ONLY:
        return ReadOnlyDatabase(f"{where} cannot be written ({told}): connect to the primary server")
    if state == "53100":
        return DiskFull(f"the disk of the server of {where} is full: free some space, then try again")
    if state.startswith("53"):
        return StoreBusy(
            f"the server of {where} has no more resources ({told}): try again later, or raise its limits"
        )
    if state in ("23514", "23502"):
        return DamagedRow(f"a constraint of {where} does not allow this change ({told})")
    if state in ("22P05", "22021"):
        return StoreError(f"{where} cannot store this text ({told}): create the database with ENCODING 'UTF8'")
    if state.startswith("XX"):
        return CorruptDatabase(f"{where} is damaged ({told}): stop writing to it, and restore a backup")
    if state == "25P02":
        return TransactionError(f"the transaction on {where} was aborted by an earlier error: roll it back first")
    if state in ("28000", "28P01", "3D000", "42501"):
        return CannotOpen(f"{where} cannot be used ({told}): check the role, its password and its rights")
    if state in ("3F000", "42P01"):
        return CannotOpen(f"{where} lacks a table or a schema ({told}): open it once with migrate=True")
    if is_lost(error, None):
        return connection_lost(error, where)
    return StoreError(f"PostgreSQL reported an error on {where}: {told}")


def connection_lost(error: Exception, where: str) -> ConnectionLost:
    """Return the exception for a connection that was lost before anything was stored."""
    return ConnectionLost(
        f"the connection to {where} was lost ({first_line(error)}): nothing was stored; do it again"
    )


def cannot_connect(error: Exception, where: str) -> CannotOpen:
    return CannotOpen(
        f"cannot connect to {where} ({first_line(error)}): check that the server runs, and the host, port, database, "
        "role and password in the URL"
    )


def first_line(error: Exception) -> str:
    """Return what the server or the driver told, in one line. With several hosts, there is a line for each."""
    lines = [line.strip(" -\t") for line in str(error).strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Is the server running", "Multiple connection"))]
    told = " ".join(lines) if "Multiple connection" in str(error) else "".join(lines[:1])
    return told.rstrip(".:")[:MAX_TOLD] or type(error).__name__
