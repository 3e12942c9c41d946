"""Calling blocking code from asyncio."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def finish_in_thread(call: Callable[[], T]) -> T:
    """Run the call in a thread. A cancellation waits for its end: a commit under way cannot be called back."""
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # however often it is cancelled
                await asyncio.wait([running])
        running.exception()  # seen, so that asyncio does not complain of it
        raise
