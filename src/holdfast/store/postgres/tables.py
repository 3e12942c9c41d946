"""The tables as a whole: their size, VACUUM, checks and repairs."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ...model.stats import Storage
from ..protocol import Pages
from ..statements import as_json
from .connection import Driver
from .database import PostgresDatabase
from .diagnose import ServerDiagnostics, ServerRepairs


class Tables:
    """Implements StoreFile, as far as it makes sense on a server."""

    shrinks_in_steps = False

    def __init__(
        self,
        db: PostgresDatabase,
        size: Callable[[], Storage],
        diagnostics: ServerDiagnostics,
        repairs: ServerRepairs,
    ) -> None:
        self._db, self._size = db, size
        self.diagnose, self.health_metrics = diagnostics.diagnose, diagnostics.health_metrics
        self.restore_schema, self.delete_orphaned_rows = repairs.restore_schema, repairs.delete_orphaned_rows
        self.repair_finish_times, self.recount = repairs.repair_finish_times, repairs.recount
        self.insert_missed_endings = repairs.insert_missed_endings

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

    def vacuum(self, tick: Callable[[], None], full: bool = True) -> None:
        """Run VACUUM on each table. tick: called before each; an exception from it ends the run."""
        options = "FULL, ANALYZE" if full else "ANALYZE"
        for (table,) in self._db.rows(self._db.sql.own_tables, self._db.names.given):
            tick()
            statement = f"VACUUM ({options}) {table}"
            self._db.with_driver(partial(_execute, statement=statement))


def _execute(driver: Driver, statement: str) -> None:
    driver.execute(statement)
