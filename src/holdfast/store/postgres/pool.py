"""A few connections that the threads of a process share."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from ...errors import StoreBusy, StoreClosed
from .connection import Driver, abandon, is_usable, rollback

MAX_CONNECTIONS = 3  # and one of the listener


class Pool:
    """Lends each connection to one thread at a time. Broken ones are replaced when they are needed next."""

    def __init__(self, connect: Callable[[], Driver], size: int = MAX_CONNECTIONS) -> None:
        self._connect, self._size = connect, size
        self._free: list[Driver] = []
        self._all: set[Driver] = set()
        self._pid = os.getpid()
        self._open = 0
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def lend(self, timeout: float) -> Iterator[Driver]:
        """Lend a connection. At the end of the block it is in no transaction."""
        driver = self._take(timeout)
        try:
            yield driver
        finally:
            self._give_back(driver)

    def _take(self, timeout: float) -> Driver:
        deadline = monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise StoreClosed("this Holdfast was closed: make a new one")
                while self._free:
                    driver = self._free.pop()
                    if is_usable(driver):
                        return driver
                    driver.close()
                    self._all.discard(driver)
                    self._open -= 1
                if self._open < self._size:
                    self._open += 1
                    break
                if not self._changed.wait(max(0.0, deadline - monotonic())):
                    raise StoreBusy(
                        f"all {self._size} connections of this process are in use: end transactions sooner, or raise "
                        "busy_timeout"
                    )
        try:
            driver = self._connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise
        self._all.add(driver)
        return driver

    def _give_back(self, driver: Driver) -> None:
        if os.getpid() != self._pid:  # it was lent when the process forked, and belongs to the parent
            return
        rollback(driver)
        with self._changed:
            if self._closed or driver.closed:
                driver.close()
                self._all.discard(driver)
                self._open -= 1
            else:
                self._free.append(driver)
            self._changed.notify()

    def close(self) -> None:
        """Close all connections. Those that are lent are closed when they come back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for driver in free:
            driver.close()

    def abandon(self) -> None:
        """In a forked child: let go of the connections of the parent."""
        for driver in list(self._all):
            abandon(driver)
