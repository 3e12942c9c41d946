"""A store looks itself over, on a connection of its own for reading."""

import sqlite3
from collections.abc import Sequence

from ..examination import Examination, Vitals
from ..vault import Vault
from .database import Database
from .look import Look, blank
from .surroundings import Holders


class Examining:
    def __init__(self, db: Database, vault: Vault) -> None:
        self._db, self._sql, self._clock, self._vault = db, db.sql, db.clock, vault

    def examine(self, deep: bool = False) -> Examination:
        """What is not as it should be. Nothing is written. deep: all rows are looked at, however long it takes."""
        options = self._db.options
        holders = Holders(options.path)

        def work(connection: sqlite3.Connection) -> Examination:
            found = blank(options.path, options.prefix, options.min_free_bytes, self._clock, deep, holders)
            look = Look(connection, self._sql, options.path, self._clock, self._vault.listed)
            look.examine(found, is_open=True)
            return found

        return self._db.read(work)

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        """What a health check asks: what waits longest, how attempts ended since a minute, and who is there."""
        return self._db.read(
            lambda connection: Look(connection, self._sql, self._db.options.path, self._clock).vitals(
                since_minute, queues
            )
        )
