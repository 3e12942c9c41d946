"""What is sent and what is run, in every benchmark the same."""

from asyncio import sleep
from typing import Any

BODY: dict[str, Any] = {"to": "ada@example.org", "subject": "Thank you for your order", "order": 12345, "n": 1}


def order(to: str, subject: str, order: int, n: int) -> None:
    """A task whose arguments are BODY."""


def noop() -> None:
    """As little as a task can do."""


async def noop_async() -> None:
    """The same on the event loop."""


async def nap() -> None:
    """Take long enough to be killed meanwhile."""
    await sleep(30)
