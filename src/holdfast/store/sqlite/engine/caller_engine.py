"""An engine on one connection of the caller, inside the transaction that is open there. For tests.

A test that ends with a rollback takes back what Holdfast has stored as well, and its database may be in memory. Every
write is a savepoint. There is no writer, no checkpoint and no wake-up.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NoReturn, TypeVar

from ....clock import Clock
from ....errors import ForeignConnection, TransactionError
from ...transactions import CallerConnection, would_wait_for_itself
from ..migrate import Migrations
from .connection import require_usable_sqlite
from .database_file import FreeSpace
from .engine import Options
from .errors import SQLITE_ERRORS, BusyRetry, translate
from .transaction import K, Transaction, begin, in_savepoint, plain_rows, require_connection

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class CallerEngine:
    """Has the methods of Engine and of its writer and watcher, as far as they make sense on one connection."""

    closed_lock_files = 0
    changes_since_fold = 0

    def __init__(self, options: Options, caller: CallerConnection, clock: Clock, random: Random) -> None:
        self.options, self._caller, self.space = options, caller, FreeSpace(options.path.parent, 0)
        self.busy_retry = BusyRetry(random, options.busy_timeout)
        self.writer = self.watcher = self
        self._lock = threading.RLock()
        self._block: Transaction | None = None  # of the caller, open
        self._commits = 0
        require_usable_sqlite()
        caller.begin()
        self._began, self._drop = self._use(lambda connection: self._begin(connection, clock))

    def _begin(self, connection: sqlite3.Connection, clock: Clock) -> tuple[bool, list[str]]:
        """Begin a transaction unless one is open, and create the tables in it. Return whether, and which.

        None is begun if the connection commits each statement, as Django's does: its owner begins them.
        """
        require_connection(connection)
        began = not connection.in_transaction and connection.isolation_level is not None
        if began:
            begin(connection, self.busy_retry)
        migrations = Migrations(connection, self.options.prefix)
        return began, in_savepoint(connection, lambda _: migrations.apply_here(clock.now()))

    def _use(self, work: Work[T]) -> T:
        def plainly(connection: sqlite3.Connection) -> T:
            with plain_rows(connection):
                return work(connection)

        try:
            with self._lock:
                return self._caller.run(plainly)
        except SQLITE_ERRORS as error:
            self.raise_for(error)

    # --- as the writer ---

    def run(self, work: Work[T], **_: Any) -> T:
        self.forbid_nested_write()
        return self._write(work)

    run_in_this_thread = run

    def _write(self, work: Work[T]) -> T:
        result = self._use(lambda connection: self.busy_retry.run(lambda: in_savepoint(connection, work)))
        self._commits += 1
        return result

    def forbid_nested_write(self) -> None:
        if self._block is not None:
            raise would_wait_for_itself()

    forbid_self_wait = forbid_nested_write

    def raise_for(self, error: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        raise translate(error, self.options.path) from error

    def held_for(self) -> float:
        return 0.0

    def checkpoint(self) -> tuple[int, int]:
        return 0, 0

    # --- as the engine ---

    def read(self, work: Work[T]) -> T:
        return self._use(work)

    read_snapshot = read

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._caller.driver()
            with plain_rows(connection):
                yield connection

    @contextmanager
    def transaction(self, kind: type[K]) -> Iterator[K]:
        self.forbid_nested_write()
        transaction = kind(self._caller)
        with self._lock, self._savepoint("holdfast_block"):
            self._block = transaction
            try:
                yield transaction
            finally:
                self._block = None
                transaction._end()

    @contextmanager
    def _savepoint(self, name: str) -> Iterator[None]:
        self._use(lambda connection: connection.execute(f"SAVEPOINT {name}"))
        try:
            yield
        except BaseException:
            self._use(lambda connection: connection.in_transaction and connection.execute(f"ROLLBACK TO {name}"))
            raise
        finally:
            self._use(lambda connection: connection.in_transaction and connection.execute(f"RELEASE {name}"))
            self._commits += 1

    def run_without_transaction(self, _: Work[T]) -> NoReturn:
        raise TransactionError("the app is on a connection of a test, in a transaction: this needs its own database")

    def run_for_caller(self, caller: CallerConnection, work: Work[T]) -> T:
        self._require_own(caller)
        return self._write(work)

    def begin_for_caller(self, caller: CallerConnection) -> None:
        self._require_own(caller)

    guard_caller = begin_for_caller

    def _require_own(self, caller: CallerConnection) -> None:
        given = caller.driver()
        if given is not self._caller.driver():
            require_connection(given)
            raise ForeignConnection(
                "conn= must be the connection that the app was put on with on_connection, got another one: let the "
                "code under test use the connection of the test"
            )

    def close(self) -> None:
        """Leave the connection as it was: what is not rolled back by the test is removed here."""

        def end(connection: sqlite3.Connection) -> None:
            if self._began and connection.in_transaction:
                connection.execute("ROLLBACK")
            elif not connection.in_transaction:  # the test has committed
                for statement in self._drop:
                    connection.execute(statement)
                connection.commit()

        self._use(end)

    def close_for_fork(self, _: float) -> bool:
        return False

    def abandon(self) -> None:
        """Do nothing: the connection is the caller's."""

    # --- as the watcher: no other connection can commit anything ---

    def count(self) -> int:
        return self._commits

    def wait(self, seen: int, timeout: float) -> None:
        if seen == self._commits:
            time.sleep(timeout)

    def notify(self) -> None:
        """Do nothing: no thread waits."""

    wake = notify

    def watch_lock_file(self, _: Path) -> None:
        raise TransactionError(
            "the app is on a connection of a test: run its jobs with drain or inline, not a worker"
        )
