"""Large payloads and results, for those who only look: which are missing, and which nobody refers to."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ...blobs import BlobReference, ListedBlobs, is_name
from ..blob_files import FileBlobs
from ..examination import Blobs
from ..statements import Statements, as_json

AT_ONCE = 500
ORPHAN_SECONDS = 3600.0  # whoever has put it may still be about to refer to it


def look_at_blobs(
    connection: sqlite3.Connection, sql: Statements, there: ListedBlobs, most: int, deadline: float
) -> Blobs:
    """most: names that are looked at, of either kind; -1 for all of them."""
    missing = [one for one in islice(_references(connection, sql), _stop(most)) if not _has(there, one.name)]
    orphaned, names = 0, islice(_old_files(there), _stop(most))
    while time.monotonic() < deadline and (some := list(islice(names, AT_ONCE))):
        orphaned += len(connection.execute(sql.not_referred_to, {"names": as_json(some)}).fetchall())
    return Blobs(missing, orphaned, str(there.folder) if isinstance(there, FileBlobs) else None)


def _stop(most: int) -> int | None:
    return None if most < 0 else most


def _has(there: ListedBlobs, name: str) -> bool:
    return is_name(name) and there.has(name)


def _references(connection: sqlite3.Connection, sql: Statements) -> Iterator[BlobReference]:
    for statement, is_payload in ((sql.args_blobs_after, True), (sql.result_blobs_after, False)):
        after = ""
        while rows := connection.execute(statement, (after, AT_ONCE)).fetchall():
            after = rows[-1][0]
            for name, job_id in rows:
                yield BlobReference(name, job_id, "payload" if is_payload else "result")


def _old_files(there: ListedBlobs) -> Iterator[str]:
    """Of files only: to list what another store has may cost anything."""
    if not isinstance(there, FileBlobs):
        return
    before = time.time() - ORPHAN_SECONDS
    for place in range(there.places):
        yield from _old_files_of(there.folder / f"{place:02x}", before)


def _old_files_of(folder: Path, before: float) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if is_name(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                    yield entry.name
