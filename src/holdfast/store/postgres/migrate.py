"""Apply numbered migrations, each in one transaction."""

from pathlib import Path

import psycopg

from ...clock import Clock
from ...errors import MigrationFailed, SchemaOutdated, SchemaTooNew
from ..statements import with_prefix
from .connection import Driver, rollback
from .errors import is_lost

FOLDER = Path(__file__).parent / "migrations"
NOW = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
LOCK_NUMBER = 2  # of the advisory lock


class Names:
    """The schema and the prefix of the tables, and what is named after them."""

    def __init__(self, schema: str, prefix: str, channel: str | None = None) -> None:
        self.schema, self.prefix = schema, prefix
        self.tables = f"{schema}.{prefix}"
        self.channel = channel or f"{schema}.{prefix}"  # at most 63 bytes
        self.given = {"schema": schema, "prefix": prefix}

    def fill(self, text: str) -> str:
        text = with_prefix(text, self.tables)
        return text.replace("{n}", self.prefix).replace("{now}", NOW).replace("{channel}", self.channel)


class PostgresMigrations:
    """The migrations of one set of tables."""

    def __init__(self, driver: Driver, names: Names, lock_class: int) -> None:
        self._driver, self._names, self._class = driver, names, lock_class
        self._known = {file.stem: file for file in sorted(FOLDER.glob("[0-9]*.sql"))}

    def require_current(self) -> None:
        pending = self.pending()
        if pending:
            raise SchemaOutdated(
                f"found {len(self._known) - len(pending)} migrations, need {len(self._known)}: open the database "
                "once with migrate=True, which is the default"
            )

    def pending(self) -> list[str]:
        applied = self.applied()
        unknown = sorted(applied - self._known.keys())
        if unknown:
            raise SchemaTooNew(
                f"this database was migrated by a newer Holdfast ({', '.join(unknown)}): "
                "upgrade with 'pip install --upgrade holdfast'"
            )
        return [name for name in self._known if name not in applied]

    def known(self) -> list[str]:
        return list(self._known)

    def create_all(self) -> None:
        """Create what all migrations create, in an open transaction, without a record of it."""
        for file in self._known.values():
            self._driver.execute(self._names.fill(file.read_text(encoding="utf-8")))

    def applied(self) -> set[str]:
        table = f"{self._names.tables}migrations"
        (found,) = self._driver.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone() or (False,)
        if not found:
            return set()
        return {row[0] for row in self._driver.execute(f"SELECT name FROM {table}").fetchall()}  # noqa: S608

    def apply(self, clock: Clock) -> list[str]:
        """Apply pending migrations. Returns their names. Processes that do so at the same time take turns."""
        if not self.pending():
            return []
        done: list[str] = []
        try:
            self._driver.execute("BEGIN")
            self._driver.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", (self._class, LOCK_NUMBER))
            for name in self.pending():  # again, now with the lock
                self._apply_one(name, clock.now())
                done.append(name)
            self._driver.execute("COMMIT")
        finally:
            rollback(self._driver)
        return done

    def _apply_one(self, name: str, now: int) -> None:
        table = f"{self._names.tables}migrations"
        try:
            if self._names.schema != "public":
                self._driver.execute(f"CREATE SCHEMA IF NOT EXISTS {self._names.schema}")
            self._driver.execute(self._names.fill(self._known[name].read_text(encoding="utf-8")))
            self._driver.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (name text PRIMARY KEY, applied_at bigint NOT NULL)"
            )
            self._driver.execute(f"INSERT INTO {table} (name, applied_at) VALUES (%s, %s)", (name, now))  # noqa: S608
        except (psycopg.errors.SerializationFailure, psycopg.errors.InsufficientPrivilege):
            raise
        except psycopg.Error as error:
            if is_lost(error, self._driver):
                raise
            told = str(error).strip().splitlines()[0]
            raise MigrationFailed(
                f"migration {name} failed and was rolled back ({told}): the database is unchanged. If a table of "
                "that name is not Holdfast's, pass another prefix="
            ) from error
