"""Waiting for another process's write lock: no fixed order, so nobody starves."""

import sqlite3
import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from ...errors import StoreBusy
from .faults import is_busy

T = TypeVar("T")


class Patience:
    """Runs an action again, after a random moment, for as long as SQLite says BUSY."""

    def __init__(self, random: Random, limit_seconds: float) -> None:
        self._random, self.limit = random, limit_seconds

    def run(self, action: Callable[[], T], limit: float | None = None) -> T:
        """limit: other than usual, in seconds."""
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return self._run_until_free(action, self.limit if limit is None else limit)

    def _run_until_free(self, action: Callable[[], T], limit: float) -> T:
        deadline = time.monotonic() + limit
        while True:
            # SQLite's own busy handler sleeps ever longer and starves whoever waited; a short random nap does not.
            time.sleep(self._random.uniform(0.0002, 0.003))
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"another connection has held the write lock for {limit:g} seconds. If it is one of "
                        "this program's own, in a transaction, pass it as conn=; else find the program with a long "
                        "write transaction on this database, or raise busy_timeout"
                    ) from error
