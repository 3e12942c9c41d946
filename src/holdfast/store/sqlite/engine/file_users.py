"""Find out which processes have the database file open, which locks they hold, and what surrounds the file.

Everything is read from /proc, so on systems other than Linux no process is found. decisions.md says why not psutil.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from ....model.diagnosis import BlobFolder, FileEnvironment, FileKind, FileUser
from .database_file import UNSAFE_FILE_SYSTEMS, file_size, file_system_type
from .failed_flush import mark_path

T = TypeVar("T")
FILE_SYSTEMS = {
    0xEF53: "ext4",
    0x58465342: "XFS",
    0x9123683E: "Btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0x2FC12FC1: "ZFS",
    0xF2F52010: "F2FS",
    0xCA451A4E: "bcachefs",
    0x4D44: "FAT",
    0x2011BAB0: "exFAT",
}

# Bytes of the -shm file that SQLite locks: https://sqlite.org/walformat.html
WRITE_LOCK = 120
READ_LOCKS = range(123, 128)
OPEN_LOCK = 128  # shared by all connections
COMMAND_LENGTH = 60
SECRET = re.compile(r"(?<=://)\S*@|(?<=password=)[^\s&]+", re.IGNORECASE)  # role and password, in a URL or a DSN
OBSERVATION_SECONDS, PAUSE_SECONDS = 0.3, 0.005


# --- locks ---


class LockObserver:
    """Finds the processes that hold the same lock in every observation; others read or commit for a moment only."""

    def __init__(self, path: Path) -> None:
        self._path, self._locks = path, locks_on(path)

    def observe(self) -> None:
        now = locks_on(self._path)
        self._locks = {pid: both for pid, held in self._locks.items() if (both := held & now.get(pid, set()))}

    def observe_for(self, seconds: float = OBSERVATION_SECONDS) -> None:
        """Observe repeatedly until the time is over or no process is left."""
        until = time.monotonic() + seconds
        self.observe()
        while (self.readers or self.writers) and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
            self.observe()

    @property
    def readers(self) -> list[int]:
        return sorted(pid for pid, held in self._locks.items() if not held.isdisjoint(READ_LOCKS))

    @property
    def writers(self) -> list[int]:
        return sorted(pid for pid, held in self._locks.items() if WRITE_LOCK in held)


def locks_on(path: Path) -> dict[int, set[int]]:
    """Return the locked bytes of the -shm file by process id."""
    held: dict[int, set[int]] = {}
    try:
        shared = _shared_memory(path).stat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return held
    for line in lines:
        parts = line.split()
        # 1: POSIX ADVISORY READ 5084 fe:00:2663437 124 124; a process that waits has an arrow in the second place.
        if len(parts) != 8 or parts[1] != "POSIX" or parts[7] == "EOF":
            continue
        pid, (device, _, inode) = int(parts[4]), parts[5].rpartition(":")
        if pid <= 0 or inode != str(shared.st_ino):
            continue
        # Btrfs reports another device than stat does: then the process must have the file open.
        same_device = device == f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}"
        if same_device or str(path) in _open_files(pid):
            held.setdefault(pid, set()).update(range(int(parts[6]), min(int(parts[7]), OPEN_LOCK) + 1))
    return held


# --- processes ---


def users_of(path: Path) -> list[int]:
    """Return the ids of other processes that have the file open, or locked."""
    return sorted({*_processes_with(path), *locks_on(path)} - {os.getpid()})


def _file_users(path: Path, locks: LockObserver) -> Iterator[FileUser]:
    locks.observe_for()
    readers, writers, processes = locks.readers, locks.writers, _processes_with(path)
    for pid in sorted({*processes, *locks_on(path)}):
        if pid != os.getpid() or pid in readers:
            is_deleted = processes.get(pid, False)
            yield FileUser(pid, command_of(pid), is_deleted, _uses_holdfast(pid), pid in readers, pid in writers)


def _processes_with(path: Path) -> dict[int, bool]:
    """Return the processes that have the file open and are visible to this user, and whether only a deleted one."""
    names = {str(path): False, f"{path} (deleted)": True}
    pids = [int(entry) for entry in _list("/proc") if entry.isdigit()]
    found = {pid: {names[file] for file in _open_files(pid) if file in names} for pid in pids}
    return {pid: False not in deleted for pid, deleted in found.items() if deleted}


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in _list(folder):
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115  there are thousands of them
        except OSError:
            continue


def _list(folder: str) -> list[str]:
    """Return no names on other systems, of another user's process, or of one that has ended meanwhile."""
    return _or(list[str](), lambda: os.listdir(folder))  # noqa: PTH208


