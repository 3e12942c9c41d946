"""Locks on the graph of jobs: chains, the jobs that wait for them, and batches.

What ends a job looks for the jobs that wait for it, and what enqueues a job looks whether its blockers have ended. If
both do so at the same time, and neither sees the other, the job waits for ever. The same goes for two blockers of one
job, two last members of a batch, and a member that is added while its batch ends. So one of them has to wait for the
other, and look afterwards.
"""

from collections.abc import Collection
from typing import Literal, Protocol

from .database import Connection

Locked = Literal["locked", "alone", "impossible"]


class GraphLocks(Protocol):
    """All of these locks last until the transaction ends."""

    def lock_endings(self, connection: Connection, /) -> Locked:
        """Let no other transaction resolve ends of jobs.

        Return "locked" if this may have waited for another one, so that it has to be looked again; "alone" if no
        other can write now; "impossible" if this transaction does not see what others have committed meanwhile.
        """
        ...

    def hold_chains(self, connection: Connection, chains: Collection[int], /) -> None:
        """Let the ends of these chains wait. The next statement sees whether they have ended."""
        ...

    def hold_batch(self, connection: Connection, batch: int, /) -> None:
        """Let the end of this batch wait. The next statement sees whether it has ended."""
        ...

    def lock_batches(self, connection: Connection, batches: Collection[int], /) -> set[int]:
        """Let nobody add members to these batches. Return those that a transaction is adding some to."""
        ...


class OneWriter:
    """Implements GraphLocks for a database that has one write lock: only its owner sees and changes the graph."""

    def lock_endings(self, connection: Connection) -> Locked:
        del connection
        return "alone"

    def hold_chains(self, connection: Connection, chains: Collection[int]) -> None:
        """The write lock does that."""

    def hold_batch(self, connection: Connection, batch: int) -> None:
        """The write lock does that."""

    def lock_batches(self, connection: Connection, batches: Collection[int]) -> set[int]:
        del connection, batches
        return set()
