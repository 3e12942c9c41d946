"""The commit watcher: it notices commits by any process without polling the tables.

It has no thread of its own. One of the waiting threads watches for all of them: it sleeps until the file monitor
reports a change, then asks `PRAGMA data_version` whether another connection has committed. So if only one thread
waits, there is no hand-over between the report and that thread. See docs/internals/wake-up.md.
"""

import contextlib
import os
import select
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic

if sys.platform.startswith("linux"):
    from inotify_simple import INotify, flags
RECHECK_SECONDS = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.003, 0.005, 0.01, 0.02, 0.04, *[0.08] * 12)
POLL_SECONDS = 0.01  # without inotify
MAX_SLEEP_SECONDS = 1.0
FALLBACK_SECONDS = 0.05  # between checks by the waiting threads, if the monitor fails
READ_BYTES = 65536
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name, which is 0 for a watched file


class FileMonitor:
    """Sleeps until a watched file changes, another thread interrupts it, or it is time to check again."""

    def __init__(self) -> None:
        self._pipe_read, self._pipe_write = os.pipe()
        os.set_blocking(self._pipe_read, False)
        os.set_blocking(self._pipe_write, False)
        self._poll = select.poll()
        self._poll.register(self._pipe_read, select.POLLIN)
        self._inotify = _open_inotify()
        self._delays = list(RECHECK_SECONDS)
        if self._inotify is not None:
            self._poll.register(self._inotify.fd, select.POLLIN)

    def watch(self, wal: Path, lock_files: list[Path]) -> None:
        """Report writes to the WAL, and lock files that a process closes, also by dying."""
        if self._inotify is not None:
            self._inotify.add_watch(os.fspath(wal), flags.MODIFY)
            for file in lock_files:
                with contextlib.suppress(FileNotFoundError):
                    self._inotify.add_watch(os.fspath(file), flags.CLOSE_WRITE)

    def sleep(self, timeout: float) -> bool:
        """Return True if there was a report or an interrupt: call `drain` before the next check."""
        delay = self._next_delay(timeout)
        if delay < 0.001:  # poll counts in milliseconds
            time.sleep(delay)
            delay = 0
        return bool(self._poll.poll(delay * 1000))

    def drain(self) -> bool:
        """Read all reports. Return whether a lock file was closed, so that a worker may have died."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe_read, READ_BYTES)
        if self._inotify is None:
            return False
        try:
            events = os.read(self._inotify.fd, READ_BYTES)
        except BlockingIOError:
            return False
        self._delays = list(RECHECK_SECONDS)
        return any(mask & flags.CLOSE_WRITE for _, mask, _, _ in _EVENT.iter_unpack(events))

    def interrupt(self) -> None:
        """End `sleep`, from another thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe_write, b".")

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._pipe_read)
        os.close(self._pipe_write)

    def _next_delay(self, timeout: float) -> float:
        if self._inotify is None:
            return min(POLL_SECONDS, timeout)
        return min(self._delays.pop(0) if self._delays else MAX_SLEEP_SECONDS, timeout)


def _open_inotify() -> "INotify | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        inotify = INotify()
    except OSError:  # the user's limit of inotify instances is reached
        return None
    os.set_blocking(inotify.fd, False)
    return inotify


class CommitWatcher:
    """Counts the commits that were seen while a thread waits. Earlier ones show in data_version."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_replaced: whether the file is not the database any more. Then no commit would ever be seen."""
        self._wal, self._connect, self._is_replaced = Path(f"{path}-wal"), connect, is_replaced
        self._lock_files: list[Path] = []
        self._changed = threading.Condition()
        self._count = 0
        self._waiting = 0
        self._is_watched = False  # whether one of the waiting threads watches
        self._closed = False
        self._monitor: FileMonitor | None = None
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self.closed_lock_files = 0
        """How often a process has closed a file given to `watch_lock_file`, also by dying."""

    def count(self) -> int:
        """Return the number of commits seen. Read it before the tables, and pass it to `wait` if there is no work."""
        return self._count

    def notify(self) -> None:
        """Count a commit of this process."""
        if self._waiting:
            self.wake()

    def wait(self, seen: int, timeout: float) -> bool:
        """Wait until there was a commit after `seen` was read. Return False after the timeout."""
        deadline = monotonic() + timeout
        with self._changed:
            self._waiting += 1
            try:
                while self._count == seen and not self._closed:
                    left = deadline - monotonic()
                    if left <= 0:
                        return False
                    if self._is_watched:
                        self._changed.wait(left)
                    else:
                        self._watch_for_all(seen, deadline)
                return True
            finally:
                self._waiting -= 1

    def watch_lock_file(self, file: Path) -> None:
        """Wake waiting threads when a process closes this file, which workers keep open while they live."""
        with self._changed:
            if file not in self._lock_files:
                self._lock_files.append(file)
            if self._monitor is not None:
                self._monitor.watch(self._wal, self._lock_files)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._monitor is not None:
                self._monitor.interrupt()
            self._changed.wait_for(lambda: not self._is_watched)
            self._close_monitor()

    def wake(self) -> None:
        """End all waits, also those that begin with a count from before."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            if self._is_watched and self._monitor is not None:
                self._monitor.interrupt()

    def _watch_for_all(self, seen: int, deadline: float) -> None:
        """Watch for all waiting threads. The caller holds the lock, which is released meanwhile."""
        self._is_watched = True
        try:
            monitor, connection = self._monitor or self._open_monitor(), self._connection or self._open_connection()
            self._changed.release()
            try:
                self._watch(monitor, connection, seen, deadline)
            finally:
                self._changed.acquire()
        except (sqlite3.Error, OSError):  # every waiting thread checks the tables itself when its wait ends
            self._close_monitor()
            self._changed.wait(min(FALLBACK_SECONDS, max(0.0, deadline - monotonic())))
        finally:
            self._is_watched = False
            if self._waiting > 1 or self._closed:
                self._changed.notify_all()  # another thread may have to watch now

    def _watch(self, monitor: FileMonitor, connection: sqlite3.Connection, seen: int, deadline: float) -> None:
        # data_version is asked first: draining the monitor takes longer, and can wait until the next round.
        is_drained = False
        while self._count == seen and not self._closed and (left := deadline - monotonic()) > 0:
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                self._version = version
                self._count_one()
            elif self._is_replaced():
                self._count_one()  # the waiting threads read the tables, which raises
            elif is_drained:
                is_drained = not monitor.sleep(left)
            else:  # ask again: a report that came after the question was drained too
                is_drained = True
                if monitor.drain():
                    self.closed_lock_files += 1
                    self._count_one()

    def _count_one(self) -> None:
        with self._changed:
            self._count += 1
            if self._waiting > 1:
                self._changed.notify_all()

    def _open_monitor(self) -> FileMonitor:
        self._monitor = FileMonitor()
        self._monitor.watch(self._wal, self._lock_files)
        return self._monitor

    def _open_connection(self) -> sqlite3.Connection:
        self._connection = self._connect()
        return self._connection

    def _close_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        if self._connection is not None:
            self._connection.close()
        self._monitor = self._connection = self._version = None
