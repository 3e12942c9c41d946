"""The way of every part of the store to the database: an open engine, the statements, the clock.

The parts are objects that are given this one. None of them knows how connections are opened, shared or closed.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ...clock import Clock
from ...errors import StoreClosed, UsedAfterFork
from ..statements import Statements
from .engine.engine import Engine, Options, watch_forks
from .engine.transaction import CompletingTransaction, Transaction, handed_out, take_part
from .engine.worker_locks import lock_path
from .engine.writer import EngineGone, Work

T = TypeVar("T")
K = TypeVar("K", bound=Transaction)
FORK_PATIENCE_SECONDS = 1.0
CHANGES_PER_FOLD = 32_000  # by programs without a worker


class _ThisThread(threading.local):
    """How long this thread waits for other writers, if not as usual; and its read transaction, if it has one."""

    wait_seconds: float | None = None
    reader: sqlite3.Connection | None = None


class Database:
    def __init__(self, options: Options, clock: Clock, random: Random, token: str) -> None:
        self.options, self.clock, self._random, self._token = options, clock, random, token
        self.actor = f"{os.getpid()}-{token}"
        """This process in the history. Another after a fork."""
        self.sql = Statements(Path(__file__).parent / "sql", options.prefix)
        self.fold: Callable[[], None] = lambda: None
        self.after_fork: Callable[[], None] = lambda: None
        self.has_workers = False
        """Whether this process has a worker on this database."""
        self._this_thread = _ThisThread()
        self._opening = threading.Lock()
        self._closed = self._stranded = False
        self._engine: Engine | None = self._open_engine()
        watch_forks(self)

    # --- writing ---

    def run(self, work: Work[T], *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        """Run the work in a transaction that is committed when this returns: see Writer.run."""
        while True:
            engine = self._engine or self.engine()
            writer = engine.writer
            try:
                result = writer.run(
                    work, durable=durable, atomic=atomic, wakes=wakes, limit=self._this_thread.wait_seconds
                )
            except EngineGone:
                continue
            if writer.since_fold > CHANGES_PER_FOLD:
                writer.since_fold = 0
                if not self.has_workers:  # they fold as housekeeping
                    self.fold()
            return result

    def run_here(self, work: Work[T]) -> T:
        """As `run`, durable, for work that must run in this very thread."""
        return self.with_engine(lambda engine: engine.writer.run_here(work))

    def run_in(self, conn: Any, work: Work[T], size: int = 0) -> T:
        """In the caller's transaction; or, without one, in a transaction that is on disk when this returns."""
        self.require_space(size)
        if conn is None:
            return self.run(work, durable=True, wakes=True)
        if isinstance(conn, Transaction):
            return self.take_part(conn, work)
        engine, options = self.engine(), self.options
        engine.writer.refuse_nesting()
        if options.guard_connections:
            engine.look_after_log()
        return take_part(conn, options.path, engine.patience, options.guard_connections, work)

    def take_part(self, transaction: Transaction, work: Work[T]) -> T:
        """Run the work inside a transaction that the caller was given."""
        return take_part(transaction.connection, self.options.path, self.engine().patience, False, work)

    def in_batches(self, do_some: Work[int]) -> int:
        """Each batch is a short transaction; 0 ends it."""
        done = 0
        while batch := self.run(do_some, wakes=True):
            done += batch
        return done

    def change(self, statement: str, values: Any, durable: bool = False) -> int:
        """Run one statement; returns how many rows it changed."""
        return self.run(lambda connection: connection.execute(statement, values).rowcount, durable=durable)

    def require_space(self, size: int) -> None:
        (self._engine or self.engine()).space.require(size)

    # --- reading ---

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        pinned = self._this_thread.reader
        if pinned is None:
            return self.with_engine(lambda engine: engine.read(work))
        try:
            return work(pinned)
        except sqlite3.Error as error:
            self.engine().writer.raise_for(error)

    def read_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run reads that all see the same moment."""
        if self._this_thread.reader is not None:
            return self.read(work)
        return self.with_engine(lambda engine: engine.read_snapshot(work))

    def rows(self, statement: str, values: Any = ()) -> list[Any]:
        return self.read(lambda connection: connection.execute(statement, values).fetchall())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """In the block, all that this thread reads is of one moment."""
        if self._this_thread.reader is not None:
            yield
            return
        with ExitStack() as stack:
            connection = self.with_engine(lambda engine: stack.enter_context(engine.reader()))
            connection.execute("BEGIN")
            self._this_thread.reader = connection
            try:
                yield
            finally:
                self._this_thread.reader = None
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    # --- transactions of the caller ---

    def transaction(self, *, completes: bool = False) -> AbstractContextManager[Transaction]:
        """completes: a job is to succeed with it."""
        return self._begin(CompletingTransaction if completes else Transaction)

    @contextmanager
    def _begin(self, kind: type[K]) -> Iterator[K]:
        with ExitStack() as stack:
            connection = self.with_engine(lambda engine: stack.enter_context(engine.transaction()))
            yield stack.enter_context(handed_out(connection, kind))

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        here = self._this_thread
        before, here.wait_seconds = here.wait_seconds, seconds
        try:
            yield
        finally:
            here.wait_seconds = before

    # --- the engine ---

    def engine(self) -> Engine:
        """The open engine; opens one if there is none."""
        engine = self._engine
        if engine is not None:
            return engine
        with self._opening:
            if self._stranded:
                raise UsedAfterFork(
                    "this process was forked while its parent was using the database, so SQLite cannot be used "
                    "here any more: fork while none is open, or start processes with spawn"
                )
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            if self._engine is None:
                self._engine = self._open_engine()
            return self._engine

    def with_engine(self, use: Callable[[Engine], T]) -> T:
        """A fork closes the engine under those who were about to use it; nothing has happened then."""
        while True:
            try:
                return use(self.engine())
            except EngineGone:
                continue

    def held_for(self) -> float:
        engine = self._engine
        return 0.0 if engine is None else engine.writer.held_for()

    def close(self) -> None:
        with self._opening:
            if self._engine is not None:
                self._engine.close()
            self._closed, self._engine = True, None

    @contextmanager
    def hold_still(self) -> Iterator[None]:
        """During a fork there is no open connection, if possible; both sides open new ones when they need them."""
        with self._opening:
            if self._engine is not None and self._engine.close_for_fork(FORK_PATIENCE_SECONDS):
                self._engine = None
            yield

    def forget_parent(self) -> None:
        """In a forked child."""
        engine, self._engine = self._engine, None
        self._opening = threading.Lock()
        self.actor = f"{os.getpid()}-{self._token}"
        self.after_fork()
        if engine is not None:  # another thread was using it: this child can never safely use the file
            engine.abandon()
            self._stranded = True

    def _open_engine(self) -> Engine:
        engine = Engine(self.options, self.clock, self._random, self.sql)
        if self.has_workers:  # after a fork
            engine.watcher.also_watch(lock_path(self.options.path))
        return engine
