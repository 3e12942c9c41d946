"""The database file: where it may be, how it is created, whether it is still in place, free space on its disk."""

import ctypes
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ....errors import (
    CannotOpen,
    CannotVacuum,
    DatabaseMissing,
    DiskFull,
    InvalidInput,
    ReadOnlyDatabase,
    UnsupportedFileSystem,
)
from ...private_files import as_store_error, create_file, flush_folder
from ..migrate import DEFAULT_PREFIX

# statfs(2) magic numbers of file systems on which SQLite's locks or shared memory are unreliable.
UNSAFE_FILE_SYSTEMS = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x01021997: "9p",
    0x564C: "NCP",
    0x5346414F: "AFS",
    0x73757245: "Coda",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SPACE_CHECK_SECONDS = 0.05
FILE_CHECK_SECONDS = 0.05
WRITTEN_PER_BYTE = 3
WRITTEN_PER_JOB = 16 * 1024
# For statx(2)
_AT_FDCWD = -100
_INODE_AND_SIZE = 0x100 | 0x200  # STATX_INO | STATX_SIZE
_STRUCT_BYTES = 256
_INODE_AND_SIZE_AT = struct.Struct("=32xQQ")
_MAJOR_AND_MINOR_AT = struct.Struct("=136xII")
_INODE_AT, _DEVICE_AT = slice(32, 40), slice(136, 144)


def database_path(url: str) -> Path:
    """Return the path that a path or an SQLite URL names. Messages never show the URL, which may hold a password."""
    text = url
    if text.startswith("sqlite://"):
        if not text.startswith("sqlite:///") or "?" in text:
            raise InvalidInput("not a valid SQLite URL: write sqlite:///app.db or sqlite:////srv/app.db")
        text = text.removeprefix("sqlite:///")
    elif _SCHEME.match(text):
        raise InvalidInput(
            f"a URL that begins with {text.partition('://')[0]}:// is not supported: pass a path of an SQLite "
            "file, or a URL that begins with postgresql://"
        )
    if text == ":memory:" or not text or text.startswith("file:"):
        raise InvalidInput(f"the database must be a file, got {text!r}: pass a path such as 'app.db'")
    if "\0" in text:
        raise InvalidInput("a path must not contain a NUL character")
    try:
        text.encode()
        # SQLite keeps the WAL beside the file itself, not beside a link to it.
        resolved = Path(text).resolve()
        if os.path.islink(resolved):  # noqa: PTH114  is_symlink raises where the folder cannot be entered
            raise OSError("it is a symbolic link to itself")
        return resolved
    except (UnicodeEncodeError, OSError, RuntimeError) as error:
        raise CannotOpen(f"this path cannot be used: {error}") from None


def blob_folder(path: Path, prefix: str) -> Path:
    """Return the folder beside the database. Each prefix has its own, because each deletes its unused blobs."""
    return Path(f"{path}-{'' if prefix == DEFAULT_PREFIX else prefix}blobs")


def prepare_file(path: Path, create: bool) -> None:
    """Check that a database can be here. If the file does not exist, create it with private permissions."""
    with _os_errors_translated(path):
        _require_location(path, create)
        _require_writable(path)


def require_file(path: Path) -> None:
    """Check that the database file exists, for callers that only read it."""
    with _os_errors_translated(path):
        _require_location(path, create=False)


@contextmanager
def _os_errors_translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotOpen(
            f"{path.name[:100]} cannot be opened: {error.strerror}. Check the path and its permissions"
        ) from error


def _require_location(path: Path, create: bool) -> None:
    if path.is_dir():
        raise CannotOpen(f"{path} is a folder: pass the path of a file in it, such as {path / 'app.db'}")
    folder = path.parent
    if not folder.is_dir():
        raise CannotOpen(f"the folder {folder} does not exist: create it first")
    refuse_unsafe_file_system(folder)
    if not path.exists():
        if not create:
            raise DatabaseMissing(
                f"{path} does not exist: check the path, or create it with 'holdfast migrate --create' or "
                "migrate=True"
            )
        _create(path)
    elif not path.is_file():
        raise CannotOpen(f"{path} is not a regular file: pass the path of a database file")
    for file in (Path(f"{path}-wal"), Path(f"{path}-shm")):  # SQLite would follow a link
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise CannotOpen(f"{file} is not a regular file, and SQLite creates only regular files: remove it")


def _require_writable(path: Path) -> None:
    for target in (path, path.parent):
        if not os.access(target, os.W_OK):
            raise ReadOnlyDatabase(
                f"{target} cannot be written: SQLite needs to write both the file and its folder (for -wal and "
                "-shm). Check the permissions and the mount"
            )


def _create(path: Path) -> None:
    # Only a new file: closing a descriptor of an existing one would drop the locks that this process has on it.
    try:
        os.close(create_file(path))
        flush_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise as_store_error(error, str(path), CannotOpen) from error


def refuse_unsafe_file_system(folder: Path) -> None:
    name = UNSAFE_FILE_SYSTEMS.get(file_system_type(folder))
    if name is not None:
        raise UnsupportedFileSystem(
            f"{folder} is on {name}, where SQLite's locks do not hold and commits can be lost: "
            "use a local disk, or PostgreSQL for several machines"
        )


