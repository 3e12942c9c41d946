"""How much to do at a time: as much as fits into a given time, found by measuring."""

from __future__ import annotations

from ..store.base import Store

LOCK_SECONDS = 0.012
"""For what is to be written; with its commit, others wait for about 20 milliseconds."""
PAUSE_FACTOR = 10.0
"""After each step, while there is traffic, others have the database for so many times as long as it took."""
QUIET_FACTOR = 1.0
TRAFFIC_EVENTS = 20


class Courtesy:
    """How long to leave the database to others after a step: long while they use it, and short while they do not."""

    def __init__(self, store: Store) -> None:
        self._store, self._seen = store, store.last_event()

    def pause(self, seconds: float) -> float:
        """After so many seconds with the write lock."""
        if not seconds:
            return 0.0
        before, self._seen = self._seen, self._store.last_event()
        return seconds * (PAUSE_FACTOR if self._seen - before >= TRAFFIC_EVENTS else QUIET_FACTOR)


class Pace:
    def __init__(self, start: int, least: int, most: int, seconds: float = LOCK_SECONDS) -> None:
        self.amount, self._least, self._most, self._seconds = start, least, most, seconds

    def learn(self, amount: int, seconds: float) -> None:
        """So much took so long. It grows slowly, and shrinks at once."""
        if amount <= 0 or seconds <= 0:
            return
        fitting = amount * self._seconds / seconds
        if fitting > self.amount and amount < self.amount / 2:
            return  # too little was done to tell
        self.amount = round(max(self._least, min(self._most, min(fitting, self.amount * 1.5))))

    def halve(self) -> bool:
        """From now on, at most so much. False: it is the least already."""
        before, self.amount = self.amount, max(self._least, self.amount // 2)
        self._most = self.amount
        return self.amount < before
