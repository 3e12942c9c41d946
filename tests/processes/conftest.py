"""What the tests of processes share."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_processes import Processes

from holdfast import Holdfast
from support.child_processes import Crew


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    database = tmp_path / "app.db"
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        yield Processes(tmp_path, crew, app, database)
        connection = sqlite3.connect(database)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
