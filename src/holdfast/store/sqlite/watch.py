"""Noticing commits, by anyone, without polling.

On Linux the kernel tells of every write to the -wal file. A write may be seen before its commit is visible (an
fsync lies between), so the watcher looks again a few times, at growing distances. `PRAGMA data_version` says
whether another connection has committed; elsewhere than on Linux it is all there is, asked every few milliseconds.
"""

import contextlib
import os
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform.startswith("linux"):
    from inotify_simple import INotify, flags

LOOK_AGAIN_SECONDS = (0.0002, 0.0003, 0.0005, 0.001, 0.003, 0.005, 0.01, 0.02, 0.04, *[0.08] * 12)
POLL_SECONDS = 0.01
LONGEST_NAP_SECONDS = 1.0


class Watcher:
    """Counts what was committed. A thread of its own watches, but only while somebody waits."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._files = [Path(f"{path}-wal")]
        self._kernel: INotify | None = None
        self._news = threading.Condition()
        self._count = 0
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._doorbell: int | None = None  # writing to it interrupts the watching thread
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
        with self._news:
            if self._closed:
                return True
            self._waiting += 1
            try:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="holdfast-watch", daemon=True)
                    self._thread.start()
                elif self._waiting == 1:
                    self._news.notify_all()  # the thread may be resting
                return self._news.wait_for(lambda: self._count != seen or self._closed, timeout)
            finally:
                self._waiting -= 1

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
            thread = self._thread
            if self._doorbell is not None:
                os.write(self._doorbell, b".")
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def also_watch(self, file: Path) -> None:
        """Wake who waits when a process closes this file, which is one that workers keep open while they live."""
        with self._news:
            if file not in self._files:
                self._files.append(file)
            self._watch_files()

    def _watch_files(self) -> None:
        if self._kernel is not None:
            for number, file in enumerate(self._files):
                with contextlib.suppress(FileNotFoundError):
                    self._kernel.add_watch(os.fspath(file), flags.CLOSE_WRITE if number else flags.MODIFY)

    def _announce(self) -> None:
        with self._news:
            self._count += 1
            self._news.notify_all()

    def _watch(self) -> None:
        connection = self._connect()
        try:
            version = None
            with self._alarm() as sleep:
                while self._rest_until_wanted():
                    found = connection.execute("PRAGMA data_version").fetchone()[0]
                    if found != version:
                        version = found
                        self._announce()
                    sleep()
        except (sqlite3.Error, OSError):
            # Without a watcher the waiting threads look by themselves, at the end of each of their turns.
            with self._news:
                self._thread = None
        finally:
            connection.close()

    def _rest_until_wanted(self) -> bool:
        """While nobody waits, nothing needs to be watched: what happens meanwhile shows in data_version."""
        with self._news:
            self._news.wait_for(lambda: self._waiting > 0 or self._closed)
            return not self._closed

    @contextlib.contextmanager
    def _alarm(self) -> Iterator[Callable[[], None]]:
        """Gives a function that sleeps until the next moment worth a look."""
        if not sys.platform.startswith("linux"):
            yield lambda: time.sleep(POLL_SECONDS)
            return
        try:
            kernel = INotify()
        except OSError:  # the user's limit of inotify instances is reached
            yield lambda: time.sleep(POLL_SECONDS)
            return
        hear, self._doorbell = os.pipe()
        try:
            with self._news:
                self._kernel = kernel
                self._watch_files()
            ears = select.poll()
            ears.register(kernel.fd, select.POLLIN)
            ears.register(hear, select.POLLIN)
            naps: list[float] = list(LOOK_AGAIN_SECONDS)

            def sleep() -> None:
                nap = naps.pop(0) if naps else LONGEST_NAP_SECONDS
                if nap < 0.001:  # poll counts in milliseconds
                    time.sleep(nap)
                    nap = 0
                if any(ear == kernel.fd for ear, _ in ears.poll(nap * 1000)):
                    if any(event.mask & flags.CLOSE_WRITE for event in kernel.read(timeout=0)):
                        self.endings += 1
                        self._announce()
                    naps[:] = LOOK_AGAIN_SECONDS

            yield sleep
        finally:
            with self._news:
                self._kernel = None
                kernel.close()
                os.close(self._doorbell)
                self._doorbell = None
            os.close(hear)
