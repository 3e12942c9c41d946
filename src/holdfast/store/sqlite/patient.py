"""A database that may be in any state, opened only to look at it: nothing is written, migrated or made."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from ...blobs import ListedBlobs
from ...clock import Clock
from ...errors import StoreError
from ..examination import Examination, Unopened, Vitals
from ..statements import Statements
from .connection import READ_TEXT, READER_CACHE_KIB, require_usable_sqlite
from .faults import code_of, is_busy, translate
from .files import blob_folder, database_path, require_file
from .look import Look, blank
from .migrate import Migrations
from .surroundings import Holders, has_companion, openers_of

T = TypeVar("T")

BUSY_SECONDS = 2.0
NAP_SECONDS = 0.01


class Patient:
    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self.path, self._prefix, self._clock = database_path(url), prefix, clock
        self._sql = Statements(Path(__file__).parent / "sql", prefix)

    def examine(self, min_free_bytes: int, deep: bool = False) -> Examination:
        from ..blob_files import FileBlobs  # as a health check has no need of them

        found = blank(self.path, self._prefix, min_free_bytes, self._clock, deep, Holders(self.path))
        if found.surroundings.kind != "file" or found.surroundings.unsafe:
            return found
        try:
            files = FileBlobs(blob_folder(self.path, self._prefix))
            self._look(lambda look, is_open: look.examine(found, is_open), files)
        except StoreError as error:
            found.unopened = Unopened(type(error).__name__, str(error))
        return found

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        require_file(self.path)
        return self._look(lambda look, _: look.vitals(since_minute, queues))

    def _look(self, use: Callable[[Look, bool], T], kept: ListedBlobs | None = None) -> T:
        require_usable_sqlite()
        # A connection that may not write would leave a log and its index behind, if there are none. Without them
        # nobody has the database open, and it can be read as a file that does not change.
        at_rest = not has_companion(self.path) and not openers_of(self.path)
        try:
            with closing(_open(self.path, at_rest)) as connection:
                try:
                    return use(Look(connection, self._sql, self.path, self._clock, kept), not at_rest)
                except sqlite3.OperationalError as error:
                    if code_of(error) == sqlite3.SQLITE_ERROR:  # a table is missing, most likely
                        Migrations(connection, self._prefix).require_current()
                    raise
        except sqlite3.Error as error:
            raise translate(error, self.path) from error


def _open(path: Path, at_rest: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if at_rest else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    connection.text_factory = READ_TEXT
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        for pragma in ("trusted_schema = OFF", "mmap_size = 0", f"cache_size = -{READER_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        while True:  # until it can be read at all
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                return connection
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(NAP_SECONDS)
    except BaseException:
        connection.close()
        raise
