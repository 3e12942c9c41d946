"""Whose turn it is to write: one thread leads, the others stand in line and may find their work done for them."""

import threading
from collections import deque
from typing import Generic, TypeVar


class Waiting:
    """A thread that stands in line. Its gate opens when its work is done, or when it is to lead."""

    __slots__ = ("done", "gate", "leads")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.done = False
        self.leads = False


W = TypeVar("W", bound=Waiting)


class Turn(Generic[W]):
    def __init__(self) -> None:
        self.line: deque[W] = deque()
        self._alone: deque[Waiting] = deque()  # those who want to lead and bring no work
        self._lock = threading.Lock()
        self._led = False
        self._at_once: int | None = None  # the thread that leads without having stood in line

    def take_if_free(self) -> bool:
        """Lead at once, where nobody does; and then nobody stands in line. `give_back` it in any case."""
        with self._lock:
            if self._led:
                return False
            self._led, self._at_once = True, threading.get_ident()
            return True

    def give_back(self) -> None:
        """Stop leading, if this thread does since `take_if_free`: an interrupt may have hidden its answer."""
        if self._at_once == threading.get_ident():
            self._at_once = None
            self.pass_on()

    def take(self, one: W) -> bool:
        """Stand in line. True: this thread leads now, and must `pass_on`. False: another has done its work."""
        with self._lock:
            self.line.append(one)
            if not self._led:
                self._led = one.leads = True
                return True
        self._wait(one, self.line, -1)
        return one.leads

    def take_alone(self, one: Waiting, patience_seconds: float) -> None:
        """Lead without any work, before the others in line, unless the patience ends first."""
        with self._lock:
            if not self._led:
                self._led = one.leads = True
                return
            self._alone.append(one)
        self._wait(one, self._alone, patience_seconds)

    def pass_on(self) -> None:
        """Stop leading; the first in line leads next."""
        with self._lock:
            heirs = self._alone or self.line
            if not heirs:
                self._led = False
                return
            heir = self._alone.popleft() if self._alone else self.line[0]
            heir.leads = True
            heir.gate.release()

    def _wait(self, one: Waiting, line: "deque[W] | deque[Waiting]", patience_seconds: float) -> None:
        passed = False
        try:
            passed = one.gate.acquire(timeout=patience_seconds)
        finally:
            if not passed and not self._left(one, line):
                self.pass_on()  # it was made leader in the same moment as it was interrupted

    def _left(self, one: Waiting, line: "deque[W] | deque[Waiting]") -> bool:
        """Leave the line after an interrupt or a timeout. False if it leads by now."""
        with self._lock:
            if one.leads:
                one.leads = False
                return False
            if one in line:
                line.remove(one)  # type: ignore[arg-type]
            return True
