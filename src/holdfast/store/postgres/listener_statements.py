"""What the listener asks of the database, on its own connection or, if it has none, on one of the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..statements import as_json
from .advisory_locks import FIRST_WITHOUT_LOCK, HEARTBEAT_BOUND
from .commit_outcome import incarnation_of
from .connection import Driver, Handle
from .listener import SLEEPERS

if TYPE_CHECKING:
    from .database import PostgresDatabase

TOUCH_SECONDS = 0.2


class ListenerStatements:
    """Implements Surroundings."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db, self._sql, self.lock_class = db, db.sql, db.lock_class

    def connect_listener(self) -> Driver | None:
        return self._db.sessions.connect_listener()

    def notify(self, driver: Driver | None) -> None:
        values = {"class": self.lock_class, "sleepers": SLEEPERS, "channel": self._db.names.channel}
        self._row(driver, self._sql.notify, values)

    def count_dead_workers(self, driver: Driver | None) -> int:
        since = self._db.clock.now() - HEARTBEAT_BOUND
        values = {"class": self.lock_class, "first_without_lock": FIRST_WITHOUT_LOCK, "since": since}
        return int(self._row(driver, self._sql.count_dead_workers, values)[0])

    def touch_workers(self, numbers: list[int]) -> None:
        def touch(driver: Driver) -> None:
            values = {"now": self._db.clock.now(), "place": incarnation_of(driver), "slots": as_json(numbers)}
            Handle(driver).execute(self._sql.touch_workers, values)

        with self._db.hurried(TOUCH_SECONDS):  # the heartbeat comes anyway
            self._db.with_driver(touch)

    def _row(self, driver: Driver | None, statement: str, values: dict[str, Any]) -> Any:
        if driver is None:
            return self._db.with_driver(lambda own: Handle(own).execute(statement, values).fetchone())
        return Handle(driver).execute(statement, values).fetchone()
