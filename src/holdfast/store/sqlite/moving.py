"""The steps of a move to or from SQLite: columns, triggers, refused writes, ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import CannotMove
from ..database import Connection
from ..move import REFUSED
from .database import Database

MOST_SHOWN = 60  # bytes
WITH_IDS = ("jobs", "batches", "operations")


class SqliteMoving:
    """Implements Moving."""

    def __init__(self, db: Database) -> None:
        self._db, self.place = db, str(db.options.path.resolve())

    def columns(self, connection: Connection, table: str) -> list[str]:
        given = {"table": f"{self._db.tables}{table}"}
        return [row[0] for row in connection.execute(self._db.sql.columns_of, given).fetchall()]

    def rows(self, connection: Any, statement: str, values: Sequence[Any]) -> list[Any]:
        usual, connection.text_factory = connection.text_factory, _decoded
        try:
            return list(connection.execute(statement, values).fetchall())
        except UnicodeDecodeError as error:
            raise CannotMove(
                f"{self.place} has text that is not UTF-8 and would become another text "
                f"({error.object[:MOST_SHOWN]!r}): correct or delete its row, then move again"
            ) from error
        finally:
            connection.text_factory = usual

    def lock(self, connection: Connection) -> None:
        """The transaction has the write lock."""

    @contextmanager
    def without_triggers(self, connection: Connection, table: str) -> Iterator[None]:
        given = {"table": f"{self._db.tables}{table}"}
        triggers = connection.execute(self._db.sql.triggers_of, given).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield
        for _, statement in triggers:
            connection.execute(statement)

    def refuse_writes(self, connection: Connection, message: str) -> None:
        self.accept_writes(connection)
        text = message.replace("'", "''")
        for table, verbs in REFUSED.items():
            for verb in verbs:
                connection.execute(
                    f"CREATE TRIGGER {self._name(table, verb)} BEFORE {verb} ON {self._db.tables}{table} "
                    f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
                )

    def accept_writes(self, connection: Connection) -> None:
        for table, verbs in REFUSED.items():
            for verb in verbs:
                connection.execute(f"DROP TRIGGER IF EXISTS {self._name(table, verb)}")

    def _name(self, table: str, verb: str) -> str:
        return f"{self._db.tables}moved_{table}_{verb.lower()}"

    def highest_ids(self, connection: Connection) -> dict[str, int]:
        prefix = self._db.tables
        rows = connection.execute(self._db.sql.last_ids).fetchall()
        return {name.removeprefix(prefix): seq for name, seq in rows if name.startswith(prefix)}

    def continue_ids(self, connection: Connection, highest: dict[str, int]) -> None:
        for table in WITH_IDS:
            given = {"table": f"{self._db.tables}{table}", "last": highest.get(table, 0)}
            connection.execute(self._db.sql.begin_ids, given)
            connection.execute(self._db.sql.continue_ids, given)
        connection.execute(self._db.sql.forget_event_blocks)
        connection.execute(self._db.sql.index_events_by_job)
        with self.without_triggers(connection, "batches"):
            connection.execute(self._db.sql.place_of_open_batches)

    def require_later_events(self, connection: Connection, last: int) -> None:
        """The next event has the highest id and one more."""


def _decoded(data: bytes) -> str:
    return data.decode()
