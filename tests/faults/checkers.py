"""Processes that check damaged databases for the laboratory. One that hangs is killed, one that dies is replaced."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

HANG_SECONDS = 180.0  # even on a very busy machine
PROCESSES = max(2, (os.cpu_count() or 2))
FEW = 150  # items that one process checks sooner than two: to start one takes a second
_context = multiprocessing.get_context("spawn")  # a fork would copy open databases


class Ended(str):
    """In place of a result: the checker hung or died."""

    __slots__ = ()


class _Checker:
    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(check, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.item: Any = None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(check: Callable[[Any], Any], pipe: Connection) -> None:
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        pipe.send(check(item))


class Checkers:
    """Calls `check`, a function of a module, in a few processes, which are started when they are first needed."""

    def __init__(self, check: Callable[[Any], Any], processes: int = PROCESSES) -> None:
        self._check, self._most = check, processes
        self._idle: list[_Checker] = []
        self._busy: list[_Checker] = []

    def __enter__(self) -> "Checkers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in [*self._idle, *self._busy]:
            one.end()

    def each(self, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each item, which is pickled, and what `check` returned for it, or how the checker `Ended`."""
        for item in items:
            while not self._idle:
                if len(self._busy) < self._most:  # also after one has ended
                    self._idle.append(_Checker(self._check))
                else:
                    yield self._next()
            checker = self._idle.pop()
            checker.item = item
            checker.pipe.send(item)
            self._busy.append(checker)
        while self._busy:
            yield self._next()

    def _next(self) -> tuple[Any, Any]:
        """Wait for a checker, and return its item and its result."""
        ready = wait([one.pipe for one in self._busy], HANG_SECONDS)
        found = next((one for one in self._busy if one.pipe in ready), self._busy[0])
        self._busy.remove(found)
        result: Any = Ended(f"hung for {HANG_SECONDS:g} s")
        if ready:
            try:
                result = found.pipe.recv()
            except (EOFError, ConnectionError):
                found.process.join()
                result = Ended(f"died with exit code {found.process.exitcode}")
        if isinstance(result, Ended):
            found.end()
        else:
            self._idle.append(found)
        return found.item, result
