"""Calling blocking code from asyncio."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_in_thread(call: Callable[[], T]) -> T:
    """Run the call in a thread. A cancellation waits for its end: a commit under way cannot be called back."""
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen, so that asyncio does not complain of it
        raise