def file_system_type(folder: Path) -> int:
    """Return the magic number of the file system, or 0 if unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    # struct statfs begins with f_type, one machine word; os.statvfs does not have it.
    buffer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), buffer) != 0:
        return 0
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def require_space_for_vacuum(path: Path, size: int) -> None:
    """Raise unless there is free space to rewrite this many bytes: to a temporary file first, then to the WAL."""
    temporary = _temporary_folder()
    needed = dict.fromkeys((path.parent, temporary), size)
    if os.stat(temporary).st_dev == os.stat(path.parent).st_dev:  # noqa: PTH116
        needed = {path.parent: 2 * size}
    for folder, bytes_needed in needed.items():
        usage = os.statvfs(folder)
        free = usage.f_bavail * usage.f_frsize
        if free < bytes_needed:
            raise CannotVacuum(
                f"rewriting {size:,} bytes needs {bytes_needed:,} bytes of free space below {folder}, got {free:,}: "
                "free some space, or shrink the file in steps, without --full"
            )


def _temporary_folder() -> Path:
    """Return where SQLite puts temporary files."""
    candidates = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp")
    for name in candidates:
        if name and os.access(name, os.W_OK | os.X_OK):
            return Path(name)
    return Path()


def file_facts(file: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """Return the inode, the device and the size of a file, None if there is none of this name.

    Since Linux 6.13, a file system notes that the times of a file were asked for, and gives the next write a time of
    its own. So each flush of the log would also write the inode. In two runs of the benchmark, a send at FULL took
    185 µs with `os.stat`, which always asks for the times, and 156 µs with statx(2), which asks for what its mask
    names.
    """
    if (statx := _statx()) is not None:
        buffer = ctypes.create_string_buffer(_STRUCT_BYTES)
        if statx(_AT_FDCWD, os.fsencode(file), 0, _INODE_AND_SIZE, buffer) == 0:
            inode, size = _INODE_AND_SIZE_AT.unpack_from(buffer)
            return inode, os.makedev(*_MAJOR_AND_MINOR_AT.unpack_from(buffer)), size
    try:  # there is no such file, no such function, or the system refuses it
        found = os.stat(file)  # noqa: PTH116  pathlib is slower
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_dev, found.st_size


def file_size(file: str | os.PathLike[str]) -> int:
    """Return the size in bytes, 0 if the file does not exist."""
    facts = file_facts(file)
    return 0 if facts is None else facts[2]


@cache
def _statx() -> Any:
    """Return the function of the C library, None if it has none."""
    try:
        return ctypes.CDLL(None).statx
    except (AttributeError, OSError, TypeError):
        return None


class OpenFiles:
    """The database file and its log, as they were when they were opened: another file may get the name of either.

    SQLite would continue to write to files that have no name any more.
    """

    def __init__(self, path: Path) -> None:
        self._names = os.fspath(path), f"{path}-wal"
        # Made once: this is asked after each flushed commit. Threads may share the buffers, since all read the same.
        self._arguments: list[tuple[Any, ...]] = [
            (_AT_FDCWD, os.fsencode(name), 0, _INODE_AND_SIZE, ctypes.create_string_buffer(_STRUCT_BYTES))
            for name in self._names
        ]
        self._first, self._first_answers = self._look(), self._answers()
        self._checked_until = 0.0

    def check(self) -> bool:
        """Return whether both still have their names."""
        self._checked_until = time.monotonic() + FILE_CHECK_SECONDS
        if self._first_answers is not None and self._answers() == self._first_answers:
            return True
        try:
            return self._look() == self._first
        except OSError:  # unknown: the disk, or the permissions of a folder
            return True

    def are_in_place(self) -> bool:
        """As `check`, but looks only after a while: for what happens often."""
        return time.monotonic() < self._checked_until or self.check()

    def _look(self) -> list[tuple[int, int] | None]:
        return [facts and facts[:2] for facts in map(file_facts, self._names)]

    def _answers(self) -> list[bytes] | None:
        """Return inodes and devices as statx(2) gives them. None: it does not give both."""
        if (statx := _statx()) is None:
            return None
        found: list[bytes] = []
        for arguments in self._arguments:
            if statx(*arguments) != 0:
                return None
            found += arguments[-1][_INODE_AT], arguments[-1][_DEVICE_AT]
        return found


class FreeSpace:
    """Refuses new jobs while the disk is nearly full, so that running jobs can still settle."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder, self._reserve = folder, reserve_bytes
        self._checked_until, self._allowance = 0.0, 0

    def require(self, size: int, written_per_byte: int = WRITTEN_PER_BYTE) -> None:
        """Raise unless there is free space for this many bytes of payload above the reserve."""
        self._allowance -= written_per_byte * size + WRITTEN_PER_JOB
        if self._allowance < 0 or time.monotonic() >= self._checked_until:
            self._check(written_per_byte * size)

    def _check(self, written: int) -> None:
        try:
            usage = os.statvfs(self._folder)
        except OSError as error:
            raise CannotOpen(f"the folder {self._folder} cannot be read: {error.strerror}") from error
        free = usage.f_bavail * usage.f_frsize
        # A payload is written to the WAL and, at a checkpoint, to the database.
        room = free - self._reserve - (written if self._reserve else 0)
        if room < 0:
            raise DiskFull(
                f"{free:,} bytes are free below {self._folder}, and a reserve of {self._reserve:,} is kept so that "
                "running jobs can settle: free some space, or pass a smaller min_free_bytes"
            )
        self._checked_until, self._allowance = time.monotonic() + SPACE_CHECK_SECONDS, room // 4
