"""How much to do in one transaction, and how long to pause after it: both found by measuring."""

from __future__ import annotations

from ..store.protocol import Store

LOCK_SECONDS = 0.012
"""Of one transaction; with its commit, others wait for about 20 milliseconds."""
PAUSE_FACTOR = 10.0
"""While there is traffic, a pause is so many times as long as the step before it."""
QUIET_FACTOR = 1.0
TRAFFIC_EVENTS = 20  # since the last step


class Courtesy:
    """Pauses after each step: long while others use the database, and short while they do not."""

    def __init__(self, store: Store) -> None:
        self._store, self._seen = store, self._last_event(store)

    def pause(self, seconds: float) -> float:
        """Return the seconds to pause after a step that had the write lock for so long."""
        if not seconds:
            return 0.0
        # What pruning itself has logged is no traffic, and comes behind what others have logged before the step.
        events = self._store.statistics.events(TRAFFIC_EVENTS, after=self._seen)
        traffic = sum(one.event != "removed" for one in events)
        self._seen = self._last_event(self._store)
        return seconds * (PAUSE_FACTOR if traffic >= TRAFFIC_EVENTS else QUIET_FACTOR)

    @staticmethod
    def _last_event(store: Store) -> int:
        return next((one.id for one in store.statistics.events(1)), 0)


class Pace:
    """How many rows fit into the given seconds."""

    def __init__(self, start: int, least: int, most: int, seconds: float = LOCK_SECONDS) -> None:
        self.amount, self._least, self._most, self._seconds = start, least, most, seconds

    def learn(self, amount: int, seconds: float) -> None:
        """Take note that so much took so long. The amount grows slowly, and shrinks at once."""
        if amount <= 0 or seconds <= 0:
            return
        fitting = amount * self._seconds / seconds
        if fitting > self.amount and amount < self.amount / 2:
            return  # too little was done to tell
        self.amount = round(max(self._least, min(self._most, min(fitting, self.amount * 1.5))))

    def halve(self) -> bool:
        """Do half as much from now on. False: it is the least already."""
        before, self.amount = self.amount, max(self._least, self.amount // 2)
        self._most = self.amount
        return self.amount < before
