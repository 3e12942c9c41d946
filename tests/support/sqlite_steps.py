"""How much SQLite does for a statement: counted by its own machine, which no clock and no other load changes."""

import sqlite3
from typing import Any

from holdfast import Holdfast


def machine_steps(app: Holdfast, names: list[str], values: dict[str, Any], every: int) -> int:
    """Of these statements of the store together, in so many instructions."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def work(connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(step, every)
        try:
            for name in names:
                connection.execute(getattr(app.store.database.sql, name), values).fetchall()  # type: ignore[attr-defined]
        finally:
            connection.set_progress_handler(None, 0)

    app.store.database.read(work)  # type: ignore[attr-defined]
    return count
