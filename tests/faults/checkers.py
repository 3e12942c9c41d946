"""Processes that check damaged databases for the laboratory. One that hangs is killed, one that dies is replaced."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

HANG_SECONDS = 180.0  # even on a very busy machine
PROCESSES = max(2, (os.cpu_count() or 2))
_context = multiprocessing.get_context("spawn")  # a fork would copy open databases


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


def check_all(
    check: Callable[[Any], Any], items: Iterable[Any], processes: int = PROCESSES
) -> Iterator[tuple[Any, Any]]:
    """Call `check` for each item in one of several processes. Yield the item and what it returned.

    A string stands for a checker that hung or died. `check` is a function of a module, and the items are pickled.
    """
    waiting = iter(items)
    checkers: list[_Checker] = []
    try:
        busy: list[_Checker] = []
        for item in waiting:
            if len(checkers) < processes:
                checkers.append(_Checker(check))
                idle = checkers[-1]
            else:
                idle = yield from _next_idle(check, checkers, busy)
            idle.item = item
            idle.pipe.send(item)
            busy.append(idle)
        while busy:
            yield from _next_idle(check, checkers, busy)
    finally:
        for one in checkers:
            one.end()


def _next_idle(
    check: Callable[[Any], Any], checkers: list[_Checker], busy: list[_Checker]
) -> "Iterator[tuple[Any, Any]]":
    """Wait for a checker, yield its result, and return it, or the one that replaces it."""
    ready = wait([one.pipe for one in busy], HANG_SECONDS)
    found = next((one for one in busy if one.pipe in ready), busy[0])
    busy.remove(found)
    item, result = found.item, f"hung for {HANG_SECONDS:g} s"
    if ready:
        try:
            result = found.pipe.recv()
        except EOFError:
            found.process.join()
            result = f"died with exit code {found.process.exitcode}"
    if isinstance(result, str):
        checkers.remove(found)
        found.end()
        found = _Checker(check)
        checkers.append(found)
    yield item, result
    return found
