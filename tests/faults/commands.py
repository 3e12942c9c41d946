"""Run commands of `holdfast` in this process, on one app, and look at how they end and what they print.

What does not depend on the database is done once: to open it, to build the schema that the doctor compares with, and
to list the open files of all processes of the machine.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main as command_line
from holdfast.cli.options import DatabaseOption
from holdfast.store.sqlite import constraints, diagnose, migrate
from holdfast.store.sqlite.engine import file_users
from holdfast.store.sqlite.migrate import SchemaObject
from holdfast.store.statements import Statements


class _KeptOpen(Holdfast):
    """Stays open when a command closes it: to open a database takes longer than most commands."""

    def close(self) -> None: ...

    def end(self) -> None:
        super().close()


class Commands:
    """Runs commands, and collects what is wrong with them."""

    def __init__(self, database: Path | str) -> None:
        self._database = str(database)
        self._app: _KeptOpen | None = None
        self.problems: list[str] = []

    def run(self, arguments: Sequence[str]) -> int:
        """Run a command. Return its exit code: 0, or what a typed error or a finding of the doctor makes of it."""
        result = CliRunner().invoke(command_line, [*arguments, "--db", self._database], prog_name="holdfast")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            where = last_line(result.exception.__traceback__)
            self.problems.append(f"{' '.join(arguments)}: traceback {result.exception!r:.120} at {where}")
        elif any(ord(one) < 32 and one not in "\n\t" for one in result.output) or "\u202e" in result.output:
            self.problems.append(f"{' '.join(arguments)}: a control character in the output")
        return result.exit_code

    def open(self, option: DatabaseOption, *, migrate: bool = False, **options: Any) -> Holdfast:
        """Take the place of DatabaseOption.open."""
        if migrate or options:
            return _open(option, migrate=migrate, **options)
        if self._app is None:
            self._app = _KeptOpen(option.url, migrate=False)
        return self._app

    def close(self) -> None:
        if self._app is not None:
            self._app.end()


_open, _expected = DatabaseOption.open, migrate.expected
_schemas: dict[str, dict[str, SchemaObject]] = {}


def _expected_once(sql: Statements, prefix: str) -> dict[str, SchemaObject]:
    if prefix not in _schemas:
        _schemas[prefix] = _expected(sql, prefix)
    return _schemas[prefix]


@contextmanager
def commands(database: Path | str) -> Iterator[Commands]:
    """Let all commands on a database use one app."""
    running = Commands(database)
    with (
        mock.patch.object(DatabaseOption, "open", lambda option, **options: running.open(option, **options)),
        cheap_doctor(),
    ):
        try:
            yield running
        finally:
            running.close()


@contextmanager
def cheap_doctor() -> Iterator[None]:
    """Build the expected schema once, and list no open files of other processes: none has this database open."""
    with (
        mock.patch.object(migrate, "expected", _expected_once),
        mock.patch.object(constraints, "expected", _expected_once),
        mock.patch.object(diagnose, "expected", _expected_once),
        mock.patch.object(file_users, "_processes_with", lambda path: {}),
    ):
        yield


def last_line(trace: TracebackType | None) -> str:
    """Return the file and the line that raised."""
    frames = traceback.extract_tb(trace)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
