"""The database handle that every part of the store gets: connections, transactions, statements, the clock.

Transactions are READ COMMITTED, and a statement that fails because of others runs again. A caller's own connection
keeps its isolation level.
"""

import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from msgspec import Struct

from ...blobs import BlobStore
from ...clock import Clock
from ...errors import (
    CannotOpen,
    ConnectionLost,
    ForeignConnection,
    InvalidInput,
    OutcomeUnknown,
    StoreClosed,
    TransactionError,
    UsedAfterFork,
)
from ..database import Traceable
from ..processes import leak, register_forkable
from ..statements import Statements
from ..transactions import (
    CallerConnection,
    Owner,
    another_coroutine_has_one,
    caller_connection,
    would_wait_for_itself,
)
from .connection import in_transaction, incarnation_of, rollback
from .dialect import AwaitingHandle, Driver, Handle, PostgresDialect
from .errors import connection_lost, first_line, is_lost, is_overtaken, is_read_only, is_retryable, translate
from .listener import Listener
from .locks import AdvisoryLocks, NameLocks, RowLocks
from .migrate import Names, PostgresMigrations
from .pool import Pool, ServerClock, SessionOpener
from .retries import Again, Commit, CommitOutcomes, Sent, run_again
from .transaction import (
    CompletingPostgresTransaction,
    LentDriver,
    PostgresTransaction,
    in_savepoint,
    require_handle,
    require_transaction,
)

T = TypeVar("T")
K = TypeVar("K", bound=PostgresTransaction)
Work = Callable[[Any], T]
RUNS_PER_FOLD = 2_000  # transactions, in a process without a worker


class PostgresOptions(Struct):
    url: str
    schema: str
    prefix: str
    durable_level: str
    migrate: bool
    busy_timeout: float
    worker_busy_timeout: float
    blobs: BlobStore | None
    blob_bytes: int | None
    notify: bool = True
    checks_schema: bool = True  # False: for the doctor, whatever the tables are

    def __repr__(self) -> str:
        return f"PostgresOptions({self.schema}.{self.prefix})"  # not the URL, which may have a password


class _CallingThread(threading.local):
    """State of the calling thread."""

    handle: Handle | AwaitingHandle | None = None  # inside run() or reading()
    writes: bool = False  # inside run()
    reads: bool = False  # inside reading()
    timeout: float | None = None  # None: busy_timeout


