"""All that one process holds open on one database: the writer, readers, the checkpointer, the watcher."""

import contextlib
import ctypes
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from msgspec import Struct

from ....blobs import LARGE_BYTES, BlobStore
from ....clock import Clock
from ....errors import CorruptDatabase, StoreClosed, StoreError, TransactionError
from ...statements import Statements
from ..migrate import Migrations
from .checkpoint import LARGEST_LOG_BYTES, Checkpointer, size_of
from .connection import CACHE_KIB, READER_CACHE_KIB, connect, require_usable_sqlite, use_wal
from .errors import Patience, translate
from .file_users import LogAlarm
from .files import FreeSpace, prepare_file
from .watcher import Watcher
from .writer import FLUSHED, EngineGone, Writer

_leaked: list[object] = []


class Forkable(Protocol):
    def hold_still(self) -> AbstractContextManager[None]:
        """Entered before a fork and left after it, in the parent."""
        ...

    def forget_parent(self) -> None:
        """Called in the child right after a fork."""
        ...


_watched: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch_forks(owner: Forkable) -> None:
    _watched.add(owner)


def leak(thing: object) -> None:
    """Keep an object from ever being finalised, not even when the interpreter ends."""
    _leaked.append(thing)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_holding: list[ExitStack] = []


def _before() -> None:
    stack = ExitStack()
    for owner in list(_watched):
        stack.enter_context(owner.hold_still())
    _holding.append(stack)


def _in_parent() -> None:
    _holding.pop().close()


def _in_child() -> None:
    leak(_holding.pop())  # what it would release belongs to the parent
    for owner in list(_watched):
        owner.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
T = TypeVar("T")
MAX_IDLE_READERS = 4
CARE_SECONDS = 0.5


class Options(Struct, frozen=True):
    """What the store was told, checked by the app."""

    path: Path
    prefix: str
    durable_level: str  # FULL or NORMAL: how enqueues are flushed
    migrate: bool
    busy_timeout: float
    min_free_bytes: int
    guard_connections: bool
    blobs: BlobStore | None = None  # None: files beside the database
    blob_bytes: int | None = LARGE_BYTES  # what is larger goes there; None: nothing does


