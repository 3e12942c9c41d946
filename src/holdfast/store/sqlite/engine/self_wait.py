"""Find out whether a thread waits for a write lock that it holds itself, on a connection that is not Holdfast's.

SQLite does not tell which connection holds the lock. On Linux /proc/locks tells which process does. If it is this
one, the connections of this thread that are in a transaction on this file are asked whether they write. Most
connections may be used only by the thread that opened them, Django keeps one per thread, and a session of SQLAlchemy
is a local variable of the function that uses it. If another connection holds the lock, the thread has to wait.

A connection that another thread may be using is never used here. That thread may hold the connection's mutex and wait
for the interpreter, in an authorizer or a function written in Python, while this one holds the interpreter and waits
for the mutex: a deadlock.

Connections are searched from the variables of the functions that this thread runs. A list of all objects of the
program (`gc.get_objects`) is never made: it would refer to each tuple that another thread is making from a generator.
CPython then raises SystemError in that thread, because it resizes only tuples to which nothing else refers.
"""

import gc
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from contextvars import copy_context
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

from ....errors import TransactionError
from .connection import OwnConnection
from .file_users import WRITE_LOCK, locks_on
from .transaction import is_same_file, main_file

MAX_STEPS = 4  # as to a connection in a list in an attribute of a local variable
MAX_SEARCHED = 20_000  # objects
MAX_REFERENTS = 1_000  # of each object
_NOT_SEARCHED = (type, str, bytes, int, float, FunctionType, BuiltinFunctionType, CodeType, FrameType)


def self_wait(path: Path) -> TransactionError | None:
    """Return an error if this thread would wait for itself."""
    if not is_held_by_this_process(path):
        return None
    if not any(_holds_the_lock(connection, path) for connection in open_transactions()):
        return None
    return TransactionError(
        f"this thread has a transaction open on another connection to {path}, and this call would wait for its end: "
        "pass that connection, or its session, as conn= to take part in it, or call this after its commit"
    )


def is_held_by_this_process(path: Path) -> bool:
    return WRITE_LOCK in locks_on(path).get(os.getpid(), ())


def open_transactions() -> list[sqlite3.Connection]:
    """Return the connections with an open transaction that the functions of this thread refer to."""
    frames = list(_frames(sys._getframe()))
    values = [value for frame in frames for value in list(frame.f_locals.values())]
    values += [connection for value in values for connection in _behind(value)]
    values += copy_context().values()
    values += [wrapper.connection for wrapper in _django_connections()]
    modules = {id(frame.f_globals): frame.f_globals for frame in frames}.values()
    found = _connections(values) + _connections([value for module in modules for value in list(module.values())])
    return [connection for connection in found if _is_in_transaction(connection)]


def _frames(top: FrameType | None) -> Iterator[FrameType]:
    """Yield the running functions of this thread that are not Holdfast's."""
    while top is not None:
        if not str(top.f_globals.get("__name__")).startswith("holdfast."):
            yield top
        top = top.f_back


def _connections(roots: list[Any]) -> list[sqlite3.Connection]:
    """Return the connections among these objects, and those to which they refer in a few steps.

    It runs no code of the objects, and keeps none of Holdfast's alive.
    """
    found: list[sqlite3.Connection] = []
    seen: dict[int, Any] = {}  # with the objects, whose ids must not be used again meanwhile
    level = roots
    for _ in range(MAX_STEPS):
        referents: list[Any] = []
        for thing in level:
            kind = type(thing)  # not isinstance(), which would evaluate lazy objects
            if issubclass(kind, _NOT_SEARCHED) or id(thing) in seen or len(seen) >= MAX_SEARCHED:
                continue
            if str(vars(kind).get("__module__")).startswith("holdfast."):
                continue
            seen[id(thing)] = thing
            if issubclass(kind, sqlite3.Connection):
                found.append(thing)
            else:
                referents += gc.get_referents(thing)[:MAX_REFERENTS]
        level = referents
    return found


def _is_in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:  # it is closed
        return False


def _is_of_this_thread(connection: sqlite3.Connection) -> bool:
    if isinstance(connection, OwnConnection) or not _can_use(connection):
        return False
    elsewhere = threading.Thread(target=lambda: found.append(_can_use(connection)), daemon=True)
    found: list[bool] = []
    elsewhere.start()
    elsewhere.join()
    if found == [False]:
        return _can_use(connection)  # not if it was closed meanwhile
    if any(wrapper.connection is connection for wrapper in _django_connections()):
        return True
    return any(
        connection in _behind(value) for frame in _frames(sys._getframe()) for value in list(frame.f_locals.values())
    )


def _django_connections() -> list[Any]:
    django = sys.modules.get("django.db")
    return [] if django is None else list(django.connections.all(True))


def _holds_the_lock(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether this thread has a write transaction on the file open on the connection."""
    # The lock may have changed hands since the look at it, so a transaction that only reads proves nothing.
    return _is_of_this_thread(connection) and is_same_file(main_file(connection), path) and _writes(connection)


def _writes(connection: sqlite3.Connection) -> bool:
    """Return whether the open transaction holds the write lock. Python has no function for it.

    A step of a backup reports SQLITE_BUSY if its source is in a write transaction. The backup ends after one step.
    """
    states: list[int] = []

    def end(state: int, _remaining: int, _total: int) -> None:
        states.append(state)
        raise InterruptedError

    with closing(sqlite3.connect(":memory:")) as target, suppress(InterruptedError, sqlite3.Error):
        sqlite3.Connection.backup(connection, target, pages=1, progress=end)
    return states == [sqlite3.SQLITE_BUSY]


def _can_use(connection: sqlite3.Connection) -> bool:
    """Return whether the calling thread may use the connection."""
    try:
        sqlite3.Connection.cursor(connection).close()
    except sqlite3.Error:
        return False
    return True


def _behind(value: Any) -> list[Any]:
    """Return the driver's connections that a session or connection of SQLAlchemy uses, which threads never share."""
    if not type(value).__module__.startswith(("sqlalchemy.", "sqlmodel.")):
        return []
    try:
        used = getattr(value.get_transaction(), "_connections", [value])  # of a session: also its engines
        return [one.connection.driver_connection for one in used if hasattr(one, "exec_driver_sql")]
    except Exception:  # noqa: BLE001  another class of SQLAlchemy, or another version of it
        return []
