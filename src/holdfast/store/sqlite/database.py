"""The database handle that every part of the store gets: an open engine, the statements, the clock.

The parts do not know how connections are opened, shared or closed.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from ...clock import Clock
from ...errors import ForeignConnection, StoreClosed, TransactionError, UsedAfterFork
from ..database import OneWriter
from ..processes import register_forkable
from ..statements import Statements
from ..transactions import caller_connection
from .engine.caller_engine import CallerEngine
from .engine.engine import Engine, Options
from .engine.errors import SQLITE_ERRORS
from .engine.transaction import CompletingTransaction, Transaction, is_open
from .engine.worker_locks import FileLocks, lock_path
from .engine.writer import EngineClosedForFork, Work, Writer

T = TypeVar("T")
K = TypeVar("K", bound=Transaction)
AnyEngine = Engine | CallerEngine
FORK_TIMEOUT_SECONDS = 1.0
ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 400)  # of prepared statements; one of 400 rows takes 200 KB
CHANGES_PER_FOLD = 8_000  # in a process without a worker


@cache
def _with_rows(statement: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return statement.replace(f"(VALUES {row})", f"(VALUES {', '.join([row] * count)})")


class _ThisThread(threading.local):
    """State of the calling thread."""

    write_timeout: float | None = None  # None: busy_timeout
    reader: sqlite3.Connection | None = None  # inside reading()
    is_folding: bool = False


class SqliteDialect:
    """Implements Dialect."""

    def listed(self, name: str, kind: Literal["text", "integer"]) -> str:
        del kind
        return f"SELECT value FROM json_each(:{name})"  # noqa: S608

    def element(self, row: str, index: int) -> str:
        return f"json_extract({row}, '$[{index}]')"

    def same_task(self, value: str) -> str:
        return f"task IS {value}"

    def like(self, value: str, name: str) -> str:
        return f"coalesce({value} GLOB :{name}, 0)"

    def pattern(self, text: str) -> str:
        return text.replace("[", "[[]").replace("?", "[?]")

    def argument(self, name: str) -> str:
        kind = (
            f"CASE json_type(args, :{name}) WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN 'null'"
        )
        return f"CASE WHEN json_valid(args) THEN {kind} ELSE CAST(json_extract(args, :{name}) AS TEXT) END END"

    def path(self, names: list[str]) -> str:
        return "$" + "".join(f"[{name}]" if name.isdecimal() else f'."{name}"' for name in names)

    def using(self, table: str, index: str) -> str:
        return f"{table} INDEXED BY {index}"

    def encoded(self, column: str) -> str:
        return f"CAST({column} AS BLOB)"

    def with_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
        """The statement has one row of VALUES, which is repeated.

        The number of rows is rounded up, so that few statements are prepared and kept. The padding matches no job.
        """
        width, count = len(rows[0]), len(rows)
        rows = rows + [(None,) * width] * (next((one for one in ROW_COUNTS if one >= count), count) - count)
        return _with_rows(statement, width, len(rows)), list(chain.from_iterable(rows))

    def inserted_id(self, cursor: sqlite3.Cursor) -> int:
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def is_constraint_error(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError)


class Database:
    dialect = SqliteDialect()

    def __init__(self, options: Options, clock: Clock, random: Random, token: str, conn: Any = None) -> None:
        """conn: use only this connection of the caller, inside its transaction."""
        self.options, self.clock, self._random, self._token, self._conn = options, clock, random, token, conn
        self.actor = f"{os.getpid()}-{token}"
        """The name of this process in the history. It changes after a fork."""
        self.tables = options.prefix
        self.graph_locks = self.blob_locks = OneWriter()
        self.locks = FileLocks(options.path, lambda file: self.engine().watcher.watch_lock_file(file))
        self.sql = Statements(Path(__file__).parent / "sql", options.prefix)
        self.fold: Callable[[], None] = lambda: None
        self.after_fork: Callable[[], None] = lambda: None
        self.has_workers = False
        """Whether this process has a worker on this database."""
        self._runs_jobs = False
        self._this_thread = _ThisThread()
        self._opening = threading.Lock()
        self._closed = self._stranded = False
        self._is_new = True
        self._engine: AnyEngine | None = self._open_engine()
        register_forkable(self)

    # --- writing ---

    def run(self, work: Work[T], *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        """Run the work in a transaction that is committed when this returns. See Writer.run."""
        while True:
            engine = self._engine or self.engine()
            writer = engine.writer
            try:
                result = writer.run(
                    work, durable=durable, atomic=atomic, wakes=wakes, timeout=self._this_thread.write_timeout
                )
            except EngineClosedForFork:
                continue
            if writer.changes_since_fold > CHANGES_PER_FOLD:
                self._fold_once(writer)
            return result

    def _fold_once(self, writer: Writer | CallerEngine) -> None:
        """Fold, unless this thread is folding already: a fold may itself make as many changes."""
        thread = self._this_thread
        if self.has_workers or thread.is_folding:  # a worker folds as housekeeping
            writer.changes_since_fold = 0
            return
        thread.is_folding = True
        try:
            self.fold()
        finally:
            thread.is_folding = False
            writer.changes_since_fold = 0

    def run_in_this_thread(self, work: Work[T]) -> T:
        """As `run` with durable, for work that must run in the calling thread."""
        return self.with_engine(lambda engine: engine.writer.run_in_this_thread(work))

    def run_in(self, conn: Any, work: Work[T], size: int = 0, atomic: bool = False) -> T:
        """Run the work in the caller's transaction, or, if conn is None, in one that is on disk when this returns.

        size: bytes of payload, for the check of free disk space. atomic: it is a single statement.
        """
        del atomic  # a savepoint costs almost nothing here
        self.require_space(size)
        if conn is None:
            return self.run(work, durable=True, wakes=True)
        if isinstance(conn, Transaction):
            return self.run_in_transaction(conn, work)
        engine = self.engine()
        engine.writer.forbid_nested_write()
        return engine.run_for_caller(caller_connection(conn), work)

    def run_in_transaction(self, transaction: Transaction, work: Work[T]) -> T:
        """Run the work inside an open transaction of `transaction()`."""
        return self.engine().run_for_caller(transaction._open_caller(), work)

    def in_batches(self, work: Work[int], limit: int | None = None) -> int:
        """Run the work in short transactions until it returns 0, or the sum has reached the limit. Return the sum."""
        total = 0
        while (limit is None or total < limit) and (batch := self.run(work, wakes=True)):
            total += batch
        return total

    def change(self, statement: str, values: Any, durable: bool = False) -> int:
        """Run one statement. Return how many rows it changed."""
        return self.run(lambda connection: connection.execute(statement, values).rowcount, durable=durable)

    def require_space(self, size: int) -> None:
        (self._engine or self.engine()).space.require(size)

    def require_blob_space(self, size: int) -> None:
        self.engine().space.require(size, written_per_byte=1)

    # --- reading ---

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        pinned = self._this_thread.reader
        if pinned is None:
            return self.with_engine(lambda engine: engine.read(work))
        try:
            return work(pinned)
        except SQLITE_ERRORS as error:
            self.engine().writer.raise_for(error)

    def read_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run reads that all see the same snapshot."""
        if self._this_thread.reader is not None:
            return self.read(work)
        return self.with_engine(lambda engine: engine.read_snapshot(work))

    def rows(self, statement: str, values: Any = ()) -> list[Any]:
        return self.read(lambda connection: connection.execute(statement, values).fetchall())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all reads of this thread inside the block see the same snapshot."""
        if self._this_thread.reader is not None:
            yield
            return
        with ExitStack() as stack:
            self._this_thread.reader = self.with_engine(lambda engine: stack.enter_context(engine.snapshot()))
            try:
                yield
            finally:
                self._this_thread.reader = None

    # --- transactions for the caller ---

    def transaction(self, *, completes: bool = False, conn: Any = None) -> AbstractContextManager[Transaction]:
        """Open a write transaction, on the caller's connection if conn is given.

        completes: the success of a job commits with it.
        """
        kind = CompletingTransaction if completes else Transaction
        return self._begin(kind) if conn is None else self._begin_on(conn, kind)

    @contextmanager
    def _begin(self, kind: type[K]) -> Iterator[K]:
        with ExitStack() as stack:
            yield self.with_engine(lambda engine: stack.enter_context(engine.transaction(kind)))

    @contextmanager
    def _begin_on(self, conn: Any, kind: type[K]) -> Iterator[K]:
        caller, engine = caller_connection(conn), self.engine()
        engine.writer.forbid_nested_write()
        transaction = kind(caller)
        with caller.ending():
            engine.begin_for_caller(caller)
            try:
                yield transaction
            finally:
                transaction._end()
        engine.watcher.notify()

    def is_open(self, conn: Any) -> bool:
        return is_open(conn)

    def guard(self, conn: Any) -> bool:
        """Turn off automatic checkpoints on the caller's connection. Return False if it is to another database."""
        try:
            self.engine().guard_caller(caller_connection(conn))
        except ForeignConnection:
            return False
        return True

    def wait_as_worker(self) -> None:
        """Wait longer for the write lock from now on: no user waits for a process that runs jobs."""
        if self._conn is not None:
            raise TransactionError(
                "the app is on a connection of a test: run its jobs with drain or inline, not a worker"
            )
        self._runs_jobs = True
        self.engine().busy_retry.timeout = self.options.worker_busy_timeout

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Let writes of this thread inside the block wait no longer than this for other writers."""
        this_thread = self._this_thread
        before, this_thread.write_timeout = this_thread.write_timeout, seconds
        try:
            yield
        finally:
            this_thread.write_timeout = before

    # --- waiting ---

    def commits_seen(self) -> int:
        return self.engine().watcher.count()

    def wait(self, seen: int, timeout: float) -> None:
        self.engine().watcher.wait(seen, timeout)

    def wake(self) -> None:
        self.engine().watcher.wake()

    def deaths_seen(self) -> int:
        return self.engine().watcher.closed_lock_files

    # --- the engine ---

    def engine(self) -> AnyEngine:
        """Return the engine. Open one if there is none."""
        engine = self._engine
        if engine is not None:
            return engine
        with self._opening:
            if self._stranded:
                raise UsedAfterFork(
                    "this process was forked while its parent was using the database, so it cannot use SQLite on it: "
                    "fork while no transaction is open, or start processes with spawn"
                )
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            if self._engine is None:
                self._engine = self._open_engine()
            return self._engine

    def with_engine(self, use: Callable[[AnyEngine], T]) -> T:
        """Call `use` with the engine. If a fork has closed it before anything was done, try again with a new one."""
        while True:
            try:
                return use(self.engine())
            except EngineClosedForFork:
                continue

    def held_for(self) -> float:
        """Return for how many seconds a transaction of this process has been open; 0 if none is."""
        engine = self._engine
        return 0.0 if engine is None else engine.writer.held_for()

    def close(self) -> None:
        with self._opening:
            if self._engine is not None:
                self._engine.close()
            self._closed, self._engine = True, None

    @contextmanager
    def around_fork(self) -> Iterator[None]:
        """Close all connections before a fork, if possible. Parent and child open new ones when they need them."""
        with self._opening:
            if self._engine is not None and self._engine.close_for_fork(FORK_TIMEOUT_SECONDS):
                self._engine = None
            yield

    def after_fork_in_child(self) -> None:
        engine, self._engine = self._engine, None
        self._opening = threading.Lock()
        self.actor = f"{os.getpid()}-{self._token}"
        self.after_fork()
        if engine is not None:  # a thread of the parent was using it, so the child can never safely use the file
            engine.abandon()
            self._stranded = True

    def _open_engine(self) -> AnyEngine:
        if self._conn is not None:
            return CallerEngine(self.options, caller_connection(self._conn), self.clock, self._random)
        # Only the first engine creates the file: it may have been moved away before one is opened after a fork.
        options = self.options if self._is_new else replace(self.options, migrate=False)
        engine = Engine(options, self.clock, self._random, self.sql)
        self._is_new = False
        if self._runs_jobs:
            engine.busy_retry.timeout = self.options.worker_busy_timeout
        if self.has_workers:  # after a fork
            engine.watcher.watch_lock_file(lock_path(self.options.path))
        return engine
