"""What is sent, in every benchmark the same."""

import sqlite3
from pathlib import Path
from typing import Any, Literal

Durability = Literal["normal", "full"]

BODY: dict[str, Any] = {"to": "ada@example.org", "subject": "your order has shipped", "number": 48213}


def order(to: str, subject: str, number: int) -> None:
    """A task whose arguments are BODY."""


def stored(path: Path) -> int:
    """How many jobs a file of Holdfast's holds."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return int(connection.execute("SELECT count(*) FROM holdfast_jobs").fetchone()[0])
    finally:
        connection.close()
