"""Translate PostgreSQL's errors into Holdfast's exceptions, and tell which can be tried again."""

import psycopg

from ...errors import (
    CannotOpen,
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


def is_retryable(error: psycopg.Error) -> bool:
    """Return whether the transaction was rolled back only because of others, so that it can run again."""
    return error.sqlstate in SERIALIZATION


def is_lost(error: psycopg.Error, connection: psycopg.Connection | None) -> bool:
    """Return whether the connection is gone."""
    if connection is not None and (connection.closed or connection.broken):
        return True
    return (error.sqlstate or "").startswith(("08", "57P")) or (
        isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    )


def translate(error: psycopg.Error, where: str) -> StoreError:
    """Return the exception to raise instead; its message says what to do. where: the database, without a password."""
    state = error.sqlstate or ""
    told = _first_line(error)
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
    if state.startswith("XX"):
        return CorruptDatabase(f"{where} is damaged ({told}): stop writing to it, and restore a backup")
    if state == "25P02":
        return TransactionError(f"the transaction on {where} was aborted by an earlier error: roll it back first")
    if state in ("28000", "28P01", "3D000", "42501"):
        return CannotOpen(f"{where} cannot be used ({told}): check the role, its password and its rights")
    if is_lost(error, None):
        return StoreError(
            f"the connection to {where} was lost ({told}): whether the last change was stored is unknown; do it "
            "again with the same key"
        )
    return StoreError(f"PostgreSQL reported an error on {where}: {told}")


def cannot_connect(error: Exception, where: str) -> CannotOpen:
    return CannotOpen(
        f"cannot connect to {where} ({_first_line(error)}): check that the server runs, and the host, port, database "
        "and role in the URL"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
