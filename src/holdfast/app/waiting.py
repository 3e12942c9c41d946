"""Wait for a condition in the database."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from .. import validate
from ..clock import SECOND
from ..errors import WaitTimeout
from ..store.protocol import Store


def wait_until(
    store: Store, condition: Callable[[], bool], timeout: float | None, describe: Callable[[], str]
) -> None:
    """Check the condition after each commit of any process. Raises WaitTimeout after `timeout` seconds."""
    limit = None if timeout is None else validate.duration(timeout, "timeout") / SECOND
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        seen = store.commits_seen()
        if condition():
            return
        left = float("inf") if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{describe()} after {timeout} seconds")
        store.wait_for_commit(seen, left)


T = TypeVar("T")


async def finish_in_thread(call: Callable[[], T]) -> T:
    """Run the call in a thread. A cancelled caller still waits for it, since a commit cannot be interrupted."""
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # it may be cancelled more than once
                await asyncio.wait([running])
        running.exception()  # retrieved, so that asyncio does not log it
        raise
