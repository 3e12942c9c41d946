"""Find rows that break a constraint of their table, and set aside jobs with such rows.

Constraints can be switched off (`PRAGMA ignore_check_constraints`), and a file can be damaged. SQLite then refuses
every change of such a row, and with it the statement that would change others as well: one row could keep all workers
from claiming. So a job whose row is damaged is set aside: it fails, with a code. Where it is a row of another table,
as of a batch, the transaction runs once more without constraints: the damaged value stays, the others are stored.
"""

import logging
import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import NamedTuple, ParamSpec, TypeVar

from ...errors import DamagedRow
from ...model.diagnosis import BrokenRows
from ...text import plural
from ..statements import Statements, as_json
from .database import Database
from .migrate import expected

log = logging.getLogger("holdfast.store")
P = ParamSpec("P")
T = TypeVar("T")
SET_ASIDE_AT_ONCE = 100
MOST_SEARCHES = 10  # for one call, each of which has found some
SEARCH_SECONDS = 60.0  # between two searches that found nothing
_COMMENT = re.compile(r"--[^\n]*")
_CHECK = re.compile(r"CONSTRAINT (\w+)\s+CHECK \(")


class Constraint(NamedTuple):
    table: str
    name: str
    condition: str


@lru_cache(maxsize=4)
def constraints(sql: Statements, prefix: str) -> list[Constraint]:
    """Return the named CHECK constraints that the migrations create: the tables may have lost theirs."""
    found = []
    for one in expected(sql, prefix).values():
        if one.kind == "table":
            text = _COMMENT.sub("", one.sql)
            found += [
                Constraint(one.table, match[1], _balanced(text, match.end())) for match in _CHECK.finditer(text)
            ]
    return found


def _balanced(text: str, start: int) -> str:
    """Return the text up to the parenthesis that closes the one before `start`."""
    depth, position = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return text[start : position - 1]


def broken_rows(connection: sqlite3.Connection, sql: Statements, prefix: str, window: int) -> list[BrokenRows]:
    """Count the rows that break each constraint, among the last `window` of each table; -1: all."""
    by_table: dict[str, list[Constraint]] = {}
    for one in constraints(sql, prefix):
        by_table.setdefault(one.table, []).append(one)
    found = []
    for table, checks in by_table.items():
        sums = ", ".join(f"sum(NOT ({one.condition}))" for one in checks)
        rows = f"(SELECT * FROM {table} ORDER BY 1 DESC LIMIT {window:d})"  # noqa: S608
        counts = connection.execute(f"SELECT {sums} FROM {rows}").fetchone()  # noqa: S608
        found += [BrokenRows(table, one.name, n) for one, n in zip(checks, counts, strict=True) if n]
    return found


class DamagedJobs:
    """Sets aside unfinished jobs whose rows are damaged."""

    def __init__(self, db: Database) -> None:
        self._db, self._sql = db, db.sql
        self._searched_at = -SEARCH_SECONDS  # without finding any

    def guarded(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function that does the same whatever rows hold. It must not store values of users."""

        def guard(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except DamagedRow as error:
                found = error
            for _ in range(MOST_SEARCHES):
                if not self.set_aside():
                    log.error("a row is damaged, run 'holdfast doctor' (%s)", found)
                    break
                try:
                    return function(*args, **kwargs)
                except DamagedRow as error:
                    found = error
            self._check_constraints(False)
            try:
                return function(*args, **kwargs)
            finally:
                self._check_constraints(True)

        return guard

    def _check_constraints(self, on: bool) -> None:
        pragma = f"PRAGMA ignore_check_constraints = {'OFF' if on else 'ON'}"
        self._db.run(lambda connection: connection.execute(pragma) and None)

    def set_aside(self) -> int:
        """unfinished -> failed, for jobs whose rows break a constraint. Return how many."""
        if monotonic() - self._searched_at < SEARCH_SECONDS:
            return 0
        prefix = self._db.options.prefix
        checks = [one for one in constraints(self._sql, prefix) if one.table == f"{prefix}jobs"]
        broken = " OR ".join(f"NOT ({one.condition})" for one in checks)
        rows = self._db.rows(self._sql.damaged_jobs.replace("{where}", broken), {"limit": SET_ASIDE_AT_ONCE})
        if not rows:
            self._searched_at = monotonic()
            return 0
        given = {"ids": as_json([row[0] for row in rows]), "now": self._db.clock.now(), "actor": self._db.actor}

        def work(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            try:
                return connection.execute(self._sql.fail_damaged, given).rowcount
            finally:
                connection.execute("PRAGMA ignore_check_constraints = OFF")

        failed = self._db.run(work, wakes=True)
        ids = ", ".join(str(row[0]) for row in rows[:10])
        log.error(
            "set aside %s whose row holds a value that the schema does not allow: %s", plural(failed, "job"), ids
        )
        return failed
