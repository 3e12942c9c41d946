"""The databases that the conformance suite runs on, and what a program that knows nothing of Holdfast does to them.

To run the suite on another store, write a subclass of `Backend` and add it to `BACKENDS` in
`conformance/conftest.py`.
"""

import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import Holdfast
from support.slow_commits import recheck_for_minutes

Values = Sequence[Any]

NEVER_SECONDS = 3600.0


class Backend(ABC):
    """One database for one test.

    Statements are plain SQL that every database takes, with `?` for each value. A backend whose driver has another
    placeholder translates it.
    """

    name: ClassVar[str]
    DatabaseError: ClassVar[type[Exception]]
    """The driver's base class of what a database refuses."""
    IntegrityError: ClassVar[type[Exception]]
    """The driver's error for a broken constraint."""
    ends_leases_at_boot: ClassVar[bool]
    """Whether leases are on the clock of this machine, and end when it starts again."""

    url: str
    """Where the database is. It has no tables before the first `open`."""

    def __init__(self, folder: Path, template: str) -> None:
        """Take a folder for the files of this test, and what `make_template` returned."""
        self._opened: list[Holdfast] = []

    @classmethod
    @abstractmethod
    def make_template(cls, folder: Path) -> str:
        """Create a database with all tables and no rows, once for all tests, and return where it is."""

    @classmethod
    def relax(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change constants on which results would depend on the speed or the settings of the machine."""
        del monkeypatch

    # --- Holdfast ---

    def open(self, **options: Any) -> Holdfast:
        """Open another Holdfast on this database, which waits long for locks on a slow machine. `close` closes it."""
        self.create_tables()
        self._opened.append(Holdfast(self.url, **{"busy_timeout": 60, **options}))
        return self._opened[-1]

    def close(self) -> None:
        """Close every Holdfast that was opened, and remove the database."""
        for app in self._opened:
            app.close()

    @abstractmethod
    def create_tables(self) -> None:
        """Create all tables where there are none, from the template: that is faster than to run the migrations."""

    # --- the user's own SQL ---

    @abstractmethod
    def connect(self) -> Any:
        """Return a new connection of the user's own, as the driver makes it without options: to be passed as `conn=`.

        A statement that writes begins a transaction, `commit()` or `rollback()` ends it.
        """

    @abstractmethod
    def execute(self, on: Any, statement: str, values: Values = ()) -> list[Any]:
        """Run a statement on a connection or on what `app.transaction()` gives, and return its rows."""

    def sql(self, statement: str, values: Values = ()) -> list[Any]:
        """Run a statement on a connection of its own, commit it, and return its rows."""
        with closing(self.connect()) as connection:
            rows = self.execute(connection, statement, values)
            connection.commit()
            return rows

    def sql_many(self, statement: str, many: Sequence[Values]) -> None:
        """Run a statement once for each of many values, in one transaction."""
        with closing(self.connect()) as connection:
            for values in many:
                self.execute(connection, statement, values)
            connection.commit()

    @abstractmethod
    def create_trigger(self, name: str, table: str, statement: str) -> None:
        """Create a trigger that runs the statement after each insert into the table, with the row as NEW."""

    # --- what goes wrong ---

    @abstractmethod
    def stop_polling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let those who wait for a commit look at the database only when they are woken."""

    @abstractmethod
    def hold_write_lock(self) -> "WriteLock":
        """Take a lock, on a connection of somebody else, for which every write waits and no read does."""

    @abstractmethod
    def hold_transactions(self, app: Holdfast) -> "WriteLock":
        """Take what every transaction of this Holdfast waits for before it begins."""

    @abstractmethod
    def make_read_only(self, app: Holdfast) -> None:
        """Let every write of this Holdfast fail as it does on a read-only disk."""

    @abstractmethod
    def check_consistency(self) -> None:
        """Assert that no foreign key is broken."""

    @abstractmethod
    def bury_workers(self) -> None:
        """Let every worker on record look as if its process had ended."""

    @abstractmethod
    def bury_creators(self) -> None:
        """Let the process of each block that makes a batch look as if it had ended inside."""

    # --- what it takes up ---

    @abstractmethod
    def blob_names(self) -> list[str]:
        """Return the names of the large payloads and results that are kept outside of their rows, sorted."""


class WriteLock:
    """A lock that is held until it is released, at the latest at the end of the `with` block."""

    def __init__(self, release: Callable[[], None], close: Callable[[], None]) -> None:
        self._release, self._close = release, close

    def release(self) -> None:
        self._release()

    def __enter__(self) -> "WriteLock":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class SqliteBackend(Backend):
    name = "sqlite"
    DatabaseError = sqlite3.DatabaseError
    IntegrityError = sqlite3.IntegrityError
    ends_leases_at_boot = True

    def __init__(self, folder: Path, template: str) -> None:
        super().__init__(folder, template)
        self.path, self._template = folder / "app.db", template
        self.url = str(self.path)

    @classmethod
    def make_template(cls, folder: Path) -> str:
        path = folder / "app.db"
        Holdfast(path).close()
        assert [file.name for file in folder.iterdir()] == ["app.db"]
        return str(path)

    def create_tables(self) -> None:
        if not self.path.exists():
            shutil.copy(self._template, self.path)  # with its mode

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path)
        connection.execute("PRAGMA synchronous = NORMAL")  # who waits for its commits need not wait for the disk
        return connection

    def execute(self, on: Any, statement: str, values: Values = ()) -> list[Any]:
        rows: list[Any] = on.execute(statement, values).fetchall()
        return rows

    def create_trigger(self, name: str, table: str, statement: str) -> None:
        self.sql(f"CREATE TRIGGER {name} AFTER INSERT ON {table} BEGIN {statement}; END")

    def stop_polling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.store.sqlite.engine.watcher.MAX_SLEEP_SECONDS", NEVER_SECONDS)
        monkeypatch.setattr("holdfast.store.read.MAX_WAIT_SECONDS", NEVER_SECONDS)
        recheck_for_minutes(monkeypatch.setattr)

    def hold_write_lock(self) -> WriteLock:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("BEGIN IMMEDIATE")

        def release() -> None:
            connection.execute("ROLLBACK")

        return WriteLock(release, connection.close)

    def hold_transactions(self, app: Holdfast) -> WriteLock:
        return self.hold_write_lock()

    def make_read_only(self, app: Holdfast) -> None:
        set_pragma(app, "query_only = ON")

    def check_consistency(self) -> None:
        assert self.sql("PRAGMA foreign_key_check") == []

    def bury_workers(self) -> None:
        self.sql("UPDATE holdfast_workers SET slot = -1")  # as after a restart of the machine

    def bury_creators(self) -> None:
        self.sql("UPDATE holdfast_batches SET slot = -1 WHERE sealed_at IS NULL")

    def blob_names(self) -> list[str]:
        return sorted(path.name for path in Path(f"{self.path}-blobs").rglob("*") if path.is_file())


def set_pragma(app: Holdfast, setting: str) -> None:
    """Set it on the connection that writes."""
    app.store.database._engine.writer._connection.execute(f"PRAGMA {setting}").fetchall()  # type: ignore[attr-defined]
