"""Liveness of workers by kernel lock: a worker locks one byte of a file beside the database while it lives.

When its process ends, for whatever reason, the kernel releases the lock at once. A POSIX lock is not inherited across
a fork, so a child that outlives its parent does not keep it. But it is released when the process closes *any*
descriptor of the file. So a process has one descriptor per lock file, shared by all of its workers.

`store/workers.py` asks which locks are free, and gives the jobs of dead workers back.
"""

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ....errors import CannotOpen
from ....model.worker import WorkerState
from ...private_files import as_store_error, open_or_create
from ...processes import Slot, state_of_process

HIGHEST_SLOT = 2**62


class LockFile:
    """The only descriptor that this process has of the lock file."""

    def __init__(self, database: Path) -> None:
        self._database, self._path = database, lock_path(database)
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._held: set[int] = set()

    def acquire(self) -> Slot:
        """Lock a byte. It is chosen at random from 2**62, so processes need not coordinate."""
        with self._lock, self._typed_errors():
            descriptor = self._open_current()
            number = int.from_bytes(os.urandom(8)) % HIGHEST_SLOT
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            self._held.add(number)
            return Slot(number, os.fstat(descriptor).st_ino)

    def release(self, slot: Slot) -> None:
        with self._lock:
            self._held.discard(slot.number)
            if self._descriptor is not None and not self._held:
                os.close(self._descriptor)  # inotify reports this to other processes
                self._descriptor = None
            elif self._descriptor is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, slot.number)

    def is_free(self, slot: Slot) -> bool:
        """Return whether the process that locked the slot has ended. False if unknown: the file was replaced."""
        if not 0 <= slot.number < HIGHEST_SLOT:  # after a restart of the machine, or not a number of ours
            return True
        with self._lock:
            if slot.number in self._held:
                return False
            try:
                descriptor = self._open_current()
            except OSError:
                return False
            if os.fstat(descriptor).st_ino != slot.place:
                return False
            try:
                # Shared, so that two processes that check at the same time do not see each other as the owner.
                fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, slot.number)
            except OSError:
                return False
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, slot.number)
            return True

    def is_current(self, slot: Slot) -> bool:
        """Return whether the slot belongs to the file that exists now."""
        return self._current_inode() == slot.place

    def move_to_current_file(self, slot: Slot) -> Slot:
        """Lock the slot again in the file that exists now, if the old file was removed or replaced."""
        with self._lock, self._typed_errors():
            if self._descriptor is None or self._current_inode() != os.fstat(self._descriptor).st_ino:
                new = self._open()
                try:
                    for number in self._held:
                        fcntl.lockf(new, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                except OSError:
                    os.close(new)
                    raise
                if self._descriptor is not None:
                    os.close(self._descriptor)
                self._descriptor = new
            return Slot(slot.number, os.fstat(self._descriptor).st_ino)

    def after_fork_in_child(self) -> None:
        """Close the descriptor. The child holds no locks, and closing does not affect those of the parent."""
        self._lock = threading.Lock()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._held = None, set()

    def _open_current(self) -> int:
        current = self._descriptor
        if current is not None and not self._held and self._current_inode() != os.fstat(current).st_ino:
            self._descriptor = None
            os.close(current)
        if self._descriptor is None:
            self._descriptor = self._open()
        return self._descriptor

    def _open(self) -> int:
        # With the permissions of the database, as SQLite does for -wal and -shm: other users may share it.
        return open_or_create(self._path, stat.S_IMODE(self._database.stat().st_mode) & 0o666)[0]

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise as_store_error(error, f"the lock file of workers, {self._path},", CannotOpen) from error

    def _current_inode(self) -> int | None:
        with contextlib.suppress(OSError):
            return self._path.lstat().st_ino
        return None


_files: dict[Path, LockFile] = {}
_opening = threading.Lock()


def lock_path(database: Path) -> Path:
    return Path(f"{database}-workers")


def lock_file(database: Path) -> LockFile:
    """Return the lock file of this database, which the whole process shares."""
    path = database.resolve()
    with _opening:
        return _files.setdefault(path, LockFile(path))


class FileLocks:
    """Implements ProcessLocks for one database."""

    def __init__(self, database: Path, watch: Callable[[Path], None] = lambda _: None) -> None:
        """watch: notices when a process closes this file."""
        self._database, self._watch = database, watch

    def acquire(self) -> Slot:
        return self._file().acquire()

    def release(self, slot: Slot) -> None:
        self._file().release(slot)

    def is_free(self, slot: Slot) -> bool:
        return self._file().is_free(slot)

    def is_held(self, slot: Slot) -> bool:
        file = self._file()
        return not file.is_free(slot) and file.is_current(slot)

    def renewed(self, slot: Slot) -> Slot:
        file = self._file()
        if file.is_current(slot):
            return slot
        slot = file.move_to_current_file(slot)  # it was deleted, so other processes could not see the lock
        self.watch()
        return slot

    def state(self, slot: Slot, pid: int, host: str) -> WorkerState:
        """Return whether the process of a worker lives, by its lock. Never creates the lock file."""
        if slot.number >= 0 and not lock_path(self._database.resolve()).exists():
            return "unknown"
        file = self._file()
        if file.is_free(slot):
            return "lost"
        return state_of_process(pid, host) if file.is_current(slot) else "unknown"

    def watch(self) -> None:
        self._watch(lock_path(self._database))

    def _file(self) -> LockFile:
        return lock_file(self._database)


def _after_fork_in_child() -> None:
    global _opening  # noqa: PLW0603  another thread may have held it during the fork
    _opening = threading.Lock()
    for file in _files.values():
        file.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
