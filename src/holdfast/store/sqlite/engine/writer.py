"""The one writer of a process, with group commit.

A thread that wants to write puts its work in line. If nobody is writing it becomes the leader and does all the work
that stands in line, in one transaction with one fsync, and leaves each result where its owner finds it. A lone
thread thus writes at once, without handing anything to anybody; threads that write together share a commit.
"""

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, Generic, NoReturn, TypeVar

from ....errors import CorruptDatabase, StoreBusy, StoreClosed, StoreError, TransactionError
from .checkpoint import Checkpointer
from .errors import Patience, is_busy, translate
from .group_commit import QueuedWrite, Turn

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class EngineGone(Exception):
    """This engine was closed because of a fork, before anything was done; a new one takes its place."""


class Joinable(Generic[T]):  # no ABC: it is asked for each member of a group whether it is one
    """Work of which several can be done with one statement."""

    most_together: int

    def __call__(self, connection: sqlite3.Connection, /) -> T:
        raise NotImplementedError

    def do_together(self, connection: sqlite3.Connection, works: list[Any], /) -> list[T]:
        """Do all of them, which are of this class; results in the same order. All or none."""
        raise NotImplementedError


FLUSHED = "FULL"
MAX_GROUP = 500


class _Request(QueuedWrite, Generic[T]):
    __slots__ = ("atomic", "durable", "error", "limit", "result", "wakes", "work")

    def __init__(self, work: Work[T], durable: bool, atomic: bool, wakes: bool, limit: float | None = None) -> None:
        QueuedWrite.__init__(self)
        self.work, self.durable, self.atomic, self.wakes, self.limit = work, durable, atomic, wakes, limit
        self.result: T
        self.error: BaseException | None = None

    def attempt(self, connection: sqlite3.Connection) -> None:
        self.error = None
        try:
            self.result = self.work(connection)
        except Exception as error:  # noqa: BLE001  it belongs to the thread that brought the work
            self.error = error


