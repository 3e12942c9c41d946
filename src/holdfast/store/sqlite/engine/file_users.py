"""The alarm for a log that cannot be emptied: a reader that stays in one transaction keeps all that came after it."""

import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ....model.diagnosis import BlobFolder, Opener, Surroundings
from .checkpoint import LARGEST_LOG_BYTES, size_of
from .files import UNSAFE_FILE_SYSTEMS, file_system_type

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
OPEN_LOCK = 128  # shared by all who have the database open
COMMAND_LENGTH = 60
DELETED = " (deleted)"
KEEPING_SECONDS, NAP_SECONDS = 0.3, 0.005
Locks = dict[int, set[int]]  # by process, the bytes


class Holders:
    """Who keeps the log from being emptied: those who had the same lock each time that somebody looked. Others read,
    or commit, for a moment only."""

    def __init__(self, path: Path) -> None:
        self._path, self._locks = path, locks_on(path)

    def look(self) -> None:
        now = locks_on(self._path)
        self._locks = {pid: both for pid, held in self._locks.items() if (both := held & now.get(pid, set()))}

    def watch(self, seconds: float = KEEPING_SECONDS) -> None:
        """Look again and again, for as long as somebody is left."""
        until = time.monotonic() + seconds
        self.look()
        while (self.readers or self.writers) and time.monotonic() < until:
            time.sleep(NAP_SECONDS)
            self.look()

    @property
    def readers(self) -> list[int]:
        return sorted(pid for pid, held in self._locks.items() if not held.isdisjoint(READ_LOCKS))

    @property
    def writers(self) -> list[int]:
        return sorted(pid for pid, held in self._locks.items() if WRITE_LOCK in held)


def survey(path: Path, blobs: Path, min_free_bytes: int, holders: Holders) -> Surroundings:
    """holders: as of some moments ago, before this process has begun to read."""
    kind, trouble = _kind(path)
    folder = path.parent
    magic = file_system_type(folder)
    companions = [path, _log(path), _shared(path)] if kind == "file" else []
    modes = {file.name: mode for file in companions if (mode := _mode(file)) is not None}
    openers = list(_openers(path, holders)) if kind in ("file", "missing") else []
    return Surroundings(
        path=str(path),
        kind=kind,
        trouble=trouble,
        modes=modes,
        file_system=UNSAFE_FILE_SYSTEMS.get(magic) or FILE_SYSTEMS.get(magic) or (hex(magic) if magic else ""),
        unsafe=magic in UNSAFE_FILE_SYSTEMS,
        free_bytes=_free(folder),
        min_free_bytes=min_free_bytes,
        database_bytes=_size(path),
        log_bytes=_size(_log(path)),
        not_writable=[str(one) for one in (*companions, folder) if one.exists() and not os.access(one, os.W_OK)]
        if kind == "file"
        else [],
        openers=openers,
        pid=os.getpid(),
        blob_folder=_blob_folder(blobs, path) if kind == "file" else None,
    )


def locks_on(path: Path) -> Locks:
    """Which bytes of the -shm file are locked by whom, as the kernel tells."""
    held: Locks = {}
    try:
        shared = _shared(path).stat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return held
    for line in lines:
        parts = line.split()
        # 1: POSIX ADVISORY READ 5084 fe:00:2663437 124 124; those who wait for it have an arrow in the second place.
        if len(parts) != 8 or parts[1] != "POSIX" or parts[7] == "EOF":
            continue
        pid, (device, _, inode) = int(parts[4]), parts[5].rpartition(":")
        if pid <= 0 or inode != str(shared.st_ino):
            continue
        # Btrfs tells another device than stat does; then the process must have the file, or it is another one.
        if device != f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}" and not _has(pid, path):
            continue
        held.setdefault(pid, set()).update(range(int(parts[6]), min(int(parts[7]), OPEN_LOCK) + 1))
    return held


def _has(pid: int, path: Path) -> bool:
    return str(path) in _links(f"/proc/{pid}/fd")


def has_companion(path: Path) -> bool:
    """Whether somebody has it open, or had it when they died: then there is a log or a journal."""
    return _log(path).exists() or Path(f"{path}-journal").exists()


