"""Whose turn it is to write: one thread leads, the others stand in line and may find their work done for them."""

import threading
from collections import deque
from collections.abc import Sequence
from threading import get_ident
from typing import Generic, TypeVar

GATHERING_SECONDS = 0.00005


class QueuedWrite:
    """A thread that stands in line. Its gate opens when its work is done, or when it is to lead."""

    __slots__ = ("behind", "done", "gate", "leads", "left", "taken")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.done = False
        self.leads = False
        self.left = False  # it waits no more
        self.taken = False  # its work is being done, or was
        self.behind: Sequence[QueuedWrite] = ()  # whose gates it opens as soon as it has passed its own

    def is_over(self) -> bool:
        """Whether there is nothing to do for it in the line."""
        return self.left or self.taken or self.done


W = TypeVar("W", bound=QueuedWrite)


class Turn(Generic[W]):
    def __init__(self) -> None:
        self.line: deque[W] = deque()
        self._alone: deque[QueuedWrite] = deque()  # those who want to lead and bring no work
        self._lock = threading.Lock()
        self._led = False
        self._awaited = 0  # how many must stand in line for the leader to go on
        self._arrival = threading.Lock()  # what it waits for
        self._at_once: int | None = None  # the thread that leads without having stood in line

    def take_if_free(self) -> bool:
        """Lead at once, where nobody does; and then nobody stands in line. `give_back` it in any case."""
        with self._lock:
            if self._led:
                return False
            self._led, self._at_once = True, get_ident()
            return True

    def give_back(self) -> None:
        """Stop leading, if this thread does since `take_if_free`: an interrupt may have hidden its answer."""
        if self._at_once != get_ident():
            return
        with self._lock:
            self._at_once = None
            if not self.line and not self._alone:  # most often
                self._led = False
                return
        self.pass_on()

    def take(self, one: W, patience_seconds: float) -> bool:
        """Stand in line. True: this thread leads now, and must `pass_on`. False: another has done its work, or the
        patience was over before anyone had."""
        with self._lock:
            self.line.append(one)
            if not self._led:
                self._led = one.leads = True
                return True
            if self._awaited and len(self.line) >= self._awaited:
                self._awaited = 0
                self._arrival.release()
        self._wait(one, patience_seconds)
        return one.leads

    def take_alone(self, one: QueuedWrite, patience_seconds: float) -> None:
        """Lead without any work, before the others in line, unless the patience ends first."""
        with self._lock:
            if not self._led:
                self._led = one.leads = True
                return
            self._alone.append(one)
        self._wait(one, patience_seconds)

    def pass_on(self) -> None:
        """Stop leading; the first in line leads next."""
        with self._lock:
            while self.line and self.line[0].is_over():
                self.line.popleft()
            heirs = self._alone or self.line
            if not heirs:
                self._led = False
                return
            heir = self._alone.popleft() if self._alone else self.line[0]
            heir.leads = True
            heir.gate.release()

    def await_others(self, count: int) -> None:
        """For the leader: wait until so many stand in line, as long as somebody comes every few moments."""
        came = 0
        while True:
            with self._lock:
                before, came = came, len(self.line)
                if came >= count or came == before:
                    self._awaited = 0
                    return
                self._arrival.acquire(blocking=False)  # it may have been left open
                self._awaited = count
            self._arrival.acquire(timeout=GATHERING_SECONDS)

    def gather(self, group: list[W], most: int) -> None:
        """Take those who stand in line, for the leader to do their work. From then on none of them leaves."""
        with self._lock:
            while self.line and len(group) < most:
                one = self.line[0]
                if not one.is_over():
                    group.append(one)  # first there, then out of the line: an interrupt in between must lose nobody
                    one.taken = True
                self.line.popleft()

    def let_pass(self, group: list[W]) -> None:
        """The work of all of them is done.

        The leader wakes one of them, and each wakes two more. Woken all at once they would only get in each other's
        way, since one at a time can run.
        """
        with self._lock:
            waiting = [one for one in group if not one.leads and not one.left]
            for place, one in enumerate(waiting):
                one.behind = waiting[2 * place + 1 : 2 * place + 3]
            for one in group:
                one.done = True
        if waiting:
            waiting[0].gate.release()

    def _wait(self, one: QueuedWrite, patience_seconds: float) -> None:
        passed = False
        try:
            passed = one.gate.acquire(timeout=patience_seconds) or (self._must_stay(one) and one.gate.acquire())
        finally:
            if not passed:
                self._leave(one)
            for other in one.behind:
                other.gate.release()

    def _must_stay(self, one: QueuedWrite) -> bool:
        """When the patience is over: it leads by now, or its work is being done. Otherwise it has left."""
        with self._lock:
            one.left = not (one.leads or one.taken)
            return not one.left

    def _leave(self, one: QueuedWrite) -> None:
        """After an interrupt, or when the patience was over."""
        with self._lock:
            one.left = True
            leads, one.leads = one.leads, False
            if one in self._alone:
                self._alone.remove(one)
        if leads:  # it was made leader in the same moment as it was interrupted
            self.pass_on()
