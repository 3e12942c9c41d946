"""Waiting for something to come true in the database."""

import time
from collections.abc import Callable

from ..clock import SECOND
from ..errors import WaitTimeout
from ..store.protocol import Store
from . import checks


def wait_until(store: Store, is_so: Callable[[], bool], timeout: float | None, describe: Callable[[], str]) -> None:
    """Look after each commit of anyone. Raises WaitTimeout after so many seconds."""
    limit = None if timeout is None else checks.duration(timeout, "timeout") / SECOND
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        seen = store.commits_seen()
        if is_so():
            return
        left = float("inf") if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{describe()} after {timeout} seconds")
        store.wait_for_commit(seen, left)
