"""Retry while SQLite reports BUSY, because another connection holds a lock."""

import sqlite3
import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from ....errors import StoreBusy
from .errors import is_busy

T = TypeVar("T")


class BusyRetry:
    """Runs an action again after a random pause, while SQLite reports BUSY, until a timeout."""

    def __init__(self, random: Random, timeout: float) -> None:
        self._random, self.timeout = random, timeout

    def run(self, action: Callable[[], T], timeout: float | None = None) -> T:
        """Run the action until it succeeds. `timeout` overrides the default, in seconds."""
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return self._retry(action, self.timeout if timeout is None else timeout)

    def _retry(self, action: Callable[[], T], timeout: float) -> T:
        deadline = time.monotonic() + timeout
        while True:
            # SQLite's own busy handler sleeps longer each time, so the longest waiter starves. A short random pause
            # gives every waiter the same chance.
            time.sleep(self._random.uniform(0.0002, 0.003))
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"another connection has held the write lock for {timeout:g} seconds. If it belongs to this "
                        "program and has a transaction open, pass it as conn=. Otherwise find the program with a "
                        "long write transaction on this database, or raise busy_timeout"
                    ) from error
