"""Who is alive, by kernel lock: a worker holds one byte of a file beside the database for as long as it lives.

When its process ends, however that happens, the kernel frees the byte at once. A POSIX lock is not inherited over a
fork, so a child that outlives its parent does not keep it. In return it goes when the process closes *any* descriptor
of the file. So there is one descriptor per process and file, shared by all who need it.
"""

import contextlib
import fcntl
import os
import socket
import threading
from pathlib import Path

from msgspec import Struct

from ....model.worker import Presence

HIGHEST_SLOT = 2**62


class Slot(Struct, frozen=True):
    """A byte of the lock file. The inode tells whether somebody has put another file in its place."""

    number: int
    inode: int


class LockFile:
    """The one descriptor that this process has of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._held: set[int] = set()

    def hold(self) -> Slot:
        """Take a byte of its own, at random: nobody has to agree on who gets which."""
        with self._lock:
            descriptor = self._open_current()
            number = int.from_bytes(os.urandom(8)) % HIGHEST_SLOT
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            self._held.add(number)
            return Slot(number, os.fstat(descriptor).st_ino)

    def let_go(self, slot: Slot) -> None:
        with self._lock:
            self._held.discard(slot.number)
            if self._descriptor is not None and not self._held:
                os.close(self._descriptor)  # peers hear of it
                self._descriptor = None
            elif self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, slot.number)

    def is_free(self, slot: Slot) -> bool:
        """Whether its holder is gone. False also where that cannot be known: the file was replaced."""
        if slot.number < 0:
            return True
        with self._lock:
            if slot.number in self._held:
                return False
            try:
                descriptor = self._open_current()
            except OSError:
                return False
            if os.fstat(descriptor).st_ino != slot.inode:
                return False
            try:
                # Shared: two who look at the same time do not take each other for the holder.
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, slot.number)
            except OSError:
                return False
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, slot.number)
            return True

    def is_current(self, slot: Slot) -> bool:
        """Whether the slot is one of the file that is there now."""
        return self._inode_in_place() == slot.inode

    def hold_visibly(self, slot: Slot) -> Slot:
        """The same slot, but of the file that is there now: somebody may have removed the one it was taken in."""
        with self._lock:
            if self._descriptor is None or self._inode_in_place() != os.fstat(self._descriptor).st_ino:
                old, self._descriptor = self._descriptor, self._open()
                for number in self._held:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                if old is not None:
                    os.close(old)
            return Slot(slot.number, os.fstat(self._descriptor).st_ino)

    def forget_parent(self) -> None:
        """In a forked child: it has none of the locks, and to close the descriptor does not touch its parent's."""
        self._lock = threading.Lock()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._held = None, set()

    def _open_current(self) -> int:
        current = self._descriptor
        if current is not None and not self._held and self._inode_in_place() != os.fstat(current).st_ino:
            os.close(current)
            current = None
        self._descriptor = self._open() if current is None else current
        return self._descriptor

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _inode_in_place(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._path.stat().st_ino
        return None


_files: dict[Path, LockFile] = {}
_opening = threading.Lock()


def lock_path(database: Path) -> Path:
    return Path(f"{database}-workers")


def lock_file(database: Path) -> LockFile:
    """The same one for everybody in this process who uses this database."""
    path = lock_path(database.resolve())
    with _opening:
        return _files.setdefault(path, LockFile(path))


def presence(database: Path, slot: Slot, pid: int, host: str) -> Presence:
    """Tell whether the process of a worker that has not ended is there, by its lock. Creates nothing."""
    if slot.number >= 0 and not lock_path(database.resolve()).exists():
        return "unknown"
    file = lock_file(database)
    if file.is_free(slot):
        return "dead"
    if not file.is_current(slot):
        return "unknown"
    # A process id means something only on its own host.
    return "stopped" if host == socket.gethostname() and is_stopped(pid) else "alive"


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal, as far as the system tells."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib is slower
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _forget_parent() -> None:
    global _opening  # noqa: PLW0603  somebody may have held it during the fork
    _opening = threading.Lock()
    for file in _files.values():
        file.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
