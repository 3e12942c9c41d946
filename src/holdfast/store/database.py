"""What the shared parts of a store need of a database: connections, transactions, a dialect, locks on the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from .statements import Statements

if TYPE_CHECKING:
    from ..clock import Clock
    from .processes import ProcessLocks

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[Any], T]
Locked = Literal["locked", "alone", "impossible"]
MOVED = "holdfast: "  # begins the message of the triggers that refuse writes to a database that was moved


class Result(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A connection in a transaction. Values are bound by `?` or by `:name`, in the statements of both stores."""

    def execute(self, statement: str, values: Any = ..., /) -> Result: ...


class Combinable(Generic[T]):  # not an ABC: isinstance() is called for each member of a group
    """Work that one statement can do for several requests."""

    max_combined: int

    def __call__(self, connection: Any, /) -> T:
        raise NotImplementedError

    def run_combined(self, connection: Any, works: list[Any], /) -> list[T]:
        """Run all works, which are of this class, or none. Return their results in the same order."""
        raise NotImplementedError


class Traceable(Generic[T]):
    """Work that is one statement, and writes one event by which it is known whether it was stored."""

    leaves_event: bool
    """Whether it writes that event."""

    def __call__(self, connection: Any, /) -> T:
        raise NotImplementedError

    def event_time(self) -> int:
        """Return the time of the event of the last call."""
        raise NotImplementedError

    def result(self, id: int) -> T:
        """Return what the last call would have returned, if its answer had not been lost. id: of its job."""
        raise NotImplementedError


class Dialect(Protocol):
    """The SQL that differs between the databases, in statements that are put together from filters and columns."""

    def __hash__(self) -> int: ...

    def listed(self, name: str, kind: Literal["text", "integer"]) -> str:
        """Return a subquery of the values in a bound JSON array."""
        ...

    def element(self, row: str, index: int) -> str:
        """Return an element of the JSON array that is a row of a bound JSON array."""
        ...

    def same_task(self, value: str) -> str:
        """Return the condition that a job is of this task, or, if the value is NULL, is a message."""
        ...

    def like(self, value: str, name: str) -> str:
        """Return the condition that a value matches a bound `pattern`."""
        ...

    def pattern(self, text: str) -> str:
        """Return the value to bind for a pattern in which only `*` is special: it is any text."""
        ...

    def argument(self, name: str) -> str:
        """Return the value of the payload at a bound `path`, as text. NULL: there is none, or it is not JSON."""
        ...

    def path(self, names: list[str]) -> str:
        """Return the value to bind for a path of names, and of indexes of arrays."""
        ...

    def using(self, table: str, index: str) -> str:
        """Return the table as a source of rows that are found by this index."""
        ...

    def encoded(self, column: str) -> str:
        """Return a column of text as bytes."""
        ...

    def with_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> tuple[str, Sequence[Any]]:
        """Return a statement that takes many rows, and its values."""
        ...

    def inserted_id(self, cursor: Any) -> int:
        """Return the id of the row that a statement has inserted."""
        ...

    def is_constraint_error(self, error: Exception) -> bool:
        """Return whether the database refused a row because of a constraint."""
        ...


