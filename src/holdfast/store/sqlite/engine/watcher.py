"""Noticing commits, by anyone, without polling.

Of the threads that wait, one looks out for all: it sleeps until the alarm says that a look is worth while, and asks
`PRAGMA data_version` whether another connection has committed. So there is no thread for it, and nobody to hand over
what was seen where only one waits.
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
LOOK_AGAIN_SECONDS = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.003, 0.005, 0.01, 0.02, 0.04, *[0.08] * 12)
POLL_SECONDS = 0.01
LONGEST_NAP_SECONDS = 1.0
READ_BYTES = 65536
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, and the length of a name, which a watched file has not


class Alarm:
    def __init__(self) -> None:
        self._hear, self._ring = os.pipe()
        os.set_blocking(self._hear, False)
        os.set_blocking(self._ring, False)
        self._ears = select.poll()
        self._ears.register(self._hear, select.POLLIN)
        self._kernel = _kernel()
        self._naps = list(LOOK_AGAIN_SECONDS)
        if self._kernel is not None:
            self._ears.register(self._kernel.fd, select.POLLIN)

    def watch(self, log: Path, others: list[Path]) -> None:
        """Writes to the log wake; of the others, that a process closes one, be it by dying."""
        if self._kernel is not None:
            self._kernel.add_watch(os.fspath(log), flags.MODIFY)
            for file in others:
                with contextlib.suppress(FileNotFoundError):
                    self._kernel.add_watch(os.fspath(file), flags.CLOSE_WRITE)

    def sleep(self, longest: float) -> bool:
        """True if somebody has rung, or a file was written or closed: `reset` it before the next look."""
        nap = self._next_nap(longest)
        if nap < 0.001:  # poll counts in milliseconds
            time.sleep(nap)
            nap = 0
        return bool(self._ears.poll(nap * 1000))

    def reset(self) -> bool:
        """Take in what was heard. True if a file was closed that may be that of one who has died."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._hear, READ_BYTES)
        if self._kernel is None:
            return False
        try:
            events = os.read(self._kernel.fd, READ_BYTES)
        except BlockingIOError:
            return False
        self._naps = list(LOOK_AGAIN_SECONDS)
        return any(mask & flags.CLOSE_WRITE for _, mask, _, _ in _EVENT.iter_unpack(events))

    def ring(self) -> None:
        """Wake who sleeps, from another thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b".")

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
        os.close(self._hear)
        os.close(self._ring)

    def _next_nap(self, longest: float) -> float:
        if self._kernel is None:
            return min(POLL_SECONDS, longest)
        return min(self._naps.pop(0) if self._naps else LONGEST_NAP_SECONDS, longest)


def _kernel() -> "INotify | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        kernel = INotify()
    except OSError:  # the user's limit of inotify instances is reached
        return None
    os.set_blocking(kernel.fd, False)
    return kernel


BLIND_SECONDS = 0.05  # between looks of those who wait, where looking out is impossible


class Watcher:
    """Counts what was committed, while somebody waits. What happens meanwhile shows in data_version."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._log, self._connect = Path(f"{path}-wal"), connect
        self._others: list[Path] = []
        self._news = threading.Condition()
        self._count = 0
        self._waiting = 0
        self._looking_out = False  # whether one of them does
        self._closed = False
        self._alarm: Alarm | None = None
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self.endings = 0
        """Grows when a process closed a file that `also_watch` named, be it by dying."""

    def count(self) -> int:
        """Take this before looking at the database, and pass it to `wait` if there was nothing."""
        return self._count

    def notify(self) -> None:
        if self._waiting:
            self._announce()

    def wait(self, seen: int, timeout: float) -> bool:
        """Return at once when anything was committed after `seen` was taken, else when it is, or after timeout."""
        deadline = monotonic() + timeout
        with self._news:
            self._waiting += 1
            try:
                while self._count == seen and not self._closed:
                    left = deadline - monotonic()
                    if left <= 0:
                        return False
                    if self._looking_out:
                        self._news.wait(left)
                    else:
                        self._take_the_look_out(seen, deadline)
                return True
            finally:
                self._waiting -= 1

    def also_watch(self, file: Path) -> None:
        """Wake who waits when a process closes this file, which is one that workers keep open while they live."""
        with self._news:
            if file not in self._others:
                self._others.append(file)
            if self._alarm is not None:
                self._alarm.watch(self._log, self._others)

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
            if self._alarm is not None:
                self._alarm.ring()
            self._news.wait_for(lambda: not self._looking_out)
            self._forget()

    def _announce(self) -> None:
        with self._news:
            self._count += 1
            self._news.notify_all()
            if self._looking_out and self._alarm is not None:
                self._alarm.ring()

    def _take_the_look_out(self, seen: int, deadline: float) -> None:
        """For all who wait, with the lock, which it gives back meanwhile."""
        self._looking_out = True
        try:
            alarm, connection = self._alarm or self._set_alarm(), self._connection or self._look_through()
            self._news.release()
            try:
                self._look_out(alarm, connection, seen, deadline)
            finally:
                self._news.acquire()
        except (sqlite3.Error, OSError):  # those who wait look by themselves, at the end of each of their turns
            self._forget()
            self._news.wait(min(BLIND_SECONDS, max(0.0, deadline - monotonic())))
        finally:
            self._looking_out = False
            if self._waiting > 1 or self._closed:
                self._news.notify_all()  # another one may have to do it

    def _look_out(self, alarm: Alarm, connection: sqlite3.Connection, seen: int, deadline: float) -> None:
        # The look comes first: to take in what the alarm has heard takes longer, and can wait until the next time.
        is_reset = False
        while self._count == seen and not self._closed and (left := deadline - monotonic()) > 0:
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                self._version = version
                self._count_one()
            elif is_reset:
                is_reset = not alarm.sleep(left)
            else:  # and look again: what came between the look and this is not heard any more
                is_reset = True
                if alarm.reset():
                    self.endings += 1
                    self._count_one()

    def _count_one(self) -> None:
        with self._news:
            self._count += 1
            if self._waiting > 1:
                self._news.notify_all()

    def _set_alarm(self) -> Alarm:
        self._alarm = Alarm()
        self._alarm.watch(self._log, self._others)
        return self._alarm

    def _look_through(self) -> sqlite3.Connection:
        self._connection = self._connect()
        return self._connection

    def _forget(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
        if self._connection is not None:
            self._connection.close()
        self._alarm = self._connection = self._version = None
