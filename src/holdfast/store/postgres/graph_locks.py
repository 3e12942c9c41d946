"""Locks on the graph of jobs, by rows and by an advisory lock. Locks go by id, so that they do not cross."""

from collections.abc import Collection

from ..database import Connection
from ..graph_locks import Locked
from ..statements import Statements, as_json


class RowLocks:
    """Implements GraphLocks."""

    def __init__(self, sql: Statements, lock_class: int) -> None:
        self._sql, self._class = sql, lock_class

    def lock_endings(self, connection: Connection) -> Locked:
        """One transaction at a time resolves ends, and sees all that was committed before it got the lock.

        A transaction of the caller with a snapshot of its own does not: the next claim of a worker resolves its ends.
        """
        (sees,) = connection.execute(self._sql.sees_commits).fetchone()
        if not sees:
            return "impossible"
        connection.execute(self._sql.lock_endings, (self._class,))
        return "locked"

    def hold_chains(self, connection: Connection, chains: Collection[int]) -> None:
        """Lock the last job of each chain, and look again, since the chain may have continued meanwhile."""
        given = {"chains": as_json(sorted(chains))}
        connection.execute(self._sql.mark_awaited_in_order, given)
        before: list[int] | None = None
        while True:
            held = sorted(row[0] for row in connection.execute(self._sql.hold_last_jobs, given).fetchall())
            if held == before or not held:
                return
            before = held

    def hold_batch(self, connection: Connection, batch: int) -> None:
        connection.execute(self._sql.hold_batch, (batch,))

    def lock_batches(self, connection: Connection, batches: Collection[int]) -> set[int]:
        given = {"batches": as_json(sorted(batches))}
        locked = {row[0] for row in connection.execute(self._sql.lock_batches, given).fetchall()}
        known = {row[0] for row in connection.execute(self._sql.known_batches, given).fetchall()}
        return known - locked
