"""Blobs in a folder of files, and the checks around any blob store: what is large, names, and content hashes."""

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..blobs import LARGEST_INLINE_BYTES, BlobStore, ListableBlobStore, is_name, name_of, require_name
from ..codec import MAX_BYTES
from ..errors import BlobDamaged, BlobError, BlobMissing, HoldfastError, PayloadTooLarge
from ..failure import shorten
from .private_files import SAFE, as_store_error, create_file, flush, flush_folder

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
            raise BlobDamaged(f"{path} is not a regular file, and Holdfast creates only regular files")
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
