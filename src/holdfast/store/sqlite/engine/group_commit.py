"""The queue of group commit: one thread leads and commits for all, the others follow.

A thread that wants to write enters the queue. If no thread leads, it becomes the leader. Otherwise it waits, until a
leader has done its work or it is made the leader itself. The transaction of the leader is in writer.py.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Generic, TypeVar

ARRIVAL_SECONDS = 0.00005
LONG_WAIT_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 60.0


class QueueEntry:
    """A thread in the commit queue. Its wake-up lock is released when its work is done or when it has to lead."""

    __slots__ = ("begun", "done", "in_group", "is_leader", "wakes_next", "wakeup", "withdrawn")

    def __init__(self) -> None:
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.done = False
        self.is_leader = False
        self.withdrawn = False  # it no longer waits
        self.in_group = False  # a leader has taken it
        self.begun = False  # a leader is doing its work, or has done it
        self.wakes_next: Sequence[QueueEntry] = ()  # the followers that it wakes after it was woken itself

    def is_stale(self) -> bool:
        """Return whether the queue can drop this entry."""
        return self.withdrawn or self.in_group or self.done


E = TypeVar("E", bound=QueueEntry)


class CommitQueue(Generic[E]):
    def __init__(self, before_long_wait: Callable[[], Exception | None] = lambda: None) -> None:
        """before_long_wait: called in a thread that waits long; returns an error if the thread waits for itself."""
        self._before_long_wait = before_long_wait
        self.pending: deque[E] = deque()
        self.exclusive: deque[QueueEntry] = deque()  # threads that want to lead and bring no work
        self._lock = threading.Lock()
        self._has_leader = False
        self._expected = 0  # the leader waits until this many entries are pending
        self._arrival = threading.Lock()  # released when they are
        self._direct_leader: int | None = None  # the thread that leads without having entered the queue

    def lead_if_idle(self) -> bool:
        """Lead at once if no thread does; the queue is empty then. Call `stop_direct_lead` in any case."""
        with self._lock:
            if self._has_leader:
                return False
            self._has_leader, self._direct_leader = True, get_ident()
            return True

    def stop_direct_lead(self) -> None:
        """Stop leading if this thread leads since `lead_if_idle`, whose return value an interrupt may have lost."""
        if self._direct_leader != get_ident():
            return
        with self._lock:
            self._direct_leader = None
            if not self.pending and not self.exclusive:  # most often
                self._has_leader = False
                return
        self.hand_over()

    def enter(self, entry: E, timeout: float) -> bool:
        """Enter the queue and wait.

        Return True if this thread is the leader now; it must call `hand_over`. Return False if another thread has
        done its work, or if the timeout ended before any thread had begun it.
        """
        with self._lock:
            self.pending.append(entry)
            if not self._has_leader:
                self._has_leader = entry.is_leader = True
                return True
            if self._expected and len(self.pending) >= self._expected:
                self._expected = 0
                self._arrival.release()
        self._wait(entry, timeout)
        return entry.is_leader

    def lead_exclusively(self, entry: QueueEntry, timeout: float) -> None:
        """Wait to lead without any work, ahead of the pending entries, until the timeout ends."""
        with self._lock:
            if not self._has_leader:
                self._has_leader = entry.is_leader = True
                return
            self.exclusive.append(entry)
        self._wait(entry, timeout)

    def hand_over(self) -> None:
        """Stop leading and make the next thread in the queue the leader."""
        with self._lock:
            while self.pending and self.pending[0].is_stale():
                self.pending.popleft()
            if not self.exclusive and not self.pending:
                self._has_leader = False
                return
            successor = self.exclusive.popleft() if self.exclusive else self.pending[0]
            successor.is_leader = True
            successor.wakeup.release()

    def wait_for_followers(self, count: int) -> None:
        """Wait, as the leader, until `count` entries are pending or none arrives for ARRIVAL_SECONDS."""
        arrived = 0
        while True:
            with self._lock:
                before, arrived = arrived, len(self.pending)
                if arrived >= count or arrived == before:
                    self._expected = 0
                    return
                self._arrival.acquire(blocking=False)  # an earlier wait may have left it released
                self._expected = count
            self._arrival.acquire(timeout=ARRIVAL_SECONDS)

    def take_group(self, group: list[E], limit: int) -> None:
        """Move pending entries to the leader's group. They can still withdraw until it begins their work."""
        with self._lock:
            while self.pending and len(group) < limit:
                entry = self.pending[0]
                if not entry.is_stale():
                    group.append(entry)  # before it leaves the queue: an interrupt in between must not lose it
                    entry.in_group = True
                self.pending.popleft()

    def begin(self, group: list[E]) -> None:
        """Drop the entries that have withdrawn. The others cannot withdraw any more: their work is done now."""
        with self._lock:
            group[:] = [entry for entry in group if not entry.withdrawn]
            for entry in group:
                entry.begun = True

    def postpone(self, group: list[E]) -> None:
        """Let the entries withdraw again: their work was not done, since another connection holds the write lock."""
        with self._lock:
            for entry in group:
                entry.begun = False

    def finish(self, group: list[E]) -> None:
        """Mark the work of the group as done and wake its threads.

        The leader wakes one follower, and each follower wakes two more. Only one thread at a time can run Python
        code, so threads that are woken all at once would only contend with each other.
        """
        with self._lock:
            followers = [entry for entry in group if not entry.is_leader and not entry.withdrawn]
            for index, entry in enumerate(followers):
                entry.wakes_next = followers[2 * index + 1 : 2 * index + 3]
            for entry in group:
                entry.done = True
        if followers:
            followers[0].wakeup.release()

    def _wait(self, entry: QueueEntry, timeout: float) -> None:
        woken = False
        try:
            woken = self._is_woken(entry, timeout)
            woken = woken or (self._must_wait(entry) and entry.wakeup.acquire())
        finally:
            if not woken:
                self._withdraw(entry)
            for follower in entry.wakes_next:
                follower.wakeup.release()

    def _is_woken(self, entry: QueueEntry, timeout: float) -> bool:
        """Wait. Check less and less often whether this thread waits for itself, and raise then."""
        waited, pause = 0.0, LONG_WAIT_SECONDS
        while timeout < 0 or waited + pause < timeout:
            if entry.wakeup.acquire(timeout=pause):
                return True
            problem = self._before_long_wait()
            if problem is not None and not self._must_wait(entry):
                raise problem
            waited, pause = waited + pause, min(2 * pause, LONGEST_PAUSE_SECONDS)
        return entry.wakeup.acquire(timeout=timeout - waited)

    def _must_wait(self, entry: QueueEntry) -> bool:
        """Return whether a thread whose timeout has ended leads by now, or has its work done. Otherwise withdraw."""
        with self._lock:
            entry.withdrawn = not (entry.is_leader or entry.begun or entry.done)
            return not entry.withdrawn

    def _withdraw(self, entry: QueueEntry) -> None:
        """Leave the queue, after a timeout or an interrupt."""
        with self._lock:
            entry.withdrawn = True
            was_leader, entry.is_leader = entry.is_leader, False
            if entry in self.exclusive:
                self.exclusive.remove(entry)
        if was_leader:  # it was made the leader at the moment of the interrupt
            self.hand_over()
