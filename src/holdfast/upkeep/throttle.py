"""How much to delete in one transaction, and how long to pause after it. Both adapt to measurements."""

from __future__ import annotations

from ..store.protocol import Store

LOCK_SECONDS = 0.012
"""The target for one transaction. With its commit, other writers wait for about 20 milliseconds."""
BUSY_FACTOR = 10.0
"""While there is traffic, a pause is this many times as long as the step before it."""
IDLE_FACTOR = 1.0
BUSY_EVENTS = 20  # since the last step


class Throttle:
    """Pauses after each step: long while other processes use the database, short while they do not."""

    def __init__(self, store: Store) -> None:
        self._store, self._last_event = store, _last_event(store)

    def pause(self, seconds: float) -> float:
        """Return the seconds to pause after a step that held the write lock for this long."""
        if not seconds:
            return 0.0
        # Pruning logs events itself. They come after those that other processes logged before the step.
        events = self._store.statistics.events(BUSY_EVENTS, after=self._last_event)
        traffic = sum(one.event != "removed" for one in events)
        self._last_event = _last_event(self._store)
        return seconds * (BUSY_FACTOR if traffic >= BUSY_EVENTS else IDLE_FACTOR)


def _last_event(store: Store) -> int:
    return next((one.id for one in store.statistics.events(1)), 0)


class BatchSize:
    """The number of rows that fit into one transaction of the given length."""

    def __init__(self, rows: int, minimum: int, maximum: int, seconds: float = LOCK_SECONDS) -> None:
        self.rows, self._minimum, self._maximum, self._seconds = rows, minimum, maximum, seconds

    def adapt(self, rows: int, seconds: float) -> None:
        """Take a measurement into account. The size grows slowly and shrinks at once."""
        if rows <= 0 or seconds <= 0:
            return
        fitting = rows * self._seconds / seconds
        if fitting > self.rows and rows < self.rows / 2:
            return  # too few rows for a reliable measurement
        self.rows = round(max(self._minimum, min(self._maximum, fitting, self.rows * 1.5)))

    def halve(self) -> bool:
        """Use at most half of the current size from now on. Return False if it is the minimum already."""
        before, self.rows = self.rows, max(self._minimum, self.rows // 2)
        self._maximum = self.rows
        return self.rows < before
