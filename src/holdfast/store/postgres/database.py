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
from typing import Any, Literal, TypeVar

import psycopg
from msgspec import Struct

from ...blobs import BlobStore
from ...clock import Clock
from ...errors import ForeignConnection, StoreClosed, StoreError, TransactionError
from ..processes import leak, register_forkable
from ..statements import Statements, as_json
from ..transactions import (
    CallerConnection,
    Owner,
    another_coroutine_has_one,
    caller_connection,
    would_wait_for_itself,
)
from .advisory_locks import AdvisoryLocks
from .connection import AwaitingHandle, Driver, Handle, connect, in_transaction, rollback, target
from .errors import is_lost, is_retryable, translate
from .graph_locks import RowLocks
from .listener import Listener
from .migrate import Names, PostgresMigrations
from .pool import MAX_CONNECTIONS, Pool
from .server_clock import ServerClock
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
MAX_TRIES = 10
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
    checks_schema: bool = True  # False: for the doctor, whatever the tables are


class PostgresDialect:
    """Implements Dialect."""

    def __init__(self, tables: str) -> None:
        self._tables = tables

    def listed(self, name: str, kind: Literal["text", "integer"]) -> str:
        return f"SELECT value FROM {self._tables}each_{'id' if kind == 'integer' else 'text'}(:{name})"  # noqa: S608

    def element(self, row: str, index: int) -> str:
        return f"({row} ->> {index})"

    def same_task(self, value: str) -> str:
        return f"coalesce(task, '') = coalesce({value}, '')"  # as the indexes have it

    def like(self, value: str, name: str) -> str:
        return f"coalesce({value} LIKE :{name}, false)"

    def pattern(self, text: str) -> str:
        for special in ("\\", "%", "_"):
            text = text.replace(special, f"\\{special}")
        return text.replace("*", "%")

    def argument(self, name: str) -> str:
        return f"{self._tables}argument(args, :{name})"

    def path(self, names: list[str]) -> str:
        return as_json(names)

    def using(self, table: str, index: str) -> str:
        del index
        return table

    def encoded(self, column: str) -> str:
        return f"convert_to({column}, 'UTF8')"

    def with_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
        return statement, [as_json(rows)]

    def inserted_id(self, cursor: Any) -> int:
        return int(cursor.fetchone()[0])

    def is_constraint_error(self, error: Exception) -> bool:
        return isinstance(error, psycopg.IntegrityError)


class _CallingThread(threading.local):
    """State of the calling thread."""

    handle: Handle | AwaitingHandle | None = None  # inside run() or reading()
    writes: bool = False  # inside run()
    timeout: float | None = None  # None: busy_timeout


