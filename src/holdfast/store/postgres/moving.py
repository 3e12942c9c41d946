"""What moving to or from PostgreSQL needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import psycopg

from ...errors import CannotMove
from ..database import Connection
from ..move import REFUSED
from .database import PostgresDatabase

LOCK_MILLISECONDS = 200  # less than deadlock_timeout, which is a second
PAUSE_SECONDS = 0.05  # in which others go on
WITH_IDS = ("jobs", "batches", "operations", "endings", "fires")


class PostgresMoving:
    """Implements Moving."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db, self.place = db, db.where.shown

    def columns(self, connection: Connection, table: str) -> list[str]:
        given = {"table": f"{self._db.tables}{table}"}
        return [row[0] for row in connection.execute(self._db.sql.columns_of, given).fetchall()]

    def rows(self, connection: Connection, statement: str, values: Sequence[Any]) -> list[Any]:
        return connection.execute(statement, values).fetchall()  # the server stores no other text

    def lock(self, connection: Any) -> None:
        """Lock all tables, or none for now: who waits with some of them would deadlock with other transactions."""
        tables = [row[0] for row in connection.execute(self._db.sql.own_tables, self._db.names.given).fetchall()]
        ((usual,),) = connection.execute("SHOW lock_timeout").fetchall()
        deadline = monotonic() + self._db.options.busy_timeout
        connection.execute("SAVEPOINT holdfast_move")
        while True:
            try:
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_MILLISECONDS}ms'")
                connection.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE")
                break
            except psycopg.errors.LockNotAvailable:
                connection.execute("ROLLBACK TO SAVEPOINT holdfast_move")
                if monotonic() >= deadline:
                    raise
            sleep(PAUSE_SECONDS)
        connection.execute(f"SET LOCAL lock_timeout = '{usual}'")

    @contextmanager
    def without_triggers(self, connection: Connection, table: str) -> Iterator[None]:
        name = f"{self._db.tables}{table}"
        connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")
        yield
        connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER USER")

    def refuse_writes(self, connection: Any, message: str) -> None:
        self.accept_writes(connection)
        function, text = f"{self._db.tables}moved", message.replace("'", "''").replace("%", "%%")
        driver = connection.driver  # without placeholders: the message may have a question mark
        driver.execute(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$moved$ BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = 'HF001'; END $moved$"
        )
        for table, verbs in REFUSED.items():
            connection.execute(
                f"CREATE TRIGGER {self._db.names.prefix}moved BEFORE {' OR '.join(verbs)} "
                f"ON {self._db.tables}{table} FOR EACH ROW EXECUTE FUNCTION {function}()"
            )

    def accept_writes(self, connection: Connection) -> None:
        connection.execute(f"DROP FUNCTION IF EXISTS {self._db.tables}moved() CASCADE")

    def highest_ids(self, connection: Connection) -> dict[str, int]:
        last = {}
        for table in WITH_IDS:
            statement = self._db.sql.last_id.replace("{sequence}", self._sequence(connection, table))
            last[table] = int(connection.execute(statement).fetchone()[0])
        return last

    def continue_ids(self, connection: Connection, highest: dict[str, int]) -> None:
        for table in WITH_IDS:
            values = {"sequence": self._sequence(connection, table), "last": highest.get(table, 0)}
            statement = self._db.sql.continue_ids.replace("{table}", f"{self._db.tables}{table}")
            connection.execute(statement, values)
        with self.without_triggers(connection, "batches"):
            connection.execute(self._db.sql.place_of_open_batches)

    def require_later_events(self, connection: Connection, last: int) -> None:
        ((first,),) = connection.execute(self._db.sql.next_event).fetchall()
        if first <= last:
            raise CannotMove(
                f"the last event of the source has the id {last}, and those of {self.place} would go on from "
                f"{first}, before it: choose a server that has run more transactions"
            )

    def _sequence(self, connection: Connection, table: str) -> str:
        values = (f"{self._db.tables}{table}",)
        return str(connection.execute("SELECT pg_get_serial_sequence(?, 'id')", values).fetchone()[0])