class Engine:
    def __init__(self, options: Options, clock: Clock, random: Random, sql: Statements) -> None:
        self.options, self.patience = options, Patience(random, options.busy_timeout)
        require_usable_sqlite()
        prepare_file(options.path, create=options.migrate)
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._lent: set[sqlite3.Connection] = set()
        self._spoilt: set[sqlite3.Connection] = set()  # a user's transaction left something on them
        self._closed = False
        self._lending = threading.Condition(threading.Lock())
        self._abandoned = self._closing = self._gone = self._damaged = False
        self._caretaker: threading.Thread | None = None
        self._care = threading.Event()
        self._log = Path(f"{options.path}-wal")
        try:
            self._open(clock, sql)
        except sqlite3.Error as error:
            self._close_connections()
            raise translate(error, options.path) from error
        except BaseException:
            self._close_connections()
            raise

    def _open(self, clock: Clock, sql: Statements) -> None:
        options = self.options
        left_behind = size_of(self._log) > 0
        connection = self._connect(CACHE_KIB)
        migrations = Migrations(connection, options.prefix)
        if not options.migrate:  # before anything is changed: it may be a database of somebody else
            self.patience.run(migrations.require_current)
        self.patience.run(lambda: use_wal(connection))
        if options.migrate:
            migrations.apply(clock, self.patience)
        self._notice_restart(connection, clock.boot_id(), left_behind, sql)

        self.space = FreeSpace(options.path.parent, options.min_free_bytes)
        self.watcher = Watcher(options.path, lambda: self.patience.run(lambda: connect(options.path, "NORMAL")))
        checkpointer = Checkpointer(
            self._connect(), self._connect(), self._log, LogAlarm(options.path).after_checkpoint
        )
        self.writer = Writer(
            options.path, connection, checkpointer, self.patience, options.durable_level, self.watcher.notify
        )

    def _notice_restart(
        self, connection: sqlite3.Connection, boot_id: str, left_behind: bool, sql: Statements
    ) -> None:
        """The first process after a start of the machine ends all leases, and looks at a file that was left open."""
        if self.patience.run(lambda: _boot_id(connection, sql)) == boot_id:
            return
        if left_behind:
            problems = connection.execute("PRAGMA quick_check(3)").fetchall()
            if problems != [("ok",)]:
                self._damaged = True
                raise CorruptDatabase(
                    f"{self.options.path} is damaged ({problems[0][0]}): keep a copy with its -wal file, and "
                    "restore a backup or use the sqlite3 shell's .recover"
                )
        self.patience.run(lambda: connection.execute("BEGIN IMMEDIATE"))
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
        """Run reads on a connection of their own, so that they wait for no writer."""
        try:
            with self.reader() as connection:
                return self.patience.run(lambda: work(connection))
        except sqlite3.Error as error:
            self.writer.raise_for(error)

    def read_snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run reads that all see the same moment."""

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
        """A write transaction for the user's own statements; threads that write meanwhile wait."""
        with self.writer.owned(), self.reader() as connection:
            before = connection.total_changes
            self._execute(connection, f"PRAGMA synchronous = {self.options.durable_level}")
            self._execute(connection, "BEGIN IMMEDIATE")
            try:
                yield connection
                if self._abandoned:  # the block was entered by the parent: it is the parent's to end
                    return
                if not connection.in_transaction:
                    raise TransactionError("SQLite rolled this transaction back after an error: nothing was stored")
                self._execute(connection, "COMMIT")
            finally:
                if not self._abandoned:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if not _is_clean(connection):
                        self._spoilt.add(connection)
            self.writer.count_changes(connection.total_changes - before, self.options.durable_level == FLUSHED)
        self.watcher.notify()

    def alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """On a connection that is closed afterwards, outside of any transaction; threads that write wait."""
        try:
            with self.writer.owned(), self.reader() as connection:
                self._spoilt.add(connection)
                return self.patience.run(lambda: work(connection))
        except sqlite3.Error as error:
            self.writer.raise_for(error)

    def _execute(self, connection: sqlite3.Connection, statement: str) -> None:
        try:
            self.patience.run(lambda: connection.execute(statement))
        except sqlite3.Error as error:
            self.writer.raise_for(error)

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        with self._lending:
            self._lending.wait_for(lambda: not self._closing)
            if self._gone:
                raise EngineGone
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            connection = self._idle.pop() if self._idle else self._connect()
            self._lent.add(connection)
        try:
            yield connection
        finally:
            if not self._abandoned:
                self._take_back(connection)

    def _take_back(self, connection: sqlite3.Connection) -> None:
        with self._lending:
            self._lent.remove(connection)
            self._lending.notify_all()
            if self._closed or connection in self._spoilt or len(self._idle) >= MAX_IDLE_READERS:
                self._connections.remove(connection)
                self._spoilt.discard(connection)
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        self.writer.close(self._close_connections)
        self.watcher.close()

    def close_for_fork(self, patience_seconds: float) -> bool:
        """Close everything, unless somebody keeps using it for longer than the patience.

        SQLite remembers the locks of a process in memory, which a fork copies: with any connection open, those that
        the child opens later believe they hold locks which they do not, and its commits can be lost.
        """
        if self.writer.is_owned_here():
            return False
        with self.writer.exclusively(patience_seconds) as alone:
            if not alone:
                return False
            with self._lending:
                self._closing = True
                idle = self._lending.wait_for(lambda: not self._lent, patience_seconds)
                self._closing = False
                if not idle:
                    self._lending.notify_all()
                    return False
                self.writer.retire()
                self._gone = True
                self._lending.notify_all()
            self.watcher.close()
            self._close_connections()
        return True

    def look_after_log(self) -> None:
        """A connection of the user's own must not checkpoint any more: from now on somebody else does."""
        if self._caretaker is None:
            self._caretaker = threading.Thread(target=self._take_care, name="holdfast-checkpoint", daemon=True)
            self._caretaker.start()
        if size_of(self._log) > LARGEST_LOG_BYTES:
            self._care.set()

    def _take_care(self) -> None:
        while not self._closed:
            self._care.wait(CARE_SECONDS)
            self._care.clear()
            if size_of(self._log) > LARGEST_LOG_BYTES:
                with contextlib.suppress(StoreError, sqlite3.Error, EngineGone):  # there will be another
                    self.writer.checkpoint()

    def abandon(self) -> None:
        """In a forked child: keep what the parent opened from ever being used or closed here."""
        self._abandoned = True
        self.writer.abandon()
        leak(self)
        for connection in self._connections:
            leak(connection)

    def _connect(self, cache_kib: int = READER_CACHE_KIB) -> sqlite3.Connection:
        connection = self.patience.run(lambda: connect(self.options.path, "NORMAL", cache_kib))
        self._connections.append(connection)
        return connection

    def _close_connections(self) -> None:
        damaged = self._damaged or self._is_damaged()
        with self._lending:
            self._closed = True  # whoever has borrowed one closes it on return
            for connection in self._connections:
                if damaged:  # the last one to close would write the log into the database
                    leak(connection)
                elif connection not in self._lent:
                    connection.close()
            self._connections = list(self._lent)
        self._care.set()

    def _is_damaged(self) -> bool:
        return hasattr(self, "writer") and self.writer.damage is not None


def _is_clean(connection: sqlite3.Connection) -> bool:
    """Whether the next to use it finds nothing that the last one left: a temporary table, another mode."""
    if connection.isolation_level is not None:
        return False
    return connection.execute("SELECT 1 FROM sqlite_temp_master LIMIT 1").fetchone() is None


def _boot_id(connection: sqlite3.Connection, sql: Statements) -> str | None:
    row = connection.execute(sql.get_meta, ("boot_id",)).fetchone()
    return None if row is None else str(row[0])
