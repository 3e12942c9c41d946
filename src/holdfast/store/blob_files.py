"""Blobs as files in a folder: `ab/abcdef…`, named after what they hold. The same content is one file."""

import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..blobs import is_name, require_name
from ..codec import MAX_BYTES
from ..errors import BlobDamaged, BlobError, BlobMissing, DiskFull, ReadOnlyDatabase

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
        with _explained(self.folder):
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
        with _explained(self.folder), suppress(FileNotFoundError, NotADirectoryError):
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
def _explained(folder: Path) -> Iterator[None]:
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