class PostgresDatabase:
    def __init__(self, options: PostgresOptions, clock: Clock | None, token: str) -> None:
        self.options, self._token = options, token
        self.names = Names(options.schema, options.prefix)
        self.tables = self.names.tables
        self.lock_class = zlib.crc32(self.tables.encode()) - 2**31
        self.dialect = PostgresDialect(self.tables)
        self.sql = Statements(Path(__file__).parent / "sql", self.tables)
        self.where = target(options.url)
        self._server_clock = ServerClock()
        self.clock: Clock = clock or self._server_clock
        self.actor = f"{os.getpid()}-{token}"
        self.has_workers = False
        self.fold: Callable[[], None] = lambda: None
        self.after_fork: Callable[[], None] = lambda: None
        self.locks, self.graph_locks = AdvisoryLocks(self), RowLocks(self.sql, self.lock_class)
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
        self.pool = Pool(self._connect)
        self.listener = Listener(
            self._connect_listener, self.names.channel, self.lock_class, self._count_dead_workers
        )

    def _connect(self) -> Driver:
        milliseconds = str(max(1, round(self._timeout * 1000)))
        settings = {"holdfast.notify": "off", "lock_timeout": milliseconds, "jit": "off"}
        driver = connect(self.where, settings, LentDriver)
        before = time.monotonic_ns()
        (now,) = Handle(driver).execute(self.sql.server_clock).fetchone()
        self._server_clock.set(now, before, time.monotonic_ns())
        return driver

    def _connect_listener(self) -> Driver:
        return connect(self.where, {"holdfast.notify": "off", "synchronous_commit": "off"})

    def _count_dead_workers(self, driver: Driver) -> int:
        return int(Handle(driver).execute(self.sql.count_dead_workers, (self.lock_class,)).fetchone()[0])

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

    # --- writing ---

    def run(self, work: Work[T], *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        # Every commit is flushed, except an enqueue with durability="normal". A lost claim would be worse than a lost
        # enqueue: workers outlive a crash of the server, and the same attempt would be given out twice.
        relaxed = durable and self.options.durable_level == "NORMAL"
        self._forbid_nested_write()
        for attempt in range(MAX_TRIES):
            try:
                result = self._run_once(work, atomic, is_last=attempt == MAX_TRIES - 1, relaxed=relaxed)
            except _Again:
                time.sleep(0.002 * 2**attempt * (0.5 + os.urandom(1)[0] / 256))
                continue
            if wakes:
                self.listener.committed(urgent=durable)
            self._fold_now_and_then()
            return result
        raise AssertionError("the last try returns or raises")

    def _fold_now_and_then(self) -> None:
        """In a program without a worker, which would fold as housekeeping."""
        self._runs += 1
        if self._runs >= RUNS_PER_FOLD:
            self._runs = 0
            if not self.has_workers:
                self.fold()

    def _run_once(self, work: Work[T], atomic: bool, is_last: bool, relaxed: bool = False) -> T:
        """relaxed: do not wait until the commit is on disk."""
        atomic = atomic and not relaxed
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        thread = self._this_thread
        with self.pool.lend(self._wait_seconds()) as driver:
            handle, commits = Handle(driver), False
            thread.handle, thread.writes = handle, True
            try:
                if thread.timeout is not None:
                    handle.execute(
                        "SELECT set_config('lock_timeout', ?, false)", (f"{max(1, round(thread.timeout * 1000))}",)
                    )
                if not atomic:
                    driver.execute("BEGIN; SET LOCAL synchronous_commit = off" if relaxed else "BEGIN")
                result = work(handle)
                if not atomic:
                    commits = True
                    driver.execute("COMMIT")
                return result
            except psycopg.Error as error:
                lost = is_lost(error, driver)
                if not is_last and (is_retryable(error) or (lost and not commits and not atomic)):
                    raise _Again from error
                raise translate(error, self.where.shown) from error
            finally:
                thread.handle, thread.writes = None, False
                if thread.timeout is not None and not driver.closed:
                    rollback(driver)
                    if not driver.closed:
                        driver.execute(f"SET lock_timeout = {max(1, round(self._timeout * 1000))}")

    def run_in_this_thread(self, work: Work[T]) -> T:
        result = self._once(work)
        self.listener.committed()
        return result

    def _once(self, work: Work[T]) -> T:
        """Run the work once: it cannot be repeated, because it consumes an iterable of the caller."""
        self._forbid_nested_write()
        try:
            return self._run_once(work, False, is_last=True)
        except _Again as error:
            raise StoreError("try again") from error

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
        self._require_same_database(given)
        is_lent, thread = getattr(driver, "is_lent", False), self._this_thread
        if is_lent:
            driver.is_lent = False  # type: ignore[union-attr]
        before = thread.handle
        thread.handle = given
        try:
            return work(given) if atomic else in_savepoint(given, work)
        except psycopg.Error as error:
            if is_retryable(error):
                raise TransactionError(
                    "the transaction of conn= cannot go on because of another one: roll it back, and do it again"
                ) from error
            raise translate(error, self.where.shown) from error
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

    def require_space(self, size: int) -> None:
        """A server does not tell how much space it has."""

    def require_blob_space(self, size: int) -> None:
        """As require_space."""

    # --- reading ---

    def read(self, work: Work[T]) -> T:
        handle = self._this_thread.handle
        if handle is not None:
            return work(handle)
        return self._retried(lambda: self.with_driver(lambda driver: work(Handle(driver))))

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
        """Read again if the connection was lost: each of the pool may be."""
        for _ in range(MAX_CONNECTIONS):
            try:
                return read()
            except StoreError as error:
                cause = error.__cause__
                if not isinstance(cause, psycopg.Error) or not is_lost(cause, None):
                    raise
        return read()

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
            try:
                yield
            finally:
                thread.handle = None

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
        with self.pool.lend(self._wait_seconds()) as driver:
            assert isinstance(driver, LentDriver)
            transaction = kind(CallerConnection(driver))
            self._owners[owner] = time.monotonic()
            try:
                driver.execute("BEGIN")
                driver.is_lent, driver.refused = True, None
                try:
                    yield transaction
                    self._require_intact(driver)
                finally:
                    driver.is_lent = False
                    transaction._end()
                driver.execute("COMMIT")
            except psycopg.Error as error:
                if error.__traceback__ is not None and driver.refused is None and is_lost(error, driver):
                    raise translate(error, self.where.shown) from error
                raise
            finally:
                rollback(driver)
                driver.row_factory = psycopg.rows.tuple_row
                self._owners.pop(owner, None)
        self.listener.committed()

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
        self.actor = f"{os.getpid()}-{self._token}"
        self._this_thread, self._owners = _CallingThread(), {}
        self._known = weakref.WeakKeyDictionary()
        if not self._closed:
            self._open()
        self.after_fork()


class _Again(Exception):
    """The transaction was rolled back and can run once more."""
