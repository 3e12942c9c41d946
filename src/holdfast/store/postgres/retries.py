"""Run a transaction again that the server has rolled back, or that was never begun because the server was away."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from ...errors import StoreError

T = TypeVar("T")
MAX_TRIES = 10  # of a transaction that others are in the way of
MAX_PAUSE_SECONDS = 0.25


class Again(Exception):
    """Nothing of the transaction was stored, and it can run once more.

    error: what to raise if it does not. is_outage: the server was away, which can take longer than a conflict.
    """

    def __init__(self, error: StoreError, is_outage: bool) -> None:
        super().__init__(str(error))
        self.error, self.is_outage = error, is_outage


def run_again(run: Callable[[], T], seconds: float) -> T:
    """Run until it does not raise Again: for so many seconds, or ten times if only others are in the way."""
    deadline, conflicts, pause = time.monotonic() + seconds, 0, 0.002
    while True:
        try:
            return run()
        except Again as again:
            conflicts += not again.is_outage
            if conflicts >= MAX_TRIES or (again.is_outage and time.monotonic() + pause >= deadline):
                raise again.error from again.error.__cause__
        time.sleep(pause * (0.5 + os.urandom(1)[0] / 256))
        pause = min(pause * 2, MAX_PAUSE_SECONDS if conflicts == 0 else 1.0)
