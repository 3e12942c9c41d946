"""Offload large payloads and results to the blob store, and delete blobs that no job refers to.

A blob is put before the transaction that refers to it. A blob is deleted while holding the write lock, so no other
connection can refer to it at that moment. A process that put the same blob before the deletion, and inserts its job
after it, finds the name in `unused_blobs` and checks whether the blob still exists.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from ..blobs import LARGEST_INLINE_BYTES, PLACEHOLDER, BlobReference, ListableBlobStore, is_name
from ..clock import SECOND
from ..errors import BlobCollected, BlobError, PayloadTooLarge, StoreError
from ..failure import Failure
from ..model.diagnosis import BlobReferences
from ..model.job import NewJob, Settlement
from .blob_store import CheckedBlobs, FileBlobs
from .database import Connection, SharedDatabase
from .statements import Statements, as_json

GONE_SECONDS = 7 * 24 * 3600  # for how long the names of deleted blobs are remembered
MAX_SCANNED = 5000  # names, each time orphans are searched
DELETE_BATCH = 100
MAX_LOCK_SECONDS = 0.02
PAGE = 500  # names
ORPHAN_SECONDS = 3600.0  # before that, the process that put the blob may still insert its job


def check_blobs(
    connection: Connection, sql: Statements, blobs: ListableBlobStore, most: int, deadline: float
) -> BlobReferences:
    """Find missing and orphaned blobs. most: the number of references and of files to check; -1 for all."""
    missing = [one for one in islice(_references(connection, sql), _stop(most)) if not _has(blobs, one.name)]
    orphaned, names = 0, islice(_old_files(blobs), _stop(most))
    while time.monotonic() < deadline and (some := list(islice(names, PAGE))):
        orphaned += len(connection.execute(sql.unreferenced_blobs, {"names": as_json(some)}).fetchall())
    return BlobReferences(missing, orphaned, str(blobs.folder) if isinstance(blobs, FileBlobs) else None)


def _stop(most: int) -> int | None:
    return None if most < 0 else most


def _has(blobs: ListableBlobStore, name: str) -> bool:
    return is_name(name) and blobs.has(name)


def _references(connection: Connection, sql: Statements) -> Iterator[BlobReference]:
    for statement, is_payload in ((sql.args_blobs_after, True), (sql.result_blobs_after, False)):
        after = ""
        while rows := connection.execute(statement, (after, PAGE)).fetchall():
            after = rows[-1][0]
            for name, job_id in rows:
                yield BlobReference(name, job_id, "payload" if is_payload else "result")


def _old_files(blobs: ListableBlobStore) -> Iterator[str]:
    """List old blobs, but only of files: listing another store may be arbitrarily expensive."""
    if not isinstance(blobs, FileBlobs):
        return
    before = time.time() - ORPHAN_SECONDS
    for partition in range(blobs.partitions):
        yield from _old_files_in(blobs.folder / f"{partition:02x}", before)


def _old_files_in(folder: Path, before: float) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if is_name(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                    yield entry.name


class Blobs:
    """The large payloads and results of one database."""

    def __init__(self, db: SharedDatabase, store: CheckedBlobs) -> None:
        self._db, self._sql, self._clock, self.store = db, db.sql, db.clock, store
        self._kind_is_stored = False
        self._next_partition = 0  # of the blob store, to search next for orphans

    # --- put: before the row is written, and outside its transaction unless that is the caller's ---

    def read_blob(self, name: str) -> bytes:
        return self.store.get(name)

    def offload(self, one: Settlement) -> Settlement:
        """Put a large result, or the large payload of a continuation, into the blob store before settling."""
        if one.result is not None and self.store.is_large(one.result):
            return replace(one, result=PLACEHOLDER, result_blob=self.put(one.result))
        if one.then is not None:
            return replace(one, then=self.offload_args(one.then))
        return one

    def offload_args(self, job: NewJob) -> NewJob:
        if not self.store.is_large(job.args):
            return job
        return replace(job, args=PLACEHOLDER, args_blob=self.put(job.args, reserve=True))

    def offload_args_if_possible(self, job: NewJob) -> NewJob:
        """For a transaction that must not fail because of the blob store: the payload then stays in the row."""
        try:
            return self.offload_args(job)
        except (StoreError, PayloadTooLarge):
            return job

    def put(self, text: str, reserve: bool = False) -> str:
        """Store the text. Returns its name. reserve: leave free disk space for settling running jobs."""
        data = text.encode()
        self.store.require_enabled(len(data))
        self._require_same_kind()
        if reserve and self.store.listable is not None:
            self._db.require_blob_space(len(data))
        return self.store.put(data)

    def _require_same_kind(self) -> None:
        """Refuse another kind of blob store than the database was used with: it would not find the blobs."""
        if self._kind_is_stored:
            return
        kind = self._stored_kind()
        if kind is not None and kind != self.store.kind:
            raise BlobError(
                f"the large payloads of this database are in {kind}, but this Holdfast uses {self.store.kind}: pass "
                "the same blobs= everywhere, and use --app instead of --db on the command line"
            )
        self._kind_is_stored = kind is not None

    def _stored_kind(self) -> str | None:
        row = self._db.read(lambda connection: connection.execute(self._sql.get_meta, ("blob_store",)).fetchone())
        return None if row is None else row[0]

    def require_inline(self, *texts: str | None) -> None:
        for text in texts:
            if (
                text is not None
                and len(text) > LARGEST_INLINE_BYTES // 4
                and len(text.encode()) > LARGEST_INLINE_BYTES
            ):
                raise PayloadTooLarge(
                    f"the payload of a schedule or callback must have at most {LARGEST_INLINE_BYTES:,} bytes: "
                    "store the data elsewhere and pass a reference"
                )

    # --- refer: in the transaction that writes the row ---

    def refer(self, connection: Connection, job_id: int, name: str) -> None:
        """Set the payload of a job whose row has the placeholder."""
        self.require_blob(connection, name)
        connection.execute(self._sql.set_args_blob, (name, job_id))

    def require_blob(self, connection: Connection, name: str) -> None:
        if self._was_collected(connection, name):
            raise BlobCollected(f"the blob {name} was deleted concurrently: nothing was stored, try again")

    def _was_collected(self, connection: Connection, name: str) -> bool:
        """Return whether a blob that was just put has been deleted. If not, it is safe until the transaction ends."""
        if not self._kind_is_stored:
            connection.execute(self._sql.store_blob_kind, (self.store.kind,))
        if connection.execute(self._sql.is_unused_blob, (name,)).fetchone() is None:
            return False
        if not self.store.has(name):  # its row stays: other processes may be about to refer to it
            return True
        connection.execute(self._sql.reuse_blob, (name,))
        return False

    def unless_collected(self, connection: Connection, one: Settlement) -> Settlement:
        """Return the settlement, or a retry if the blob that the attempt put was deleted meanwhile."""
        name = one.result_blob if one.then is None else one.then.args_blob
        if name is None or not self._was_collected(connection, name):
            return one
        failure = Failure("RESOURCE:BLOB_MISSING", "the blob of its result was deleted before the result was stored")
        return replace(one, transition="retry", failure=failure, result=None, result_blob=None, then=None)

    # --- delete unused blobs ---

    def collect_blobs(self, limit: int = 1000) -> int:
        """Delete blobs that no job refers to, at most `limit`, in short transactions. Returns how many."""
        if self._stored_kind() not in (None, self.store.kind):
            return 0
        deleted, now = 0, self._clock.now()
        long_ago = now - GONE_SECONDS * SECOND
        ((fresh, unused, forgettable),) = self._db.rows(self._sql.any_unused_blob, (long_ago,))
        if not unused:
            fresh = unused = self._find_orphans()
        if fresh:  # durable: once this is on disk, so is the change after which they were unused
            self._db.change(self._sql.note_unused_blobs, {"now": now, "limit": limit}, durable=True)
        while unused and deleted < limit:
            scanned, gone = self._db.run(partial(self._delete_some, most=min(DELETE_BATCH, limit - deleted)))
            unused, deleted = scanned > 0, deleted + gone
        if forgettable:
            self._db.change(self._sql.forget_gone_blobs, (long_ago,))
        return deleted

    def _delete_some(self, connection: Connection, most: int) -> tuple[int, int]:
        """Returns how many names were scanned, and how many blobs were deleted."""
        until, scanned, deleted = time.monotonic() + MAX_LOCK_SECONDS, 0, 0
        for name, is_used in connection.execute(self._sql.unused_blobs, (most,)).fetchall():
            scanned += 1
            if is_used or not is_name(name):
                connection.execute(self._sql.reuse_blob, (name,))
            else:
                self.store.delete(name)
                connection.execute(self._sql.blob_gone, (self._clock.now(), name))
                deleted += 1
            if time.monotonic() > until:
                break
        return scanned, deleted

    def _find_orphans(self) -> bool:
        """Mark blobs as unused that were put by a process that died before it inserted the job.

        Each call scans some partitions of the blob store. Returns whether any were found.
        """
        listable, scanned, found = self.store.listable, 0, False
        if listable is None:
            return False
        partitions = listable.partitions
        for _ in range(partitions):
            partition = self._next_partition % partitions
            self._next_partition = (partition + 1) % partitions
            for names in _in_pages(listable.older_than(ORPHAN_SECONDS, partition)):
                scanned += len(names)
                if orphans := self._unreferenced(names):
                    found = True
                    self._db.change(self._sql.mark_orphans_unused, {"names": as_json(orphans)})
            if scanned >= MAX_SCANNED:
                break
        return found

    def _unreferenced(self, names: list[str]) -> list[str]:
        return [row[0] for row in self._db.rows(self._sql.unreferenced_blobs, {"names": as_json(names)})]


def _in_pages(names: Iterator[str]) -> Iterator[list[str]]:
    while page := list(islice(names, PAGE)):
        yield page
