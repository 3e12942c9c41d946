"""Sleeping until the next moment worth a look at the database.

On Linux the kernel tells of every write to the -wal file. A write may be seen before its commit is visible (an fsync
may lie between), so one looks again a few times, at growing distances. Elsewhere one looks every few milliseconds.
"""

import contextlib
import os
import select
import struct
import sys
import time
from pathlib import Path

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