class PostgresDatabase:
    def __init__(self, options: PostgresOptions, clock: Clock | None, token: str) -> None:
        self.options, self._token = options, token
        self.names = Names(options.schema, options.prefix)
        self.tables = self.names.tables
        self.lock_class = zlib.crc32(self.tables.encode()) - 2**31
        self.dialect = PostgresDialect(self.tables)
        self.sql = Statements(Path(__file__).parent / "sql", self.tables)
        server_clock = ServerClock()
        self.clock: Clock = clock or server_clock
        self.sessions = SessionOpener(options.url, self.sql, server_clock)
        self.where = self.sessions.where
        self._outcomes = CommitOutcomes(self.sql, self.with_driver, self.where.shown)
        self.actor = f"{os.getpid()}-{token}"
        self.has_workers = False
        self.fold: Callable[[], None] = lambda: None
        self.after_fork: Callable[[], None] = lambda: None
        self.locks, self.graph_locks = AdvisoryLocks(self), RowLocks(self.sql, self.lock_class)
        self.blob_locks = NameLocks(self.sql)
        self._this_thread = _CallingThread()
        self._timeout = options.busy_timeout
        self._owners: dict[Owner, float] = {}
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._closed, self._runs = False, 0
        self._open()
        try:
            self.with_driver(self._migrate)
        except BaseException:
            self.close()
            raise
        register_forkable(self)

    def _open(self) -> None:
        self.pool = Pool(lambda: self.sessions.connect(self._timeout))
        self.listener = Listener(self)

    @property
    def has_sessions(self) -> bool:
        return self.sessions.has_sessions

    def lock(self, number: int) -> bool:
        """Hold an advisory lock while this process lives. Returns False if another process has it."""

        def lock() -> bool:
            try:
                return self.listener.lock(number)
            except psycopg.Error as error:
                raise translate(error, self.where.shown) from error

        return self._retried(lock)

    def _migrate(self, driver: Driver) -> None:
        migrations = PostgresMigrations(driver, self.names, self.lock_class)
        if self.options.migrate:
            migrations.apply(self.clock)
        elif self.options.checks_schema:
            migrations.require_current()

    # --- connections ---

    def with_driver(self, use: Callable[[Driver], T]) -> T:
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        with self.pool.lend(self._wait_seconds()) as driver:
            try:
                return use(driver)
            except psycopg.Error as error:
                rollback(driver)
                raise translate(error, self.where.shown) from error

    def _wait_seconds(self) -> float:
        own = self._this_thread.timeout
        return self._timeout if own is None else own

    def _outage_seconds(self) -> float:
        """How long to wait for a server that is away. A worker, which waits longer for locks, tries again itself."""
        own = self._this_thread.timeout
        return self.options.busy_timeout if own is None else min(own, self.options.busy_timeout)

    @contextmanager
    def _lent(self) -> Iterator[LentDriver]:
        """Lend a connection. Raises Again if the server is away."""
        with ExitStack() as stack:
            try:
                driver = stack.enter_context(self.pool.lend(self._wait_seconds()))
            except CannotOpen as error:
                if not self.sessions.is_outage(error):
                    raise
                raise Again(ConnectionLost(f"{error}. Nothing was stored; do it again"), is_outage=True) from error
            yield driver

    def _failure(self, error: psycopg.Error, driver: Driver) -> Exception:
        """Return what to raise for an error before the commit was sent: Again if the transaction can run again."""
        translated = translate(error, self.where.shown)
        translated.__cause__ = error
        if is_lost(error, driver):
            lost = connection_lost(error, self.where.shown)
            lost.__cause__ = error
            return Again(lost, is_outage=True)
        if is_read_only(error) and self.where.hosts > 1:  # the server is no longer the primary
            driver.close()
            return Again(translated, is_outage=True)
        is_conflict = is_retryable(error) or is_overtaken(error, self.names.prefix)
        return Again(translated, is_outage=False) if is_conflict else translated

    # --- writing ---

    def run(self, work: Work[T], *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        # Every commit is flushed, except an enqueue with durability="normal". A lost claim would be worse than a lost
        # enqueue: workers outlive a crash of the server, and the same attempt would be given out twice.
        relaxed = durable and self.options.durable_level == "NORMAL"
        # What must not be lost can be asked for afterwards: by its event, or as a transaction of several messages.
        atomic = atomic and (not durable or (not relaxed and isinstance(work, Traceable) and work.leaves_event))
        self._forbid_nested_write()
        result = run_again(lambda: self._run_once(work, atomic, relaxed), self._outage_seconds())
        if wakes:
            self.listener.committed(urgent=durable)
        self._fold_now_and_then()
        return result

    def _fold_now_and_then(self) -> None:
        """In a program without a worker, which would fold as housekeeping."""
        self._runs += 1
        if self._runs >= RUNS_PER_FOLD:
            self._runs = 0
            if not self.has_workers:
                self.fold()

    def _run_once(self, work: Work[T], atomic: bool, relaxed: bool = False) -> T:
        """relaxed: do not wait until the commit is on disk."""
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        thread = self._this_thread
        with self._lent() as driver:
            handle, commit = Handle(driver), None
            thread.handle, thread.writes = handle, True
            is_single = atomic and thread.timeout is None and not self.sessions.is_pooled
            try:
                transaction = "" if is_single else self._begin_writing(driver, relaxed)
                if is_single and isinstance(work, Traceable):
                    self.sessions.move_event_bound(driver)
                result = work(handle)
                if not is_single:
                    commit = Commit(transaction, incarnation_of(driver), self.clock.now(), self.actor)
                    driver.execute("COMMIT")
                return result
            except psycopg.Error as error:
                if not is_lost(error, driver) or (commit is None and not is_single):
                    raise self._failure(error, driver) from error
                lost = error
            finally:
                thread.handle, thread.writes = None, False
        if is_single and isinstance(work, Traceable):
            stored: T = self._require_event(work, driver, lost)
            return stored
        self._require_commit(commit, lost)
        return result

    def _require_event(self, work: Traceable[T], driver: LentDriver, lost: psycopg.Error) -> T:
        """Return the result of an enqueue that was stored. Otherwise raises Again, or OutcomeUnknown."""
        sent = Sent(driver.pid, driver.begun, driver.event_bound, work.event_time(), self.actor)
        id = self._outcomes.find_enqueued(sent, self._outage_seconds())
        if id is None:
            raise Again(connection_lost(lost, self.where.shown), is_outage=True) from lost
        return work.result(id)

    def _begin_writing(self, driver: Driver, relaxed: bool = False) -> str:
        seconds = self._this_thread.timeout
        if seconds is None and self.sessions.is_pooled:
            seconds = self._timeout
        return self.sessions.begin(driver, relaxed=relaxed, lock_seconds=seconds)

    def _require_commit(self, commit: Commit | None, lost: psycopg.Error) -> None:
        """Return if the commit took place whose reply was lost. Otherwise raises Again, or OutcomeUnknown.

        commit: None for a statement that is its own transaction.
        """
        if commit is None:
            raise OutcomeUnknown(
                f"the connection to {self.where.shown} was lost during a change ({first_line(lost)}), which may have "
                "been stored or not: look, or do it again"
            ) from lost
        if not self._outcomes.took_place(commit, self._outage_seconds()):
            raise Again(connection_lost(lost, self.where.shown), is_outage=True) from lost

    def run_in_this_thread(self, work: Work[T]) -> T:
        result = self._once(work)
        self.listener.committed()
        return result

    def _once(self, work: Work[T]) -> T:
        """Run the work once: it cannot be repeated, because it consumes an iterable of the caller."""
        self._forbid_nested_write()
        try:
            return self._run_once(work, atomic=False)
        except Again as again:
            raise again.error from again

    def run_in(self, conn: Any, work: Work[T], size: int = 0, atomic: bool = False) -> T:
        del size
        if conn is None:
            return self.run(work, durable=True, wakes=True)
        if isinstance(conn, PostgresTransaction):
            return self.run_in_transaction(conn, work, atomic)
        self._forbid_nested_write()
        caller = caller_connection(conn)
        return self._run_for_caller(caller, work, atomic)

    def run_in_transaction(self, transaction: PostgresTransaction, work: Work[T], atomic: bool = False) -> T:
        return self._run_for_caller(transaction._open_caller(), work, atomic)

    def _run_for_caller(self, caller: CallerConnection, work: Work[T], atomic: bool) -> T:
        given = require_handle(caller)
        driver = given.driver
        require_transaction(driver, caller.how_to_begin.replace("BEGIN IMMEDIATE", "BEGIN"))
        try:
            self._require_same_database(given)
        except psycopg.Error as error:
            raise translate(error, self.where.shown) from error
        is_lent, thread = getattr(driver, "is_lent", False), self._this_thread
        if is_lent:
            driver.is_lent = False  # type: ignore[union-attr]
        before = thread.handle
        thread.handle = given
        try:
            if not self.options.notify and not isinstance(driver, LentDriver):
                given.execute("SELECT set_config('holdfast.notify', 'off', true)")
            return work(given) if atomic else in_savepoint(given, work)
        except psycopg.Error as error:
            if is_retryable(error) and not is_lost(error, driver):
                raise TransactionError(
                    "the transaction of conn= cannot go on because of another one: roll it back, and do it again"
                ) from error
            raise translate(error, self.where.shown) from error
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"conn= has the client_encoding {driver.info.encoding}, which lacks a character of this call: "
                "SET client_encoding = 'UTF8'"
            ) from error
        finally:
            thread.handle = before
            if is_lent:
                driver.is_lent = True  # type: ignore[union-attr]

    def _require_same_database(self, given: Handle | AwaitingHandle) -> None:
        driver = given.driver
        if driver in self._known or isinstance(driver, LentDriver):
            return
        theirs = given.execute(self.sql.same_database).fetchone()
        ours = self.rows(self.sql.same_database)[0]
        if theirs != ours:
            raise ForeignConnection(
                f"conn= must be a connection to {self.where.shown}, got one to the database {theirs[0]!r}: pass a "
                "connection to the same database"
            )
        self._known[driver] = True

    def in_batches(self, work: Work[int], limit: int | None = None) -> int:
        total = 0
        while (limit is None or total < limit) and (batch := self.run(work, wakes=True)):
            total += batch
        return total

    def change(self, statement: str, values: Any, durable: bool = False) -> int:
        del durable
        return self.run(lambda connection: int(connection.execute(statement, values).rowcount), atomic=True)

    def change_beside(self, statement: str, values: Any) -> int:
        """Run one statement: in the transaction of `run` if this thread is in one, otherwise by itself.

        It does not take part in a transaction of the caller.
        """
        thread = self._this_thread
        if thread.handle is not None and thread.writes:
            return int(thread.handle.execute(statement, values).rowcount)
        return self.with_driver(lambda driver: int(Handle(driver).execute(statement, values).rowcount))

    def has_beside(self, statement: str, values: Any) -> bool:
        """Return whether there are rows. As change_beside."""
        thread = self._this_thread
        if thread.handle is not None and thread.writes:
            return thread.handle.execute(statement, values).fetchone() is not None
        return self._retried(
            lambda: self.with_driver(lambda driver: Handle(driver).execute(statement, values).fetchone() is not None)
        )

    def require_space(self, size: int) -> None:
        """A server does not tell how much space it has."""

    def require_blob_space(self, size: int) -> None:
        """As require_space."""

    # --- reading ---

    def read(self, work: Work[T]) -> T:
        handle = self._this_thread.handle
        if handle is None:
            return self._retried(lambda: self.with_driver(lambda driver: work(Handle(driver))))
        try:
            return work(handle)
        except psycopg.Error as error:
            if not self._this_thread.reads:
                raise
            raise translate(error, self.where.shown) from error

    def read_snapshot(self, work: Work[T]) -> T:
        if self._this_thread.handle is not None:
            return self.read(work)

        def use(driver: Driver) -> T:
            driver.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            result = work(Handle(driver))
            driver.execute("COMMIT")
            return result

        return self._retried(lambda: self.with_driver(use))

    def _retried(self, read: Callable[[], T]) -> T:
        """Read again if the connection was lost, or the server is away."""

        def once() -> T:
            try:
                return read()
            except CannotOpen as error:
                if not self.sessions.is_outage(error):
                    raise
                raise Again(ConnectionLost(f"{error}. Do it again later"), is_outage=True) from error
            except ConnectionLost as error:
                raise Again(error, is_outage=True) from error

        return run_again(once, self._outage_seconds())

    def rows(self, statement: str, values: Any = ()) -> list[Any]:
        found: list[Any] = self.read(lambda connection: connection.execute(statement, values).fetchall())
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all reads of this thread inside the block see the same snapshot."""
        thread = self._this_thread
        if thread.handle is not None:
            yield
            return
        with ExitStack() as stack:
            thread.handle = self._retried(lambda: self._begin_reading(stack))
            thread.reads = True
            try:
                yield
            finally:
                thread.handle, thread.reads = None, False

    def _begin_reading(self, stack: ExitStack) -> Handle:
        """Begin a transaction that reads, on a connection that is given back with the stack."""
        with ExitStack() as own:
            driver = own.enter_context(self.pool.lend(self._wait_seconds()))
            try:
                driver.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            except psycopg.Error as error:
                raise translate(error, self.where.shown) from error
            stack.push(own.pop_all())
            return Handle(driver)

    # --- transactions for the caller ---

    def transaction(
        self, *, completes: bool = False, conn: Any = None
    ) -> AbstractContextManager[PostgresTransaction]:
        kind = CompletingPostgresTransaction if completes else PostgresTransaction
        return self._begin(kind) if conn is None else self._begin_on(conn, kind)

    @contextmanager
    def _begin(self, kind: type[K]) -> Iterator[K]:
        self._forbid_self_wait()
        owner = Owner.of_caller()
        with ExitStack() as stack:
            driver, transaction_id = run_again(lambda: self._begin_lent(stack), self._outage_seconds())
            transaction, pid = kind(CallerConnection(driver)), os.getpid()
            self._owners[owner] = time.monotonic()
            try:
                driver.is_lent, driver.refused = True, None
                try:
                    yield transaction
                    if os.getpid() != pid:
                        raise UsedAfterFork(
                            "the process was forked inside app.transaction(), and its child has left the block: the "
                            "transaction belongs to the parent. End the child inside the block, or fork outside of it"
                        )
                    self._require_intact(driver)
                finally:
                    driver.is_lent = False
                    transaction._end()
                self._commit_lent(driver, transaction_id)
            except psycopg.Error as error:
                if error.__traceback__ is not None and driver.refused is None and is_lost(error, driver):
                    raise connection_lost(error, self.where.shown) from error
                raise
            finally:
                if os.getpid() == pid:
                    rollback(driver)
                    driver.row_factory = psycopg.rows.tuple_row
                self._owners.pop(owner, None)
        self.listener.committed()

    def _begin_lent(self, stack: ExitStack) -> tuple[LentDriver, str]:
        """Begin a transaction for the caller on a connection, which is given back with the stack. Return both."""
        with ExitStack() as own:
            driver = own.enter_context(self._lent())
            try:
                transaction = self._begin_writing(driver)
            except psycopg.Error as error:
                raise self._failure(error, driver) from error
            stack.push(own.pop_all())
            return driver, transaction

    def _commit_lent(self, driver: LentDriver, transaction: str) -> None:
        commit = Commit(transaction, driver.incarnation, self.clock.now(), self.actor)
        try:
            driver.execute("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error, driver):
                raise
            if not self._outcomes.took_place(commit, self._outage_seconds()):
                raise connection_lost(error, self.where.shown) from error

    def _require_intact(self, driver: LentDriver) -> None:
        if driver.refused is not None or not in_transaction(driver):
            raise TransactionError(
                f"{driver.refused or 'COMMIT'} was called on the connection of app.transaction(), so nothing was "
                "stored: let the block raise to roll it back. To use a session of your own, pass it: "
                "ctx.complete(conn=session)"
            )

    @contextmanager
    def _begin_on(self, conn: Any, kind: type[K]) -> Iterator[K]:
        caller = caller_connection(conn)
        self._forbid_nested_write()
        given = require_handle(caller)
        self._require_same_database(given)
        transaction = kind(caller)
        with caller.ending():
            caller.begin()
            if not in_transaction(given.driver):
                given.execute("SELECT 1" if not given.driver.autocommit else "BEGIN")
            try:
                yield transaction
            finally:
                transaction._end()
        self.listener.committed()

    def is_open(self, conn: Any) -> bool:
        try:
            caller = conn._caller if isinstance(conn, PostgresTransaction) else caller_connection(conn)
            return caller is not None and in_transaction(caller.driver())
        except Exception:  # noqa: BLE001  it is closed, or a session of SQLAlchemy that has to be rolled back first
            return False

    def guard(self, conn: Any) -> bool:
        """Nothing has to be changed on a connection. Return False if it is to another database."""
        try:
            self._require_same_database(require_handle(caller_connection(conn)))
        except ForeignConnection:
            return False
        return True

    def require_no_transaction(self) -> Owner:
        self._forbid_self_wait()
        return Owner()

    def _forbid_self_wait(self) -> None:
        if any(owner.is_caller() for owner in list(self._owners)):
            raise would_wait_for_itself()

    def _forbid_nested_write(self) -> None:
        if self._this_thread.writes:
            raise TransactionError(
                "an iterable that is being stored in one transaction must not write to the database: "
                "make a list first, and pass the list"
            )
        if self._owners:
            self._forbid_self_wait()
            if any(owner.thread == threading.get_ident() for owner in list(self._owners)):
                raise another_coroutine_has_one()

    def wait_as_worker(self) -> None:
        self._timeout = self.options.worker_busy_timeout

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        thread = self._this_thread
        before, thread.timeout = thread.timeout, seconds
        try:
            yield
        finally:
            thread.timeout = before

    def held_for(self) -> float:
        begun = list(self._owners.values())
        return time.monotonic() - min(begun) if begun else 0.0

    # --- waiting ---

    def commits_seen(self) -> int:
        return self.listener.commits

    def wait(self, seen: int, timeout: float) -> None:
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        self.listener.wait(seen, timeout)

    def wake(self) -> None:
        self.listener.wake()

    def deaths_seen(self) -> int:
        return self.listener.deaths

    # --- the end, and forks ---

    def close(self) -> None:
        self._closed = True
        self.listener.close()
        self.pool.close()

    @contextmanager
    def around_fork(self) -> Iterator[None]:
        yield

    def after_fork_in_child(self) -> None:
        """Neither use nor close what belongs to the parent."""
        leak((self.pool, self.listener))
        self.pool.abandon()
        self.listener.abandon()
        self.actor = f"{os.getpid()}-{self._token}"
        self._this_thread, self._owners = _CallingThread(), {}
        self._known = weakref.WeakKeyDictionary()
        if not self._closed:
            self._open()
        self.after_fork()