def command_of(pid: int) -> str:
    """Return the command line of a process, shortened, without roles and passwords of URLs."""
    words = _or(b"", Path(f"/proc/{pid}/cmdline").read_bytes).split(b"\0")
    text = SECRET.sub("", b" ".join(word for word in words if word).decode(errors="replace"))
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 1]}…"


def _uses_holdfast(pid: int) -> bool:
    """Guess by the command, and by a compiled module that Holdfast depends on."""
    return "holdfast" in command_of(pid) or b"/msgspec/_core" in _or(b"", Path(f"/proc/{pid}/maps").read_bytes)


# --- the file ---


def read_file_environment(path: Path, blobs: Path, min_free_bytes: int, locks: LockObserver) -> FileEnvironment:
    """locks: created some moments ago, before this process began to read."""
    kind, error = _kind(path)
    is_file, folder = kind == "file", path.parent
    magic = file_system_type(folder)
    files = [path, _log(path), _shared_memory(path)] if is_file else []
    not_writable = [file for file in (*files, folder) if file.exists() and not os.access(file, os.W_OK)]
    return FileEnvironment(
        path=str(path),
        kind=kind,
        error=error,
        modes={file.name: mode for file in files if (mode := _or(None, partial(_mode, file))) is not None},
        file_system=UNSAFE_FILE_SYSTEMS.get(magic) or FILE_SYSTEMS.get(magic) or (hex(magic) if magic else ""),
        unsafe=magic in UNSAFE_FILE_SYSTEMS,
        free_bytes=_or(0, lambda: _free_bytes(folder)),
        min_free_bytes=min_free_bytes,
        database_bytes=_or(0, lambda: file_size(path)),
        log_bytes=_or(0, lambda: file_size(_log(path))),
        unflushed=_or(False, mark_path(path).exists),
        not_writable=[str(file) for file in not_writable] if is_file else [],
        users=list(_file_users(path, locks)) if kind in ("file", "missing") else [],
        pid=os.getpid(),
        blob_folder=_or(None, lambda: _blob_folder(blobs, path)) if is_file else None,
    )


def has_log(path: Path) -> bool:
    """Return whether the file has a log or a journal: it is open, or a process that had it open crashed."""
    return _log(path).exists() or Path(f"{path}-journal").exists()


def _kind(path: Path) -> tuple[FileKind, str]:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ("missing" if path.parent.is_dir() else "no folder"), ""
    except OSError as error:
        return "unreachable", error.strerror or str(error)
    if stat.S_ISREG(mode):
        return "file", ""
    return ("folder" if stat.S_ISDIR(mode) else "other"), ""


def _mode(file: Path) -> int | None:
    return stat.S_IMODE(file.stat().st_mode)


def _blob_folder(folder: Path, database: Path) -> BlobFolder:
    found, link = folder.stat(), str(folder.resolve()) if folder.is_symlink() else None
    return BlobFolder(str(folder), stat.S_IMODE(found.st_mode), found.st_uid, database.stat().st_uid, link)


def _free_bytes(folder: Path) -> int:
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize


def _log(path: Path) -> Path:
    return Path(f"{path}-wal")


def _shared_memory(path: Path) -> Path:
    return Path(f"{path}-shm")


def _or(default: T, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError:
        return default
