"""Find out whether a thread waits for a write lock that it holds itself, on a connection that is not Holdfast's.

SQLite does not tell which connection holds the lock. On Linux /proc/locks tells which process does. If it is this
one, the connections of this thread that are in a transaction on this file are asked whether they write. Most
connections may be used only by the thread that opened them, Django keeps one per thread, and a session of SQLAlchemy
is a local variable of the function that uses it. If another connection holds the lock, the thread has to wait.

A connection that another thread may be using is never used here. That thread may hold the connection's mutex and wait
for the interpreter, in an authorizer or a function written in Python, while this one holds the interpreter and waits
for the mutex: neither would ever go on.

To find the connections, all objects of the program are listed. While the list exists, no object in it is finalised:
neither the statement of a cursor nor, because of it, a connection that is being closed. So no process is forked then.
"""

import gc
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ....errors import TransactionError
from ...processes import register_forkable
from .connection import OwnConnection
from .file_users import WRITE_LOCK, locks_on
from .transaction import is_same_file, main_file


def self_wait(path: Path) -> TransactionError | None:
    """Return an error if this thread would wait for itself."""
    if not is_held_by_this_process(path):
        return None
    if not any(_holds_the_lock(connection, path) for connection in _search.in_transaction()):
        return None
    return TransactionError(
        f"this thread has a transaction open on another connection to {path}, and this call would wait for its end: "
        "pass that connection, or its session, as conn= to take part in it, or call this after its commit"
    )


def is_held_by_this_process(path: Path) -> bool:
    return WRITE_LOCK in locks_on(path).get(os.getpid(), ())


class _OpenTransactions:
    """Finds the open transactions of the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        register_forkable(self)

    def in_transaction(self) -> list[sqlite3.Connection]:
        """Return them, or none while another thread lists them or forks: a caller that waits asks again later.

        It must not wait here: a thread that forks waits for the leader of the group commit, which may be the caller.
        """
        if not self._lock.acquire(blocking=False):
            return []
        try:
            # Not isinstance(), which would evaluate lazy objects.
            connections = [thing for thing in gc.get_objects() if issubclass(type(thing), sqlite3.Connection)]
        finally:
            self._lock.release()
        return [connection for connection in connections if _is_in_transaction(connection)]

    @contextmanager
    def around_fork(self) -> Iterator[None]:
        with self._lock:
            yield

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


_search = _OpenTransactions()


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
    django = sys.modules.get("django.db")
    if django is not None and any(one.connection is connection for one in django.connections.all(True)):
        return True
    return _is_local(connection, sys._getframe())


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


def _is_local(connection: sqlite3.Connection, top: FrameType | None) -> bool:
    """Return whether a running function of this thread has a session on the connection as a local variable."""
    while top is not None:
        if any(connection in _behind(one) for one in list(top.f_locals.values())):
            return True
        top = top.f_back
    return False


def _behind(value: Any) -> list[Any]:
    """Return the driver's connections that a session or connection of SQLAlchemy uses, which threads never share."""
    if not type(value).__module__.startswith(("sqlalchemy.", "sqlmodel.")):
        return []
    try:
        used = getattr(value.get_transaction(), "_connections", [value])  # of a session: also its engines
        return [one.connection.driver_connection for one in used if hasattr(one, "exec_driver_sql")]
    except Exception:  # noqa: BLE001  another class of SQLAlchemy, or another version of it
        return []
