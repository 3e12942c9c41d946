"""Open SQLite connections with the settings that Holdfast needs, and close them before a fork.

SQLite keeps the locks of a process in memory, and a fork copies that memory: connections that the child opens later
would rely on locks that the child does not hold. So every owner closes its connections before a fork. If it cannot,
the child never uses or closes them.
"""

import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from ....errors import CannotOpen, UnsupportedSQLite
from ...protocol import StatementKind, StatementObserver

MIN_SQLITE = (3, 35, 0)
PAGE_SIZE = 1024  # a commit writes whole pages, so small pages make small commits cheaper
CACHE_KIB = 16_384
MAX_WAL_BYTES = 16 * 1024 * 1024  # of the write-ahead log, beyond which it is checkpointed, then truncated
READER_CACHE_KIB = 1_024  # reads are small, and there can be several readers

# Text that is not UTF-8, inserted by plain SQL, must not make other rows unreadable.
READ_TEXT = partial(str, encoding="utf-8", errors="replace")
C = TypeVar("C", bound=sqlite3.Connection)


class OwnConnection(sqlite3.Connection):
    """A connection that Holdfast has opened."""


class ObservedConnection(OwnConnection):
    """A connection that tells an observer about each statement before it runs, and about each commit."""

    observer: StatementObserver
    _committed_changes = 0

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        return self.cursor(ObservedCursor).execute(sql, values)

    def executemany(self, sql: str, values: Any, /) -> sqlite3.Cursor:
        return self.cursor(ObservedCursor).executemany(sql, values)

    def report_commit(self) -> None:
        """Tell the observer if there was a commit since the last call."""
        if not self.in_transaction and self.total_changes != self._committed_changes:
            self._committed_changes = self.total_changes
            self.observer.after_commit(self)


class ObservedCursor(sqlite3.Cursor):
    connection: ObservedConnection

    def execute(self, sql: str, values: Any = (), /) -> Self:
        return self._run(super().execute, sql, values)

    def executemany(self, sql: str, values: Any, /) -> Self:
        return self._run(super().executemany, sql, values)

    def _run(self, run: Callable[[str, Any], sqlite3.Cursor], sql: str, values: Any) -> Self:
        self.connection.observer.before_statement(self.connection, sql, _kind(sql))
        run(sql, values)
        if self.description is None:  # a statement that returns rows commits when they have been read
            self.connection.report_commit()
        return self

    def fetchone(self) -> Any:
        row = super().fetchone()
        self.connection.report_commit()
        return row

    def fetchall(self) -> list[Any]:
        rows = super().fetchall()
        self.connection.report_commit()
        return rows


def _kind(sql: str) -> StatementKind:
    if sql.startswith(("PRAGMA", "SAVEPOINT", "RELEASE", "ROLLBACK")):
        return "setting"
    return "write" if sql.startswith(("INSERT", "UPDATE", "DELETE", "COMMIT")) else "read"


def connect(
    path: Path, synchronous: str, cache_kib: int = READER_CACHE_KIB, observer: StatementObserver | None = None
) -> sqlite3.Connection:
    """Open a connection that never waits for a lock, never checkpoints automatically, and works in any thread."""
    return connect_as(
        OwnConnection if observer is None else ObservedConnection, path, synchronous, cache_kib, observer
    )


def connect_as(
    kind: type[C], path: Path, synchronous: str, cache_kib: int, observer: StatementObserver | None = None
) -> C:
    connection: C = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",  # never creates a file: the database may have been moved away
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=kind,
    )
    if isinstance(connection, ObservedConnection) and observer is not None:
        connection.observer = observer
    connection.text_factory = READ_TEXT
    try:
        for pragma in (
            f"synchronous = {synchronous}",
            "foreign_keys = ON",
            "trusted_schema = OFF",
            "wal_autocheckpoint = 0",
            "mmap_size = 0",
            f"cache_size = -{cache_kib}",
            f"journal_size_limit = {MAX_WAL_BYTES}",
            "temp_store = MEMORY",
            *(["fullfsync = 1", "checkpoint_fullfsync = 1"] if sys.platform == "darwin" else []),
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def require_usable_sqlite() -> None:
    """Raise unless this SQLite library has what the schema and the statements need."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise UnsupportedSQLite(
            f"SQLite must be 3.35 or newer, got {sqlite3.sqlite_version}: use a newer Python build"
        )
    probe = sqlite3.connect(":memory:")
    try:
        probe.execute("SELECT count(*) FROM json_each('[1]')").fetchall()
    except sqlite3.OperationalError:
        raise UnsupportedSQLite(
            "this SQLite was built without its JSON functions: use a Python whose sqlite3 has them"
        ) from None
    finally:
        probe.close()


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch the database to WAL mode. Give an empty file its page size and auto_vacuum first."""
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    encoding = connection.execute("PRAGMA encoding").fetchone()[0]
    if encoding != "UTF-8":
        raise CannotOpen(f"the text encoding of the database must be UTF-8, got {encoding}: use another file")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UnsupportedSQLite(
            f"SQLite could not switch this database to WAL and left it in {mode!r}: check the file system"
        )
