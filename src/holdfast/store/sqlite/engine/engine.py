"""The engine: all that one process holds open on one database."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from msgspec import Struct

from ....blobs import LARGE_BYTES, BlobStore
from ....clock import Clock
from ....errors import CorruptDatabase, StoreClosed, StoreError, TransactionError
from ...processes import leak
from ...protocol import StatementObserver
from ...statements import Statements
from ...transactions import CallerConnection
from ..migrate import Migrations
from .checkpoint import Checkpointer, LogAlarm
from .connection import (
    CACHE_KIB,
    MAX_WAL_BYTES,
    READER_CACHE_KIB,
    C,
    ObservedConnection,
    connect,
    connect_as,
    require_usable_sqlite,
    use_wal,
)
from .database_file import FreeSpace, OpenFiles, file_size, prepare_file
from .errors import SQLITE_ERRORS, BusyRetry, is_of_the_disk, translate
from .failed_flush import FailedFlush
from .self_wait import is_held_by_this_process, self_wait
from .transaction import (
    K,
    LentConnection,
    begin,
    guard,
    lend,
    require_connection,
    require_same_file,
    require_transaction,
    run_in_caller_transaction,
)
from .watcher import CommitWatcher
from .writer import FLUSHED, EngineClosedForFork, Writer

T = TypeVar("T")
MAX_IDLE_READERS = 4
WAL_CHECK_SECONDS = 0.5


class Options(Struct, frozen=True):
    """The settings of the store, validated by the app."""

    path: Path
    prefix: str
    durable_level: str  # PRAGMA synchronous of enqueues: FULL or NORMAL
    migrate: bool
    busy_timeout: float
    worker_busy_timeout: float  # the same in a process that runs jobs
    min_free_bytes: int
    guard_connections: bool
    blobs: BlobStore | None = None  # None: files beside the database
    blob_bytes: int | None = LARGE_BYTES  # larger payloads are stored as blobs; None: none are
    observer: StatementObserver | None = None  # for tests


class Engine:
    """The writer, a pool of reading connections, the checkpointer and the commit watcher."""

    def __init__(self, options: Options, clock: Clock, random: Random, sql: Statements) -> None:
        self.options = options
        self.busy_retry = BusyRetry(
            random,
            options.busy_timeout,
            lambda: self_wait(options.path),
            lambda: is_held_by_this_process(options.path),
        )
        require_usable_sqlite()
        prepare_file(options.path, create=options.migrate)
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._idle_lent: list[LentConnection] = []  # for transactions of the caller
        self._in_use: set[sqlite3.Connection] = set()
        self._dirty: set[sqlite3.Connection] = set()  # closed instead of used again
        self._closed = False
        self._pool = threading.Condition(threading.Lock())
        self._abandoned = self._closing = self._closed_for_fork = self._damaged = False
        self._checkpoint_thread: threading.Thread | None = None
        self._wal_too_large = threading.Event()
        self._wal = Path(f"{options.path}-wal")
        try:
            self._open(clock, sql)
        except SQLITE_ERRORS as error:
            self._close_connections()
            raise translate(error, options.path) from error
        except BaseException:
            self._close_connections()
            raise

    def _open(self, clock: Clock, sql: Statements) -> None:
        options = self.options
        was_left_open = file_size(self._wal) > 0
        connection = self._connect(CACHE_KIB)
        migrations = Migrations(connection, options.prefix)
        if not options.migrate:  # before anything is changed: the database may belong to another program
            self.busy_retry.run(migrations.require_current)
        self.busy_retry.run(lambda: use_wal(connection))
        if options.migrate:
            migrations.apply(clock, self.busy_retry)
        self._handle_reboot(connection, clock.boot_id(), was_left_open, sql)

        self._files = OpenFiles(options.path)
        self.space = FreeSpace(options.path.parent, options.min_free_bytes)
        self.watcher = CommitWatcher(
            options.path,
            lambda: self.busy_retry.run(lambda: connect(options.path, "NORMAL", observer=options.observer)),
            self._notice_replaced,
        )
        lock_connection = self._connect()
        checkpointer = Checkpointer(
            lock_connection, self._connect(), self._wal, LogAlarm(options.path).after_checkpoint
        )
        self.writer = Writer(
            options.path,
            connection,
            checkpointer,
            self.busy_retry,
            options.durable_level,
            self.watcher.notify,
            FailedFlush(options.path, lock_connection, sql.set_meta, self._leak_connections),
            self._files,
        )
        self.writer.try_to_recover()

    def _handle_reboot(
        self, connection: sqlite3.Connection, boot_id: str, was_left_open: bool, sql: Statements
    ) -> None:
        """In the first process after a boot: expire all leases, and check a file that was not closed cleanly."""
        if self.busy_retry.run(lambda: _boot_id(connection, sql)) == boot_id:
            return
        if was_left_open:
            # A row that breaks a constraint is not damage of the file: other jobs run, and the doctor reports it.
            connection.execute("PRAGMA ignore_check_constraints = ON")
            problems = connection.execute("PRAGMA quick_check(3)").fetchall()
            connection.execute("PRAGMA ignore_check_constraints = OFF")
            if problems != [("ok",)]:
                self._damaged = True
                raise CorruptDatabase(
                    f"{self.options.path} is damaged ({problems[0][0]}): keep a copy with its -wal file, and "
                    "restore a backup or use the sqlite3 shell's .recover"
                )
        self.busy_retry.run(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            if _boot_id(connection, sql) != boot_id:
                connection.execute(sql.end_leases_of_another_boot)
                connection.execute(sql.end_workers_of_another_boot)
                connection.execute(sql.end_blocks_of_another_boot)
                connection.execute(sql.set_meta, ("boot_id", boot_id))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run reads on a connection from the pool, so that they never wait for a writer."""
        try:
            with self.reader() as connection:
                return self.busy_retry.run(lambda: work(connection))
        except SQLITE_ERRORS as error:
            self.writer.raise_for(error)

    def read_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run reads that all see the same snapshot."""

        def in_one_transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        return self.read(in_one_transaction)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection on which all reads see the same snapshot."""
        with self.reader() as connection:
            try:
                self.busy_retry.run(lambda: connection.execute("BEGIN"))
            except SQLITE_ERRORS as error:
                self.writer.raise_for(error)
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def transaction(self, kind: type[K]) -> Iterator[K]:
        """Open a write transaction for the caller's own statements. Other threads wait until it ends."""
        with self.writer.reserve(), self._borrow(LentConnection, self._idle_lent) as connection:
            before = connection.total_changes
            self._execute(connection, f"PRAGMA synchronous = {self.options.durable_level}")
            self._execute(connection, connection.BEGIN)
            try:
                with lend(connection, kind) as transaction:
                    yield transaction
                if self._abandoned:  # the parent entered the block, so the parent ends the transaction
                    return
                if not connection.in_transaction:
                    raise TransactionError("SQLite rolled this transaction back after an error: nothing was stored")
                self._execute(connection, connection.COMMIT)
            except sqlite3.Error as error:  # of the caller's own statements
                if is_of_the_disk(error):
                    self.writer.raise_for_leader(error)
                raise
            finally:
                if not self._abandoned and not (_roll_back(connection) and not connection.was_changed):
                    self._dirty.add(connection)
            self.writer.count_changes(connection.total_changes - before, self.options.durable_level == FLUSHED)
        self.watcher.notify()

    def run_without_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work in autocommit on a connection that is closed afterwards. Other threads wait to write."""
        try:
            with self.writer.reserve(), self.reader() as connection:
                self._dirty.add(connection)
                try:
                    return self.busy_retry.run(lambda: work(connection))
                except SQLITE_ERRORS as error:
                    self.writer.raise_for_leader(error)
        except SQLITE_ERRORS as error:
            self.writer.raise_for(error)

    def _execute(self, connection: sqlite3.Connection, statement: str) -> None:
        try:
            self.busy_retry.run(lambda: connection.execute(statement))
        except SQLITE_ERRORS as error:
            self.writer.raise_for_leader(error)

    # --- on connections of the caller ---

    def run_for_caller(self, caller: CallerConnection, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work in the transaction of the caller. Begin one if none is open."""

        def run(connection: sqlite3.Connection) -> T:
            if self._guard(connection):
                require_transaction(connection, self.busy_retry, caller.how_to_begin)
            return run_in_caller_transaction(connection, self.options.path, self.busy_retry, work)

        return self._on_caller(caller, run)

    def begin_for_caller(self, caller: CallerConnection) -> None:
        """Begin a write transaction on the connection of the caller, unless one is open there."""

        def run(connection: sqlite3.Connection) -> None:
            self._guard(connection)
            begin(connection, self.busy_retry)

        self._on_caller(caller, run)

    def guard_caller(self, caller: CallerConnection) -> None:
        self._on_caller(caller, self._guard)

    def _on_caller(self, caller: CallerConnection, run: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return caller.run(run)
        except sqlite3.Error as error:
            raise translate(error, self.options.path) from error

    def _guard(self, connection: sqlite3.Connection) -> bool:
        """Turn off automatic checkpoints. Return False if the connection is the engine's own."""
        require_connection(connection)
        require_same_file(connection, self.options.path)
        if isinstance(connection, LentConnection):
            return False
        if self.writer.failed_flush.is_open:
            raise self.writer.failed_flush.refuse()
        if self.options.guard_connections:
            guard(connection)
            self.checkpoint_in_background()
        return True

    # --- the pool ---

    def reader(self) -> AbstractContextManager[sqlite3.Connection]:
        """Borrow a connection from the pool."""
        return self._borrow(sqlite3.Connection if self.options.observer is None else ObservedConnection, self._idle)

    @contextmanager
    def _borrow(self, kind: type[C], idle: list[C]) -> Iterator[C]:
        with self._pool:
            self._pool.wait_for(lambda: not self._closing)
            if self._closed_for_fork:
                raise EngineClosedForFork
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            # A new connection would create a new log: look right before.
            if not (self._files.are_in_place() if idle else self._files.check()):
                raise self.writer.file_replaced()
            connection = idle.pop() if idle else self._connect_typed(kind)
            self._in_use.add(connection)
        try:
            yield connection
        finally:
            if not self._abandoned:
                self._return(connection, idle)

    def _return(self, connection: C, idle: list[C]) -> None:
        with self._pool:
            self._in_use.remove(connection)
            self._pool.notify_all()
            if self._closed or connection in self._dirty or len(idle) >= MAX_IDLE_READERS:
                self._connections.remove(connection)
                self._dirty.discard(connection)
                connection.close()
            else:
                idle.append(connection)

    def close(self) -> None:
        self.writer.close(self._close_connections)
        self.watcher.close()

    def close_for_fork(self, timeout: float) -> bool:
        """Close everything. Return False if a thread still uses the database after the timeout: see connection.py."""
        if self.writer.is_reserved_by_this_thread():
            return False
        with self.writer.exclusive(timeout) as acquired:
            if not acquired:
                return False
            with self._pool:
                self._closing = True
                is_idle = self._pool.wait_for(lambda: not self._in_use, timeout)
                self._closing = False
                if not is_idle:
                    self._pool.notify_all()
                    return False
                self.writer.close_for_fork()
                self._closed_for_fork = True
                self._pool.notify_all()
            self.watcher.close()
            self._close_connections()
        return True

    def checkpoint_in_background(self) -> None:
        """Checkpoint for connections of the caller, which Holdfast keeps from doing so themselves."""
        if self._checkpoint_thread is None:
            self._checkpoint_thread = threading.Thread(
                target=self._checkpoint_until_closed, name="holdfast-checkpoint", daemon=True
            )
            self._checkpoint_thread.start()
        if file_size(self._wal) > MAX_WAL_BYTES:
            self._wal_too_large.set()

    def _checkpoint_until_closed(self) -> None:
        while not self._closed:
            self._wal_too_large.wait(WAL_CHECK_SECONDS)
            self._wal_too_large.clear()
            if file_size(self._wal) > MAX_WAL_BYTES:
                with contextlib.suppress(StoreError, sqlite3.Error, EngineClosedForFork):  # tried again later
                    self.writer.checkpoint()

    def abandon(self) -> None:
        """In a forked child: never use or close what the parent has opened."""
        self._abandoned = True
        self.writer.abandon()
        leak(self)
        for connection in self._connections:
            leak(connection)

    def _connect(self, cache_kib: int = READER_CACHE_KIB) -> sqlite3.Connection:
        connection = self.busy_retry.run(
            lambda: connect(self.options.path, "NORMAL", cache_kib, self.options.observer)
        )
        self._connections.append(connection)
        return connection

    def _connect_typed(self, kind: type[C]) -> C:
        def connect() -> C:
            return connect_as(kind, self.options.path, "NORMAL", READER_CACHE_KIB, self.options.observer)

        try:
            connection = self.busy_retry.run(connect)
            self._connections.append(connection)
            return connection
        except SQLITE_ERRORS as error:
            self.writer.raise_for(error)

    def _leak_connections(self) -> None:
        """Keep the end of the program from closing connections: the last one would checkpoint a log with a gap."""
        for connection in self._connections:
            leak(connection)

    def _notice_replaced(self) -> bool:
        """Return whether another file has the name of the database or of its log. Later calls raise it."""
        if self._files.are_in_place():
            return False
        self.writer.file_replaced()
        return True

    def _close_connections(self) -> None:
        damaged = self._damaged or self._is_damaged()
        with self._pool:
            self._closed = True  # a connection that is in use is closed when it is returned
            for connection in self._connections:
                if damaged:  # closing the last connection would copy the WAL into the damaged database
                    leak(connection)
                elif connection not in self._in_use:
                    connection.close()
            self._connections = list(self._in_use)
        self._wal_too_large.set()  # so that the checkpoint thread ends

    def _is_damaged(self) -> bool:
        """Return whether closing could do harm: a damaged file, a log with a gap, or a log of another file."""
        if not hasattr(self, "writer"):
            return False
        self.writer.checkpoint_before_close()
        self.writer.try_to_recover()
        if not self._files.check():
            self.writer.file_replaced()
        return self.writer.damage is not None or self.writer.failed_flush.is_open


def _roll_back(connection: LentConnection) -> bool:
    """Roll back what is open. Return False if the disk fails: the connection is closed then."""
    try:
        if connection.in_transaction:
            connection.execute(connection.ROLLBACK)
    except sqlite3.Error:
        return False
    return True


def _boot_id(connection: sqlite3.Connection, sql: Statements) -> str | None:
    row = connection.execute(sql.get_meta, ("boot_id",)).fetchone()
    return None if row is None else str(row[0])