def openers_of(path: Path) -> list[int]:
    """Other processes than this one."""
    return sorted({*dict(_with_file(path)), *locks_on(path)} - {os.getpid()})


def _openers(path: Path, holders: Holders) -> Iterator[Opener]:
    holders.watch()
    readers, writers = holders.readers, holders.writers
    with_file = dict(_with_file(path))
    for pid in sorted({*with_file, *locks_on(path)}):
        if pid == os.getpid() and pid not in readers:
            continue
        yield Opener(
            pid=pid,
            command=command_of(pid),
            deleted=with_file.get(pid, False),
            has_holdfast=_has_holdfast(pid),
            reads=pid in readers,
            writes=pid in writers,
        )


def _with_file(path: Path) -> Iterator[tuple[int, bool]]:
    """The processes that have it open, as far as this user may see; and whether what they have was deleted since."""
    names = {str(path): False, f"{path}{DELETED}": True}
    for entry in _scan("/proc"):
        if not entry.isdigit():
            continue
        found = {names[target] for target in _links(f"/proc/{entry}/fd") if target in names}
        if found:
            yield int(entry), False not in found


def _links(folder: str) -> Iterator[str]:
    for name in _scan(folder):
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115  there are thousands of them
        except OSError:
            continue


def _scan(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:  # not Linux, another user's, or it has ended since
        return []


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(word for word in words if word).decode(errors="replace")
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 1]}…"


def _has_holdfast(pid: int) -> bool:
    """By its command, or by the compiled module that Holdfast brings along: a good guess, and no more."""
    if "holdfast" in command_of(pid):
        return True
    try:
        return b"/msgspec/_core" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


Kind = Literal["file", "missing", "no folder", "folder", "other", "unreachable"]


def _kind(path: Path) -> tuple[Kind, str]:
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
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None


def _blob_folder(folder: Path, database: Path) -> BlobFolder | None:
    try:
        found, owner = folder.stat(), database.stat().st_uid
        link = str(folder.resolve()) if folder.is_symlink() else None
    except OSError:
        return None
    return BlobFolder(str(folder), stat.S_IMODE(found.st_mode), found.st_uid, owner, link)


def _size(file: Path) -> int:
    try:
        return size_of(file)
    except OSError:
        return 0


def _free(folder: Path) -> int:
    try:
        usage = os.statvfs(folder)
    except OSError:
        return 0
    return usage.f_bavail * usage.f_frsize


def _log(path: Path) -> Path:
    return Path(f"{path}-wal")


def _shared(path: Path) -> Path:
    return Path(f"{path}-shm")


log = logging.getLogger("holdfast.store")
ALARM_BYTES = 4 * LARGEST_LOG_BYTES
AGAIN_SECONDS = 60.0


class LogWatch:
    """Looks at what each checkpoint has achieved. Only the thread that leads the writer calls it."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, Path(f"{path}-wal")
        self._holders: Holders | None = None
        self._quiet_until = 0.0

    def look(self, pages: int, moved: int) -> None:
        """pages: in the log; moved: of these, to the database. Those that a reader still needs are not."""
        size = size_of(self._log)
        if moved >= pages or size <= ALARM_BYTES:
            if self._holders is not None:
                log.info("%s can shrink again", self._log.name)
            self._holders = None
            return
        if self._holders is None:
            self._holders = Holders(self._path)
            return  # who is there at the next checkpoint still, is one that stays
        self._holders.look()
        if not self._holders.readers:
            self._holders = Holders(self._path)
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + AGAIN_SECONDS
            log.warning(
                "%s has %s bytes and cannot shrink: a read transaction is open since it was smaller, %s. "
                "End it: a query whose rows were not all fetched, or a transaction that waits for something",
                self._log.name,
                f"{size:,}",
                in_words(self._holders.readers),
            )


def in_words(readers: list[int]) -> str:
    """Who it may be."""
    if not readers:
        return "in a process that the system does not name"
    return " or ".join(
        "in this very process" if pid == os.getpid() else f"in process {pid} ({command_of(pid) or 'unknown'})"
        for pid in readers
    )
