"""Offload large payloads and results to the blob store, and delete blobs that no job refers to.

`FileBlobs` is a blob store: files in a folder. `CheckedBlobs` checks names and content hashes of any blob store.

A blob is put before the transaction that refers to it. A blob is deleted while holding the write lock, or on
PostgreSQL a lock on its name, so no other connection can refer to it at that moment. A process that put the same blob
before the deletion, and inserts its job after it, finds the name in `unused_blobs` and checks whether the blob still
exists.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..blobs import (
    LARGEST_INLINE_BYTES,
    PLACEHOLDER,
    BlobReference,
    BlobStore,
    ListableBlobStore,
    is_name,
    name_of,
    require_name,
)
from ..clock import SECOND
from ..codec import MAX_BYTES
from ..errors import BlobCollected, BlobDamaged, BlobError, BlobMissing, HoldfastError, PayloadTooLarge, StoreError
from ..failure import Failure, shorten
from ..model.diagnosis import BlobReferences
from ..model.job import NewJob, Settlement
from .database import Connection, SharedDatabase
from .private_files import SAFE, as_store_error, create_file, flush, flush_folder
from .statements import Statements, as_json

FOLDER_MODE = 0o700
UNFINISHED = ".unfinished-"
UNFINISHED_SECONDS = 24 * 3600.0


class FileBlobs:
    """Stores each blob as a file. The folder is created with the first blob."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._flushed: set[Path] = set()  # folders whose directory entries were flushed to disk

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _as_store_error(self.folder):
            self._make_folders(path.parent)
            if not self._has_intact(path, data):
                self._write(path, data)
            # Flush even if the file was there: another process may have written it and not flushed the folder yet.
            flush_folder(path.parent)

    def get(self, name: str) -> bytes:
        path = self._path(name)
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(
                f"{path} does not exist: restore it from a backup, or enqueue the job with its payload again"
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BlobDamaged(f"{path} is a symbolic link, which Holdfast never creates") from None
            raise BlobError(f"{path} cannot be read: {error.strerror}. Check its permissions and the disk") from error

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _as_store_error(self.folder), suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()

    def has(self, name: str) -> bool:
        with suppress(OSError):
            return stat.S_ISREG(self._path(name).lstat().st_mode)
        return False

    @property
    def partitions(self) -> int:
        """0 before the folder exists: most programs never need one, and each worker checks at its start."""
        return 256 if self.folder.is_dir() else 0

    def older_than(self, seconds: float, partition: int) -> Iterator[str]:
        now = time.time()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder / f"{partition:02x}") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    age = now - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.startswith(UNFINISHED):
                        if age > UNFINISHED_SECONDS:  # its writer must have died
                            os.unlink(entry.path)  # noqa: PTH108  DirEntry.path is a str
                    elif is_name(entry.name) and age > seconds:
                        yield entry.name

    def _path(self, name: str) -> Path:
        return self.folder / require_name(name)[:2] / name

    def _make_folders(self, folder: Path) -> None:
        if folder in self._flushed and folder.is_dir():
            return
        for one in (self.folder, folder):
            with suppress(FileExistsError):
                one.mkdir(FOLDER_MODE)
                if stat.S_IMODE(one.stat().st_mode) & 0o777 != FOLDER_MODE:  # a umask that denies access to the owner
                    one.chmod(FOLDER_MODE)
            flush_folder(one.parent)
        self._flushed.add(folder)

    def _has_intact(self, path: Path, data: bytes) -> bool:
        """Return whether the file exists with this content, and update its modification time if so.

        A damaged file is thereby written again.
        """
        try:
            if path.lstat().st_size != len(data) or _read(path) != data:
                return False
            os.utime(path)
        except (OSError, BlobDamaged):
            return False
        return True

    def _write(self, path: Path, data: bytes) -> None:
        unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
        try:
            file = create_file(unfinished, os.O_WRONLY)
            try:
                _write_all(file, data)
                flush(file)
            finally:
                os.close(file)
            os.replace(unfinished, path)  # noqa: PTH105  tests watch the order of these calls
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | SAFE)  # only regular files that Holdfast wrote are read
    with open(file, "rb") as opened:  # noqa: PTH123  opens a descriptor
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise BlobDamaged(f"{path} must be a regular file, as Holdfast made it: restore it from a backup")
        if found.st_size > MAX_BYTES:
            raise BlobDamaged(f"{path} must have at most {MAX_BYTES:,} bytes, got {found.st_size:,}")
        return opened.read(MAX_BYTES + 1)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


