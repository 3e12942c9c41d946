"""The tables as a whole: their size and VACUUM. What checks or repairs a file is for SQLite only."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ...errors import StoreError
from ...model.diagnosis import Diagnosis, HealthMetrics
from ...model.stats import Storage
from ..protocol import Pages
from ..statements import as_json
from .connection import Driver
from .database import PostgresDatabase


class Tables:
    """Implements StoreFile, as far as it makes sense on a server. The doctor does not know PostgreSQL yet."""

    def __init__(self, db: PostgresDatabase, size: Callable[[], Storage]) -> None:
        self._db, self._size = db, size

    def log_event(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        values = {"now": self._db.clock.now(), "event": event, "actor": actor, "detail": as_json(detail)}
        self._db.change(self._db.sql.log_event, values)

    def count_orphaned(self) -> int:
        return 0  # a trigger deletes what belongs to a job together with it

    # --- space: the server reuses it by itself ---

    def checkpoint(self) -> tuple[int, int]:
        return 0, 0

    def pages(self) -> Pages:
        size = self._size()
        return Pages(size.database_bytes // size.page_size, 0, size.page_size, 2, size.database_bytes)

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        del pages, seconds
        return 0, 0.0

    def vacuum(self, tick: Callable[[], None]) -> None:
        """Run VACUUM on each table. tick: called before each; an exception from it ends the run."""
        for (table,) in self._db.rows(self._db.sql.own_tables, self._db.names.given):
            tick()
            statement = f"VACUUM (ANALYZE) {table}"
            self._db.with_driver(partial(_execute, statement=statement))

    # --- checks and repairs ---

    def diagnose(self, deep: bool = False) -> Diagnosis:
        del deep
        _not_there()

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        del since_minute, queues
        _not_there()

    def restore_schema(self) -> list[str]:
        _not_there()

    def delete_orphaned_rows(self) -> int:
        _not_there()

    def repair_finish_times(self) -> int:
        _not_there()

    def recount(self) -> int:
        _not_there()

    def insert_missed_endings(self) -> int:
        _not_there()


def _execute(driver: Driver, statement: str) -> None:
    driver.execute(statement)


def _not_there() -> NoReturn:
    raise StoreError("the doctor and the health check are for SQLite only in this version")
