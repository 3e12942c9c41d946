"""Large payloads and results are put elsewhere, before the row that refers to them; what nobody refers to is deleted.

A blob is deleted by whoever holds the write lock, so nothing can come to refer to it at that moment. One who has put
the same before that, and writes the job after it, finds the name among the unused ones, and looks for it.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from ...blobs import LARGEST_INLINE_BYTES, PLACEHOLDER, BlobReference, ListedBlobs, is_name
from ...clock import SECOND
from ...errors import BlobCollected, BlobError, PayloadTooLarge, StoreError
from ...failure import Failure
from ...model.diagnosis import BlobReferences
from ...model.job import NewJob, Settlement
from ..blob_store import FileBlobs, Vault
from ..statements import Statements, as_json
from .database import Database

AT_ONCE = 500
ORPHAN_SECONDS = 3600.0  # whoever has put it may still be about to refer to it


def look_at_blobs(
    connection: sqlite3.Connection, sql: Statements, there: ListedBlobs, most: int, deadline: float
) -> BlobReferences:
    """most: names that are looked at, of either kind; -1 for all of them."""
    missing = [one for one in islice(_references(connection, sql), _stop(most)) if not _has(there, one.name)]
    orphaned, names = 0, islice(_old_files(there), _stop(most))
    while time.monotonic() < deadline and (some := list(islice(names, AT_ONCE))):
        orphaned += len(connection.execute(sql.not_referred_to, {"names": as_json(some)}).fetchall())
    return BlobReferences(missing, orphaned, str(there.folder) if isinstance(there, FileBlobs) else None)


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


GONE_SECONDS = 7 * 24 * 3600
LOOK_AT_ONCE = 500
MOST_LOOKED_AT = 5000
DELETE_AT_ONCE = 100
LONGEST_LOCK_SECONDS = 0.02


class Blobs:
    def __init__(self, db: Database, vault: Vault) -> None:
        self._db, self._sql, self._clock, self.vault = db, db.sql, db.clock, vault
        self._blob_store_named = False
        self._next_place = 0  # of the blobs, where to look next for what a crash left

    # --- putting: before the row, and outside its transaction if it is not the user's ---

    def fetch(self, name: str) -> bytes:
        return self.vault.get(name)

    def keep_apart(self, one: Settlement) -> Settlement:
        """Put what is large into the blob store, before the attempt is settled."""
        if one.result is not None and self.vault.is_large(one.result):
            return replace(one, result=PLACEHOLDER, result_blob=self.put(one.result))
        if one.then is not None:
            return replace(one, then=self.with_args_apart(one.then))
        return one

    def with_args_apart(self, job: NewJob) -> NewJob:
        if not self.vault.is_large(job.args):
            return job
        return replace(job, args=PLACEHOLDER, args_blob=self.put(job.args, reserve=True))

    def apart_if_possible(self, job: NewJob) -> NewJob:
        """In a transaction that must not fail for it: in the row it is as good, if not as well kept."""
        try:
            return self.with_args_apart(job)
        except (StoreError, PayloadTooLarge):
            return job

    def put(self, text: str, reserve: bool = False) -> str:
        """reserve: leave room on the disk for what runs to settle."""
        data = text.encode()
        self.vault.require_on(len(data))
        self._require_same_blob_store()
        if reserve and self.vault.listed is not None:
            self._db.engine().space.require(len(data), written_per_byte=1)
        return self.vault.put(data)

    def _require_same_blob_store(self) -> None:
        """What one kind of them has, another would not find."""
        if self._blob_store_named:
            return
        found = self._db.read(lambda connection: connection.execute(self._sql.get_meta, ("blob_store",)).fetchone())
        if found is not None and found[0] != self.vault.kind:
            raise BlobError(
                f"the large payloads of this database are kept by {found[0]}, and this Holdfast has "
                f"{self.vault.kind}: pass the same blobs= everywhere, and on the command line --app instead of --db"
            )
        self._blob_store_named = found is not None

    def require_inline(self, *texts: str | None) -> None:
        for text in texts:
            if (
                text is not None
                and len(text) > LARGEST_INLINE_BYTES // 4
                and len(text.encode()) > LARGEST_INLINE_BYTES
            ):
                raise PayloadTooLarge(
                    f"the payload of what is enqueued later may have {LARGEST_INLINE_BYTES:,} bytes: store it "
                    "elsewhere and pass a reference"
                )

    # --- referring: in the transaction of the row ---

    def refer(self, connection: sqlite3.Connection, job_id: int, name: str) -> None:
        """The job, which has the placeholder, has this as its payload."""
        self.require_blob(connection, name)
        connection.execute(self._sql.refer_args, (name, job_id))

    def require_blob(self, connection: sqlite3.Connection, name: str) -> None:
        if self._was_collected(connection, name):
            raise BlobCollected(f"the blob {name} was deleted at this very moment: nothing was stored, do it again")

    def _was_collected(self, connection: sqlite3.Connection, name: str) -> bool:
        """Whether it is gone that was put just now. From here on nobody can delete it."""
        if not self._blob_store_named:
            connection.execute(self._sql.name_blob_store, (self.vault.kind,))
        if connection.execute(self._sql.is_unused_blob, (name,)).fetchone() is None:
            return False
        if not self.vault.has(name):  # its row stays: others may be about to refer to it as well
            return True
        connection.execute(self._sql.reuse_blob, (name,))
        return False

    def unless_collected(self, connection: sqlite3.Connection, one: Settlement) -> Settlement:
        """What an attempt has put is gone again, so it has to be made again. Not seen so far."""
        name = one.result_blob if one.then is None else one.then.args_blob
        if name is None or not self._was_collected(connection, name):
            return one
        failure = Failure("RESOURCE:BLOB_MISSING", "its result was deleted before it was stored")
        return replace(one, transition="retry", failure=failure, result=None, result_blob=None, then=None)

    # --- collecting ---

    def collect_blobs(self, limit: int = 1000) -> int:
        """Delete what no job refers to, at most so many, a little at a time. Returns how many."""
        if not self._is_own():
            return 0
        deleted, now = 0, self._clock.now()
        long_ago = now - GONE_SECONDS * SECOND
        ((fresh, unused, forgettable),) = self._db.rows(self._sql.any_unused_blob, (long_ago,))
        if not unused:
            fresh = unused = self._find_some_orphans()
        if fresh:  # and when this is on the disk, so is what let them go
            self._db.change(self._sql.note_unused_blobs, {"now": now, "limit": limit}, durable=True)
        while unused and deleted < limit:
            looked, gone = self._db.run(partial(self._delete_some, most=min(DELETE_AT_ONCE, limit - deleted)))
            unused, deleted = looked > 0, deleted + gone
        if forgettable:
            self._db.change(self._sql.forget_gone_blobs, (long_ago,))
        return deleted

    def _is_own(self) -> bool:
        """Whether what jobs refer to is in the blob store of this one, or in none so far."""
        found = self._db.read(lambda connection: connection.execute(self._sql.get_meta, ("blob_store",)).fetchone())
        return found is None or found[0] == self.vault.kind

    def _delete_some(self, connection: sqlite3.Connection, most: int) -> tuple[int, int]:
        """Returns how many were looked at, and how many deleted."""
        until, looked, deleted = time.monotonic() + LONGEST_LOCK_SECONDS, 0, 0
        for name, is_used in connection.execute(self._sql.unused_blobs, (most,)).fetchall():
            looked += 1
            if is_used or not is_name(name):
                connection.execute(self._sql.reuse_blob, (name,))
            else:
                self.vault.delete(name)
                connection.execute(self._sql.blob_gone, (self._clock.now(), name))
                deleted += 1
            if time.monotonic() > until:
                break
        return looked, deleted

    def _find_some_orphans(self) -> bool:
        """What somebody put, and did not live to refer to. Looks at a part of what is there each time."""
        listed, looked, found = self.vault.listed, 0, False
        if listed is None:
            return False
        places = listed.places
        for _ in range(places):
            place, self._next_place = self._next_place % places, (self._next_place + 1) % places
            for names in _some_at_a_time(listed.unchanged_for(ORPHAN_SECONDS, place)):
                looked += len(names)
                if orphans := self._not_referred_to(names):
                    found = True
                    self._db.change(self._sql.let_all_go, {"names": as_json(orphans)})
            if looked >= MOST_LOOKED_AT:
                break
        return found

    def _not_referred_to(self, names: list[str]) -> list[str]:
        return [row[0] for row in self._db.rows(self._sql.not_referred_to, {"names": as_json(names)})]


def _some_at_a_time(names: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(names, LOOK_AT_ONCE)):
        yield some
