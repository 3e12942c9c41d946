"""Between a store and what keeps its blobs: it says what is large, names it, and trusts nothing that comes back."""

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..blobs import LARGEST_INLINE_BYTES, BlobStore, ListedBlobs, is_name, name_of, require_name
from ..codec import MAX_BYTES
from ..errors import BlobDamaged, BlobError, BlobMissing, DiskFull, HoldfastError, PayloadTooLarge, ReadOnlyDatabase
from ..failure import shorten

FOLDER_MODE, FILE_MODE = 0o700, 0o600
UNFINISHED = ".unfinished-"
UNFINISHED_SECONDS = 24 * 3600.0

# A link is not followed, and a pipe is not waited for: only what Holdfast put there is read.
READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class FileBlobs:
    """The folder is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: set[Path] = set()  # folders whose own names are on the disk

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _as_store_error(self.folder):
            self._make_folders(path.parent)
            if not self._is_there(path, data):
                self._write(path, data)
            # By now it may be another process that has put it there, and has not come so far.
            _flush_folder(path.parent)

    def get(self, name: str) -> bytes:
        path = self._path(name)
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(
                f"{path} is gone: restore it from a backup, or run the job with its payload again"
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BlobDamaged(f"{path} is a link, and Holdfast makes none") from None
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
    def places(self) -> int:
        """None before there is a folder: most never need one, and each worker that starts looks."""
        return 256 if self.folder.is_dir() else 0

    def unchanged_for(self, seconds: float, place: int) -> Iterator[str]:
        now = time.time()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder / f"{place:02x}") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    age = now - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.startswith(UNFINISHED):
                        if age > UNFINISHED_SECONDS:  # whoever wrote it is gone
                            os.unlink(entry.path)  # noqa: PTH108  it is no Path
                    elif is_name(entry.name) and age > seconds:
                        yield entry.name

    def _path(self, name: str) -> Path:
        return self.folder / require_name(name)[:2] / name

    def _make_folders(self, folder: Path) -> None:
        if folder in self._made and folder.is_dir():
            return
        for one in (self.folder, folder):
            with suppress(FileExistsError):
                one.mkdir(FOLDER_MODE)
                if stat.S_IMODE(one.stat().st_mode) & 0o777 != FOLDER_MODE:  # by a umask that keeps its owner out
                    one.chmod(FOLDER_MODE)
            _flush_folder(one.parent)
        self._made.add(folder)

    def _is_there(self, path: Path, data: bytes) -> bool:
        """And whole: whoever puts it again mends it. If so, it counts as new."""
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
            file = os.open(unfinished, WRITE, FILE_MODE)
            try:
                _write_all(file, data)
                _flush(file)
            finally:
                os.close(file)
            os.replace(unfinished, path)  # noqa: PTH105  tests watch the order of these calls
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise


def _read(path: Path) -> bytes:
    file = os.open(path, READ)
    with open(file, "rb") as opened:  # noqa: PTH123  by its descriptor
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise BlobDamaged(f"{path} is no file, and Holdfast makes nothing else")
        if found.st_size > MAX_BYTES:
            raise BlobDamaged(f"{path} has {found.st_size:,} bytes, and none has more than {MAX_BYTES:,}")
        return opened.read(MAX_BYTES + 1)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _flush(file: int) -> None:
    if sys.platform == "darwin":  # where fsync leaves it in the cache of the disk
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def _flush_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _flush(opened)
    finally:
        os.close(opened)


@contextmanager
def _as_store_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space is left for a large payload or result in {folder}: free some space") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ReadOnlyDatabase(
                f"{folder}, where large payloads and results are kept, cannot be written: check its permissions and "
                "the mount"
            ) from error
        raise BlobError(
            f"{folder}, where large payloads and results are kept, cannot be used: {error.strerror}. Check the disk"
        ) from error


class Vault:
    """large_bytes: what has more is put into the blob store; None: nothing is."""

    def __init__(self, blobs: BlobStore, large_bytes: int | None) -> None:
        self._blobs, self._is_on = blobs, large_bytes is not None
        self._limit = LARGEST_INLINE_BYTES if large_bytes is None else large_bytes
        self.surely_small = self._limit // 4  # characters, however many bytes each has

    @property
    def kind(self) -> str:
        """Which one it is: another kind would not find what this one has."""
        return type(self._blobs).__qualname__

    @property
    def listed(self) -> ListedBlobs | None:
        """The same, if it can say what it has."""
        return self._blobs if isinstance(self._blobs, ListedBlobs) else None

    def is_large(self, text: str) -> bool:
        return len(text) > self.surely_small and _bytes_of(text) > self._limit

    def require_on(self, size: int) -> None:
        if not self._is_on:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes and may have {self._limit:,} where blob_bytes=None: store it "
                "elsewhere and pass a reference"
            )

    def put(self, data: bytes) -> str:
        """Returns its name."""
        name = name_of(data)
        with _as_blob_error("could not keep a payload or result"):
            self._blobs.put(name, data)
        return name

    def get(self, name: Any) -> bytes:
        """What was put, or BlobMissing, or BlobDamaged."""
        require_name(name)
        with _as_blob_error("could not give back a payload or result"):
            try:
                data: Any = self._blobs.get(name)
            except HoldfastError:
                raise
            except (LookupError, FileNotFoundError) as error:
                raise BlobMissing(f"{self.kind} has no {name} any more: {shorten(repr(error))}") from error
        if not isinstance(data, bytes) or len(data) > MAX_BYTES or name_of(data) != name:
            raise BlobDamaged(
                f"what {self.kind} has as {name} is not what was put there: restore it from a backup, or run the job "
                "with its payload again"
            )
        return data

    def has(self, name: str) -> bool:
        if self.listed is not None:
            return self.listed.has(name)
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
def _as_blob_error(what: str) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # the user's own blob store
        raise BlobError(f"the blob store {what}: {shorten(repr(error))}") from error
