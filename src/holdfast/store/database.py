"""What the parts that both databases share need of a database."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class SharedDatabase(Protocol):
    """Runs work on a connection, which executes named statements."""

    def read(self, work: Callable[[Any], T]) -> T: ...

    def read_snapshot(self, work: Callable[[Any], T]) -> T:
        """Run reads that all see the same moment."""
        ...

    def run(self, work: Callable[[Any], T], *, durable: bool = False) -> T:
        """Run it in a transaction that is committed when this returns; durable: and on the disk."""
        ...