class Writer:
    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        patience: Patience,
        durable_level: str,
        on_wake: Callable[[], None],
    ) -> None:
        self._path, self._connection, self._checkpointer = path, connection, checkpointer
        self._patience, self._on_wake = patience, on_wake
        self._durable_level, self._level = durable_level, ""
        self._turn = Turn[_Request[Any]]()
        self._last_group = 1
        self._owner: int | None = None  # the thread inside owned()
        self._owner_task: object = None  # and the coroutine, if it is one
        self._owned_at = 0.0
        self._counted = connection.total_changes
        self._leader: int | None = None  # the thread that does the work of the line
        self._usable = True  # neither closed nor retired nor damaged
        self._abandoned = self._retired = self._closed = False
        self.damage: CorruptDatabase | None = None
        self.since_fold = 0
        """Changes since the statistics were folded by this process; reset by whoever folds."""

    def run(
        self,
        work: Work[T],
        *,
        durable: bool = False,
        atomic: bool = False,
        wakes: bool = False,
        limit: float | None = None,
    ) -> T:
        """Run the work in a transaction that has been committed when this returns.

        durable: flush it to the disk as well. atomic: the work is a single statement, which SQLite makes a
        transaction of its own. wakes: tell waiting threads of this process. limit: seconds to wait for others, if
        not as long as usual. The work may be run more than once, each time after everything it did was undone.
        """
        if atomic and self._last_group == 1:
            try:
                if self._turn.take_if_free():
                    return self._run_at_once(work, durable, wakes, limit)
            finally:
                self._turn.give_back()
        if self._leader is not None or self._owner is not None:
            self.refuse_nesting()
        request = _Request(work, durable, atomic, wakes, limit)
        try:
            if self._turn.take(request, self._patience.limit if limit is None else limit):
                self._leader = get_ident()
                while not request.done:
                    self._serve()
        finally:
            if request.leads:
                self._leader = None
                self._turn.pass_on()
        if request.left and not request.done:
            raise self._held_up()
        return self._result_of(request)

    def _held_up(self) -> StoreBusy:
        return StoreBusy(
            f"another thread of this process has kept the database for {self._patience.limit:g} seconds, in "
            "app.transaction() or ctx.complete(): keep such blocks short, or raise busy_timeout"
        )

    def _run_at_once(self, work: Work[T], durable: bool, wakes: bool, limit: float | None) -> T:
        """The short way, for a thread that is alone: as `_serve`, but there is no line and nothing to leave there."""
        connection = self._connection
        try:
            if not self._usable:
                self._require_usable()
            level = self._durable_level if durable else "NORMAL"
            if level != self._level:
                self._set_level(level)
            try:
                result = work(connection)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                result = self._patience.run(lambda: work(connection), limit)
            changes = connection.total_changes - self._counted
            if changes:
                self._count_commit(changes, wakes)
            return result
        except sqlite3.Error as error:
            self.raise_for(error)

    def _result_of(self, request: _Request[T]) -> T:
        error = request.error
        if error is None:
            return request.result
        if isinstance(error, sqlite3.Error):
            self.raise_for(error)
        raise error

    @contextmanager
    def exclusively(self, patience_seconds: float = -1) -> Iterator[bool]:
        """Keep the other threads of this process from writing, for as long as the block lasts.

        With patience_seconds it waits no longer than that for them, and gives False if that was too short.
        """
        one = QueuedWrite()
        try:
            self._turn.take_alone(one, patience_seconds)
            yield one.leads
        finally:
            if one.leads and not self._abandoned:
                self._turn.pass_on()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """While this thread has a transaction open on another connection."""
        self.refuse_nesting()
        with self.exclusively(self._patience.limit) as alone:
            if not alone:
                raise self._held_up()
            self._require_usable()
            self._owner, self._owner_task, self._owned_at = get_ident(), _current_task(), time.monotonic()
            try:
                yield
            finally:
                self._owner = self._owner_task = None

    def held_for(self) -> float:
        """Seconds for which one thread of this process has had its own transaction; 0 where none has."""
        return 0.0 if self._owner is None else time.monotonic() - self._owned_at

    def is_owned_here(self) -> bool:
        return self._owner is not None and self._owner == get_ident()

    def checkpoint(self) -> tuple[int, int]:
        with self.owned():
            return self._checkpointer.run(self._patience.run)

    def count_changes(self, changes: int, flushed: bool) -> None:
        """A commit of so many changes by this process: checkpoint when there are enough. For the leader."""
        if self._checkpointer.count(changes, flushed):
            self._checkpoint_if_possible()

    def _checkpoint_if_possible(self) -> None:
        # What was written is committed; whatever ails the disk will be told at the next write.
        with suppress(sqlite3.Error, StoreBusy):
            self._checkpointer.run(self._patience.run if self._checkpointer.is_due() else _once)

    def run_here(self, work: Work[T]) -> T:
        """As `run`, durable, for work that must run in this very thread, and in a transaction of its own."""
        self.refuse_nesting()
        request = _Request(work, durable=True, atomic=False, wakes=True)
        with self.exclusively():
            self._leader = get_ident()
            try:
                self._require_usable()
                self._run_alone(request)
                self._after_commit([request])
            except sqlite3.Error as error:
                request.error = error
            finally:
                self._leader = None
        return self._result_of(request)

    def close(self, then: Callable[[], None]) -> None:
        self.refuse_nesting()
        with self.exclusively():
            self._closed, self._usable = True, False
            then()

    def refuse_nesting(self) -> None:
        if self._leader is not None and self._leader == get_ident():
            raise TransactionError(
                "while many are being stored in one transaction, what makes them must not write: "
                "make a list first, and pass that"
            )
        self.refuse_waiting_for_itself()
        if self.is_owned_here():
            raise TransactionError(
                "another coroutine of this event loop has a transaction open and awaits in it, so nothing can be "
                "written here: it must not await in app.transaction() or ctx.complete(); see ctx.acomplete()"
            )

    def refuse_waiting_for_itself(self) -> None:
        if self.is_owned_here() and _current_task() is self._owner_task:
            raise TransactionError(
                "this thread has an open app.transaction(), and this would wait for its end: pass conn=tx to take "
                "part in it, or do it after the block"
            )

    def abandon(self) -> None:
        """In a forked child: the line and its leader belong to the parent."""
        self._abandoned = True

    def retire(self) -> None:
        """Another engine will take over; whoever still comes here is told to go there."""
        self._retired, self._usable = True, False

    def _require_usable(self) -> None:
        if self._retired:
            raise EngineGone
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        if self.damage is not None:
            raise self.damage

    def raise_for(self, error: sqlite3.Error) -> NoReturn:
        """Raise Holdfast's exception instead; once the file was found damaged, nothing more is written to it."""
        translated = translate(error, self._path)
        if isinstance(translated, CorruptDatabase):
            self.damage, self._usable = translated, False
        raise translated from error

    def _serve(self) -> None:
        """Do what stands in line."""
        group: list[_Request[Any]] = []
        try:
            self._gather(group)
            self._require_usable()
            if len(group) == 1:
                self._run_alone(group[0])
            elif not self._join(group):
                self._run_together(group)
            self._after_commit(group)
        except Exception as error:  # noqa: BLE001  each thread of the group gets it
            for request in group:
                request.error = error
        except BaseException:  # an interrupt is this thread's own; the others must not wait for ever
            for request in group:
                request.error = StoreError("the write was interrupted, so its outcome is unknown: do it again")
            raise
        finally:
            self._turn.let_pass(group)

    def _gather(self, group: list[_Request[Any]]) -> None:
        """Take what stands in line. Where threads write together, let those who just finished join again."""
        if self._last_group > 1:
            self._turn.await_others(self._last_group)
        self._turn.gather(group, MAX_GROUP)
        self._last_group = len(group)

    def _run_alone(self, request: _Request[Any]) -> None:
        connection = self._connection
        self._use_level(request.durable)
        if request.atomic:
            request.attempt(connection)
            if isinstance(request.error, sqlite3.OperationalError) and is_busy(request.error):
                self._patience.run(lambda: self._run_atomic(request), request.limit)
            return
        self._patience.run(lambda: connection.execute("BEGIN IMMEDIATE"), request.limit)
        try:
            request.attempt(connection)
            if request.error is None:
                connection.execute("COMMIT")
        finally:
            self._roll_back_if_open()

    def _run_atomic(self, request: _Request[Any]) -> None:
        request.attempt(self._connection)
        if request.error is not None:
            raise request.error  # so that BUSY is tried again

    def _run_together(self, group: list[_Request[Any]]) -> None:
        connection = self._connection
        self._use_level(any(request.durable for request in group))
        self._patience.run(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            for request in group:
                self._run_apart(request)
            connection.execute("COMMIT")
        finally:
            self._roll_back_if_open()

    def _join(self, group: list[_Request[Any]]) -> bool:
        """Do the whole group with one statement, which is a transaction by itself, if that is possible."""
        works = [request.work for request in group if isinstance(request.work, Joinable)]
        if len(works) < len(group) or len(works) > works[0].most_together:
            return False
        self._use_level(any(request.durable for request in group))
        try:
            results = self._patience.run(lambda: works[0].do_together(self._connection, works))
        except sqlite3.IntegrityError:
            return False  # one of them is bad: each by itself will show which
        for request, result in zip(group, results, strict=True):
            request.result = result
        return True

    def _run_apart(self, request: _Request[Any]) -> None:
        """One member of a group: if it fails, only its own changes are undone."""
        connection = self._connection
        if not request.atomic:
            connection.execute("SAVEPOINT member")
        request.attempt(connection)
        if not connection.in_transaction:  # a full disk has rolled back everything, the others' work too
            raise request.error or TransactionError("the work ended the transaction it ran in")
        if not request.atomic:
            if request.error is not None:
                connection.execute("ROLLBACK TO member")
            connection.execute("RELEASE member")

    def _roll_back_if_open(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _use_level(self, durable: bool) -> None:
        level = self._durable_level if durable else "NORMAL"
        if level != self._level:
            self._set_level(level)

    def _set_level(self, level: str) -> None:
        self._connection.execute(f"PRAGMA synchronous = {level}")
        self._level = level

    def _after_commit(self, group: list[_Request[Any]]) -> None:
        changes = self._connection.total_changes - self._counted
        if changes:
            self._count_commit(changes, any(request.wakes for request in group))

    def _count_commit(self, changes: int, wakes: bool) -> None:
        self._counted += changes
        self.since_fold += changes
        if wakes:
            self._on_wake()
        if self._checkpointer.count(changes, self._level == FLUSHED):
            self._checkpoint_if_possible()


def _once(action: Callable[[], T]) -> T:
    return action()


def _current_task() -> object:
    """The coroutine that runs in this thread, if one does."""
    asyncio = sys.modules.get("asyncio")  # which is not imported for nothing
    if asyncio is None or asyncio._get_running_loop() is None:
        return None
    found: object = asyncio.current_task()
    return found
