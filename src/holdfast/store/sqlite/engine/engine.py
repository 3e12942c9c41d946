"""The engine: all that one process holds open on one database."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from msgspec import Struct

from ....blobs import LARGE_BYTES, BlobStore
from ....clock import Clock
from ....errors import CorruptDatabase, StoreClosed, StoreError, TransactionError
from ...protocol import StatementObserver
from ...statements import Statements
from ..migrate import Migrations
from .checkpoint import MAX_WAL_BYTES, Checkpointer, file_size
from .connection import CACHE_KIB, READER_CACHE_KIB, connect, require_usable_sqlite, use_wal
from .errors import SQLITE_ERRORS, BusyRetry, is_of_the_disk, translate
from .failed_flush import FailedFlush
from .file_users import LogAlarm
from .files import FreeSpace, OpenFiles, prepare_file
from .fork import leak
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
    min_free_bytes: int
    guard_connections: bool
    blobs: BlobStore | None = None  # None: files beside the database
    blob_bytes: int | None = LARGE_BYTES  # larger payloads are stored as blobs; None: none are
    observer: StatementObserver | None = None  # for tests


class Engine:
    """The writer, a pool of reading connections, the checkpointer and the commit watcher."""

    def __init__(self, options: Options, clock: Clock, random: Random, sql: Statements) -> None:
        self.options, self.busy_retry = options, BusyRetry(random, options.busy_timeout)
        require_usable_sqlite()
        prepare_file(options.path, create=options.migrate)
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._in_use: set[sqlite3.Connection] = set()
        self._dirty: set[sqlite3.Connection] = set()  # a caller's transaction has left state on them
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
            problems = connection.execute("PRAGMA quick_check(3)").fetchall()
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
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a write transaction for the caller's own statements. Other threads wait until it ends."""
        with self.writer.reserve(), self.reader() as connection:
            before = connection.total_changes
            self._execute(connection, f"PRAGMA synchronous = {self.options.durable_level}")
            self._execute(connection, "BEGIN IMMEDIATE")
            try:
                yield connection
                if self._abandoned:  # the parent entered the block, so the parent ends the transaction
                    return
                if not connection.in_transaction:
                    raise TransactionError("SQLite rolled this transaction back after an error: nothing was stored")
                self._execute(connection, "COMMIT")
            except sqlite3.Error as error:  # of the caller's own statements
                if is_of_the_disk(error):
                    self.writer.raise_for_leader(error)
                raise
            finally:
                if not self._abandoned and not _is_clean(connection):
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

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection from the pool."""
        with self._pool:
            self._pool.wait_for(lambda: not self._closing)
            if self._closed_for_fork:
                raise EngineClosedForFork
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            # A new connection would create a new log: look right before.
            if not (self._files.are_in_place() if self._idle else self._files.check()):
                raise self.writer.file_replaced()
            connection = self._idle.pop() if self._idle else self._connect_typed()
            self._in_use.add(connection)
        try:
            yield connection
        finally:
            if not self._abandoned:
                self._return(connection)

    def _return(self, connection: sqlite3.Connection) -> None:
        with self._pool:
            self._in_use.remove(connection)
            self._pool.notify_all()
            if self._closed or connection in self._dirty or len(self._idle) >= MAX_IDLE_READERS:
                self._connections.remove(connection)
                self._dirty.discard(connection)
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        self.writer.close(self._close_connections)
        self.watcher.close()

    def close_for_fork(self, timeout: float) -> bool:
        """Close everything. Return False if a thread still uses the database after the timeout: see fork.py."""
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

    def _connect_typed(self) -> sqlite3.Connection:
        try:
            return self._connect()
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
        self.writer.try_to_recover()
        if not self._files.check():
            self.writer.file_replaced()
        return self.writer.damage is not None or self.writer.failed_flush.is_open


def _is_clean(connection: sqlite3.Connection) -> bool:
    """Roll back what is open. Return whether no state is left: no temporary table, no other isolation level."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if connection.isolation_level is not None:
            return False
        return connection.execute("SELECT 1 FROM sqlite_temp_master LIMIT 1").fetchone() is None
    except sqlite3.Error:  # the disk: the connection is closed
        return False


def _boot_id(connection: sqlite3.Connection, sql: Statements) -> str | None:
    row = connection.execute(sql.get_meta, ("boot_id",)).fetchone()
    return None if row is None else str(row[0])