@contextmanager
def _as_store_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"the folder of large payloads and results, {folder},"
        raise as_store_error(error, what, BlobError) from error


class CheckedBlobs:
    """A blob store whose blobs are named by their SHA-256 and verified when they are read.

    large_bytes: larger values are offloaded to the blob store. None turns that off, and large values are refused.
    """

    def __init__(self, blobs: BlobStore, large_bytes: int | None) -> None:
        self._blobs, self._is_enabled = blobs, large_bytes is not None
        self._limit = LARGEST_INLINE_BYTES if large_bytes is None else large_bytes
        self.always_small = self._limit // 4  # characters: UTF-8 has at most 4 bytes for each

    @property
    def kind(self) -> str:
        """The class name of the blob store. A store of another class would not find its blobs."""
        return type(self._blobs).__qualname__

    @property
    def listable(self) -> ListableBlobStore | None:
        """The blob store, if it can list its blobs."""
        return self._blobs if isinstance(self._blobs, ListableBlobStore) else None

    def is_large(self, text: str) -> bool:
        return len(text) > self.always_small and _bytes_of(text) > self._limit

    def require_enabled(self, size: int) -> None:
        if not self._is_enabled:
            raise PayloadTooLarge(
                f"the payload must have at most {self._limit:,} bytes with blob_bytes=None, got {size:,}: "
                "store the data elsewhere and pass a reference"
            )

    def put(self, data: bytes) -> str:
        """Store the data. Returns its name."""
        name = name_of(data)
        with _as_blob_error("could not store a payload or result"):
            self._blobs.put(name, data)
        return name

    def get(self, name: Any) -> bytes:
        """Return the data. Raises BlobMissing or BlobDamaged."""
        require_name(name)
        with _as_blob_error("could not read a payload or result"):
            try:
                data: Any = self._blobs.get(name)
            except HoldfastError:
                raise
            except (LookupError, FileNotFoundError) as error:
                raise BlobMissing(f"{self.kind} does not have {name}: {shorten(repr(error))}") from error
        if not isinstance(data, bytes) or len(data) > MAX_BYTES or name_of(data) != name:
            raise BlobDamaged(
                f"{self.kind} returned other data for {name} than was stored: restore it from a backup, or enqueue "
                "the job with its payload again"
            )
        return data

    def has(self, name: str) -> bool:
        if self.listable is not None:
            return self.listable.has(name)
        try:
            self.get(name)
        except BlobMissing:
            return False
        return True

    def delete(self, name: Any) -> None:
        if is_name(name):
            with _as_blob_error("could not delete a blob"):
                self._blobs.delete(name)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@contextmanager
def _as_blob_error(problem: str) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # the user's own blob store
        raise BlobError(f"the blob store {problem}: {shorten(repr(error))}") from error


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
        after: str | bytes = ""
        while rows := connection.execute(statement, (after, PAGE)).fetchall():
            for name, job_id in rows:
                yield BlobReference(name, job_id, "payload" if is_payload else "result")
            before, after = after, rows[-1][0]
            if not _is_later(after, before):  # a damaged name, which was read as another text: it would come again
                break


def _is_later(name: str | bytes, other: str | bytes) -> bool:
    """Compare as SQLite does: by code points, and bytes come after all texts."""
    return (isinstance(name, bytes), name) > (isinstance(other, bytes), other)


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
        sees_deletions = self._db.blob_locks.hold_blob(connection, name)
        is_marked = connection.execute(self._sql.is_unused_blob, (name,)).fetchone() is not None
        if sees_deletions and not is_marked:
            return False
        if not self.store.has(name):  # its row stays: other processes may be about to refer to it
            return True
        if is_marked:
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
        """Returns how many names were dealt with, and how many blobs were deleted."""
        until, scanned, deleted = time.monotonic() + MAX_LOCK_SECONDS, 0, 0
        for (name,) in connection.execute(self._sql.unused_blobs, (most,)).fetchall():
            if not is_name(name):  # damaged: read as text, it may be another name
                scanned += 1
                connection.execute(self._sql.forget_damaged_names)
                continue
            if not self._db.blob_locks.lock_blob(connection, name):
                continue  # a transaction that is open may refer to it
            scanned += 1
            (is_used,) = connection.execute(self._sql.is_blob_in_use, (name,)).fetchone()
            if is_used:
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