class DamageGuard(Protocol):
    """Makes a function that does the same although rows are damaged. It must not store values of users."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


class SharedDatabase(Protocol):
    """A database of either kind: it runs work on a connection."""

    has_workers: bool
    """Whether this process has a worker on this database."""

    @property
    def actor(self) -> str:
        """The name of this process in the history. It changes after a fork."""
        ...

    @property
    def sql(self) -> Statements: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def locks(self) -> ProcessLocks: ...

    @property
    def graph_locks(self) -> GraphLocks: ...

    @property
    def blob_locks(self) -> BlobLocks: ...

    @property
    def tables(self) -> str:
        """What the names of all tables begin with: the schema, if there is one, and the prefix."""
        ...

    # --- reading ---

    def read(self, work: Work[T], /) -> T: ...

    def read_snapshot(self, work: Work[T], /) -> T:
        """Run reads that all see the same snapshot."""
        ...

    def rows(self, statement: str, values: Any = (), /) -> list[Any]: ...

    # --- writing ---

    def run(self, work: Work[T], /, *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        """Run the work in a transaction that is committed when this returns.

        durable: and flushed to disk. atomic: it is a single statement, or several of which at most one writes.
        wakes: those who wait should look.
        """
        ...

    def run_in_this_thread(self, work: Work[T], /) -> T:
        """As `run` with durable, for work that must run in the calling thread."""
        ...

    def run_in(self, conn: Any, work: Work[T], size: int = 0, atomic: bool = False) -> T:
        """Run the work in the caller's transaction, or, if conn is None, in one that is on disk when this returns.

        size: bytes of payload, for the check of free disk space. atomic: it is a single statement.
        """
        ...

    def run_in_transaction(self, transaction: Any, work: Work[T], /) -> T:
        """Run the work inside an open transaction of `transaction()`."""
        ...

    def in_batches(self, work: Work[int], limit: int | None = None, /) -> int:
        """Run the work in short transactions until it returns 0, or the sum has reached the limit. Return the sum."""
        ...

    def change(self, statement: str, values: Any, /, durable: bool = False) -> int:
        """Run one statement. Return how many rows it changed."""
        ...

    def is_open(self, conn: Any, /) -> bool:
        """Return whether a value passed as `conn=` still has a transaction that can be used."""
        ...

    def require_space(self, size: int, /) -> None:
        """Raise unless there is room for a payload of this size, and for settling what runs."""
        ...

    def require_blob_space(self, size: int, /) -> None:
        """Raise unless there is room for a blob of this size beside the database."""
        ...

    def wait_as_worker(self) -> None:
        """Wait longer for locks from now on: no user waits for a process that runs jobs."""
        ...

    # --- waiting ---

    def commits_seen(self) -> int: ...

    def wait(self, seen: int, timeout: float, /) -> None:
        """Wait until any process commits, or the timeout."""
        ...

    def wake(self) -> None:
        """Make `wait` return in all threads of this process."""
        ...

    def deaths_seen(self) -> int:
        """Return a number that grows when a worker may have died."""
        ...


class GraphLocks(Protocol):
    """Locks on the graph of jobs: chains, jobs that wait for them, and batches. They last until the transaction ends.

    A transaction that ends a job looks for jobs that wait for it. A transaction that enqueues a job looks whether its
    blockers have ended. If both run at the same time and neither sees the other, the job waits for ever. The same
    holds for two blockers of one job, two last members of a batch, and a member that is added while its batch ends.
    So one of them has to wait for the other, and look afterwards.
    """

    def lock_endings(self, connection: Connection, /) -> Locked:
        """Let no other transaction resolve ends of jobs.

        Return "locked" if this may have waited for another one, so that it has to be looked again; "alone" if no
        other can write now; "impossible" if this transaction does not see what others have committed meanwhile.
        """
        ...

    def hold_chains(self, connection: Connection, chains: Collection[int], /) -> None:
        """Let the ends of these chains wait. The next statement sees whether they have ended."""
        ...

    def hold_batch(self, connection: Connection, batch: int, /) -> None:
        """Let the end of this batch wait. The next statement sees whether it has ended."""
        ...

    def lock_batches(self, connection: Connection, batches: Collection[int], /) -> set[int]:
        """Keep other transactions from adding members to these batches; return those that one adds to."""
        ...


class BlobLocks(Protocol):
    """Locks on large payloads, by name. They last until the transaction ends.

    A transaction that refers to a payload looks whether it was deleted. One that deletes it looks whether a job
    refers to it. So one of them has to wait for the other, and look afterwards.
    """

    def hold_blob(self, connection: Connection, name: str, /) -> bool:
        """Keep others from deleting it. Return whether the next statement sees a deletion that came before."""
        ...

    def lock_blob(self, connection: Connection, name: str, /) -> bool:
        """Keep new references from being made; the next statement sees all others. False: one may be about to be."""
        ...


class OneWriter:
    """Implements GraphLocks and BlobLocks for a database that has one write lock: only its owner sees and changes."""

    def lock_endings(self, connection: Connection) -> Locked:
        del connection
        return "alone"

    def hold_chains(self, connection: Connection, chains: Collection[int]) -> None:
        """The write lock does that."""

    def hold_batch(self, connection: Connection, batch: int) -> None:
        """The write lock does that."""

    def lock_batches(self, connection: Connection, batches: Collection[int]) -> set[int]:
        del connection, batches
        return set()

    def hold_blob(self, connection: Connection, name: str) -> bool:
        del connection, name
        return True

    def lock_blob(self, connection: Connection, name: str) -> bool:
        del connection, name
        return True
