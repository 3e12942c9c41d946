"""Locks by which processes see that others live, and hooks that run around a fork.

SQLite keeps the locks of a process in memory, and a fork copies that memory: connections that the child opens later
would rely on locks that the child does not hold. So every owner closes its connections before a fork. If it cannot,
the child never uses or closes them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from ..model.worker import WorkerState


class Slot(Struct, frozen=True):
    """A lock of a process: its number, and where it is held, which tells whether it was lost meanwhile.

    On SQLite, the byte of a file and the inode of that file. On PostgreSQL, the key of an advisory lock and the start
    of the server.
    """

    number: int
    place: int

    @property
    def columns(self) -> dict[str, Any]:
        """The values of the columns by which other processes find the lock."""
        return {"slot": self.number, "place": self.place}


class ProcessLocks(Protocol):
    """The locks of the processes on one database."""

    def acquire(self) -> Slot: ...

    def release(self, slot: Slot) -> None: ...

    def is_free(self, slot: Slot) -> bool:
        """Return whether the process that held the lock has ended. False if unknown."""
        ...

    def is_held(self, slot: Slot) -> bool:
        """Return whether a process holds the lock, where it was taken."""
        ...

    def renewed(self, slot: Slot) -> Slot:
        """Return the slot, or a new one if the lock was lost although this process lives."""
        ...

    def state(self, slot: Slot, pid: int, host: str) -> WorkerState:
        """Return whether the process of a worker lives."""
        ...

    def watch(self) -> None:
        """Notice from now on when processes end: see `SharedDatabase.deaths_seen`."""
        ...


class BlockLock:
    """The lock of a process that is in the block of a batch, or in several. When the process dies, others see it."""

    def __init__(self, locks: ProcessLocks) -> None:
        self._locks, self._lock = locks, threading.Lock()
        self._slot: Slot | None = None
        self._blocks = 0

    def enter(self) -> Slot:
        with self._lock:
            if self._slot is None:
                self._slot = self._locks.acquire()
            self._blocks += 1
            return self._slot

    def leave(self) -> None:
        with self._lock:
            self._blocks = max(0, self._blocks - 1)  # a forked child has not entered the blocks of its parent
            if not self._blocks and self._slot is not None:
                self._locks.release(self._slot)
                self._slot = None

    def forget(self) -> None:
        """Start without a lock, as in a forked child."""
        self._lock, self._slot, self._blocks = threading.Lock(), None, 0


def state_of_process(pid: int, host: str) -> WorkerState:
    """Return whether a process that lives is stopped by a signal. A process id is valid only on its own host."""
    return "suspended" if host == socket.gethostname() and is_stopped(pid) else "alive"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal. False if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib is slower
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class Forkable(Protocol):
    def around_fork(self) -> AbstractContextManager[None]:
        """Enter before a fork, leave after it in the parent. The child never leaves it."""
        ...

    def after_fork_in_child(self) -> None:
        """Drop everything that belongs to the parent."""
        ...


_owners: weakref.WeakSet[Forkable] = weakref.WeakSet()
_entered: list[ExitStack] = []
_leaked: list[object] = []


def register_forkable(owner: Forkable) -> None:
    _owners.add(owner)


def leak(thing: object) -> None:
    """Keep an object from ever being finalised, even at interpreter exit."""
    _leaked.append(thing)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _before() -> None:
    stack = ExitStack()
    for owner in list(_owners):
        stack.enter_context(owner.around_fork())
    _entered.append(stack)


def _in_parent() -> None:
    _entered.pop().close()


def _in_child() -> None:
    leak(_entered.pop())  # what it would release belongs to the parent
    for owner in list(_owners):
        owner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
