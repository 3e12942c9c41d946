"""Connections as Holdfast wants them."""

import sqlite3
import sys
from functools import partial
from pathlib import Path

from ....errors import CannotOpen, UnsupportedSQLite
from .checkpoint import LARGEST_LOG_BYTES

OLDEST_SQLITE = (3, 35, 0)
PAGE_SIZE = 1024  # a commit writes whole pages, so small pages make single commits cheaper
CACHE_KIB = 16_384
READER_CACHE_KIB = 1_024  # reads are small, and there may be several such connections

# A text that is not UTF-8, put there by hand, must not keep others from being read.
READ_TEXT = partial(str, encoding="utf-8", errors="replace")


def connect(path: Path, synchronous: str, cache_kib: int = READER_CACHE_KIB) -> sqlite3.Connection:
    """A connection that never waits, never checkpoints by itself, and may be passed between threads."""
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.text_factory = READ_TEXT
    try:
        for pragma in (
            f"synchronous = {synchronous}",
            "foreign_keys = ON",
            "trusted_schema = OFF",
            "wal_autocheckpoint = 0",
            "mmap_size = 0",
            f"cache_size = -{cache_kib}",
            f"journal_size_limit = {LARGEST_LOG_BYTES}",
            "temp_store = MEMORY",
            *(["fullfsync = 1", "checkpoint_fullfsync = 1"] if sys.platform == "darwin" else []),
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def require_usable_sqlite() -> None:
    """What the schema and the statements need of the library, found out by trying."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnsupportedSQLite(
            f"SQLite {sqlite3.sqlite_version} is too old: Holdfast needs 3.35 or newer. Use a newer Python build"
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
    """Give an empty file its page size and auto_vacuum, and any file the write-ahead log."""
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    encoding = connection.execute("PRAGMA encoding").fetchone()[0]
    if encoding != "UTF-8":
        raise CannotOpen(f"this database stores text as {encoding}, and Holdfast needs UTF-8: use another file")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UnsupportedSQLite(
            f"SQLite could not switch this database to WAL and left it in {mode!r}: check the file system"
        )
