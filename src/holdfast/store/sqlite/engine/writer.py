"""The writer of a process: it runs every write, with group commit.

A thread that wants to write enters the commit queue. If no other thread writes, it becomes the leader: it runs all
pending work in one transaction with one fsync, and stores each result where its owner finds it. So a single thread
writes at once, without a hand-over, and threads that write at the same time share a commit. See group_commit.py and
docs/internals/group-commit.md.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, Generic, NoReturn, TypeVar

from ....errors import CorruptDatabase, StoreBusy, StoreClosed, StoreError, TransactionError
from ...database import Combinable
from ...transactions import Owner, another_coroutine_has_one, would_wait_for_itself
from .checkpoint import Checkpointer
from .database_file import OpenFiles
from .errors import SQLITE_ERRORS, BusyRetry, file_replaced, is_busy, is_failed_flush, translate
from .failed_flush import FailedFlush
from .group_commit import CommitQueue, QueueEntry

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
FLUSHED = "FULL"
MAX_GROUP = 500


class EngineClosedForFork(Exception):
    """Raised before anything was done: a fork has closed this engine. Try again with the new one."""


class _Request(QueueEntry, Generic[T]):
    __slots__ = ("atomic", "durable", "error", "result", "timeout", "wakes", "work")

    def __init__(self, work: Work[T], durable: bool, atomic: bool, wakes: bool, timeout: float | None = None) -> None:
        QueueEntry.__init__(self)
        self.work, self.durable, self.atomic, self.wakes, self.timeout = work, durable, atomic, wakes, timeout
        self.result: T
        self.error: BaseException | None = None

    def attempt(self, connection: sqlite3.Connection) -> None:
        self.error = None
        try:
            self.result = self.work(connection)
        except Exception as error:  # noqa: BLE001  raised in the thread that brought the work
            self.error = error


class Writer:
    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        checkpointer: Checkpointer,
        busy_retry: BusyRetry,
        durable_level: str,
        on_commit: Callable[[], None],
        failed_flush: FailedFlush,
        files: OpenFiles,
    ) -> None:
        """on_commit: called after commits that may concern waiting threads."""
        self.failed_flush, self._files = failed_flush, files
        self._path, self._connection, self._checkpointer = path, connection, checkpointer
        self._busy_retry, self._on_commit = busy_retry, on_commit
        self._durable_level, self._level = durable_level, ""
        self._queue = CommitQueue[_Request[Any]](busy_retry.self_wait)
        self._last_group = 1
        self._owner: Owner | None = None  # of the transaction inside reserve()
        self._reserved_at = 0.0
        self._counted = connection.total_changes
        self._leader: int | None = None  # the thread that runs the work of the queue
        self._usable = True  # neither closed nor damaged
        self._abandoned = self._closed_for_fork = self._closed = False
        self.damage: CorruptDatabase | None = None
        self.changes_since_fold = 0
        """Changes since this process last folded statistics. The caller that folds resets it."""

    def run(
        self,
        work: Work[T],
        *,
        durable: bool = False,
        atomic: bool = False,
        wakes: bool = False,
        timeout: float | None = None,
    ) -> T:
        """Run the work in a transaction that is committed when this returns.

        durable: also flush it to the disk. atomic: the work is a single statement, which is a transaction by itself.
        wakes: notify waiting threads of this process. timeout: how many seconds to wait for other writers, if not
        busy_timeout. The work may run more than once; before each new run its changes are rolled back.
        """
        if atomic and self._last_group == 1:
            try:
                if self._queue.lead_if_idle():
                    return self._run_directly(work, durable, wakes, timeout)
            finally:
                self._queue.stop_direct_lead()
        if self._leader is not None or self._owner is not None:
            self.forbid_nested_write()
        request = _Request(work, durable, atomic, wakes, timeout)
        try:
            if self._queue.enter(request, self._busy_retry.timeout if timeout is None else timeout):
                self._leader = get_ident()
                while not request.done:
                    self._commit_group()
        finally:
            if request.is_leader:
                self._leader = None
                self._queue.hand_over()
        if request.withdrawn and not request.done:
            raise self._busy_retry.busy(request.timeout) if request.in_group else self._reserved_too_long()
        return self._result_of(request)

    def _reserved_too_long(self) -> StoreBusy:
        return StoreBusy(
            f"another thread of this process has kept the database for {self._busy_retry.timeout:g} seconds, in "
            "app.transaction() or ctx.complete(): keep such blocks short, or raise busy_timeout"
        )

    def _run_directly(self, work: Work[T], durable: bool, wakes: bool, timeout: float | None) -> T:
        """Do what `_commit_group` does, for a thread that writes alone: no queue, no request."""
        connection = self._connection
        try:
            if not self._usable:
                self._require_usable()
            if self.failed_flush.is_open and durable:
                self._require_flushed()
            level = self._durable_level if durable else "NORMAL"
            if level != self._level:
                self._set_level(level)
            try:
                result = work(connection)
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                result = self._busy_retry.run(lambda: work(connection), timeout)
            changes = connection.total_changes - self._counted
            if changes:
                self._count_commit(changes, wakes)
            elif not self._files.are_in_place():  # a consumer that finds nothing
                raise self.file_replaced()
            return result
        except SQLITE_ERRORS as error:
            self._notice_failed_flush(error)
            self.raise_for(error)

    def _result_of(self, request: _Request[T]) -> T:
        error = request.error
        if error is None:
            return request.result
        if isinstance(error, SQLITE_ERRORS):
            self.raise_for(error)
        raise error

    @contextmanager
    def exclusive(self, timeout: float = -1) -> Iterator[bool]:
        """Keep the other threads of this process from writing for the duration of the block.

        Yield False if the timeout ended before they had finished.
        """
        entry = QueueEntry()
        try:
            self._queue.lead_exclusively(entry, timeout)
            yield entry.is_leader
        finally:
            if entry.is_leader and not self._abandoned:
                self._queue.hand_over()

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Block other writes while this thread has a transaction open on another connection."""
        self.forbid_nested_write()
        with self.exclusive(self._busy_retry.timeout) as acquired:
            if not acquired:
                raise self._reserved_too_long()
            self._require_usable()
            if self.failed_flush.is_open:
                self._require_flushed()
            self._owner, self._reserved_at = Owner.of_caller(), time.monotonic()
            try:
                yield
            finally:
                self._owner = None

    def held_for(self) -> float:
        """Return for how many seconds a thread of this process has reserved the writer; 0 if none has."""
        return 0.0 if self._owner is None else time.monotonic() - self._reserved_at

    def is_reserved_by_this_thread(self) -> bool:
        owner = self._owner
        return owner is not None and owner.thread == get_ident()

    def checkpoint(self) -> tuple[int, int]:
        with self.reserve():
            try:
                self._require_complete_log()
                return self._checkpointer.run(self._busy_retry.run)
            except SQLITE_ERRORS as error:
                self.raise_for_leader(error)

    def count_changes(self, changes: int, flushed: bool) -> None:
        """Count a commit on another connection of this process, and checkpoint if it is due. For the leader only."""
        if not self._files.check():
            raise self.file_replaced()
        if self._checkpointer.count(changes, flushed):
            self._checkpoint_if_possible()

    def _checkpoint_if_possible(self) -> None:
        # The data is committed already. If the disk has a problem, the next write raises.
        try:
            self._require_complete_log()
            self._checkpointer.run(self._busy_retry.run if self._checkpointer.is_due() else _run_once)
        except SQLITE_ERRORS as error:
            self._notice_failed_flush(error)
        except StoreError:  # busy, or a flush has failed
            pass

    def checkpoint_before_close(self) -> None:
        """Checkpoint, as SQLite does when the last connection is closed. But SQLite ignores a flush that fails then.

        For the leader only.
        """
        if self.damage is None:
            self._checkpoint_if_possible()

    def run_in_this_thread(self, work: Work[T]) -> T:
        """As `run` with durable, but in the calling thread and in a transaction of its own."""
        self.forbid_nested_write()
        request = _Request(work, durable=True, atomic=False, wakes=True)
        with self.exclusive():
            self._leader = get_ident()
            try:
                self._require_usable()
                if self.failed_flush.is_open:
                    self._require_flushed()
                self._run_single(request)
                self._after_commit([request])
            except SQLITE_ERRORS as error:
                request.error = error
            finally:
                self._notice_failed_flush(request.error)
                self._leader = None
        return self._result_of(request)

    def close(self, close_connections: Callable[[], None]) -> None:
        self.forbid_nested_write()
        with self.exclusive():
            self._closed, self._usable = True, False
            close_connections()

    def forbid_nested_write(self) -> None:
        """Raise if this thread already writes, so that it would wait for itself."""
        if self._leader is not None and self._leader == get_ident():
            raise TransactionError(
                "an iterable that is being stored in one transaction must not write to the database: "
                "make a list first, and pass the list"
            )
        self.forbid_self_wait()
        if self.is_reserved_by_this_thread():
            raise another_coroutine_has_one()

    def forbid_self_wait(self) -> None:
        """Raise if the caller has a transaction open and would wait for its end."""
        owner = self._owner
        if owner is not None and owner.is_caller():
            raise would_wait_for_itself()

    def abandon(self) -> None:
        """In a forked child: leave the queue and its leader alone, they belong to the parent."""
        self._abandoned = True

    def close_for_fork(self) -> None:
        """Make every later call raise EngineClosedForFork, so that it goes to the next engine."""
        self._closed_for_fork, self._usable = True, False

    def _require_usable(self) -> None:
        if self._closed_for_fork:
            raise EngineClosedForFork
        if self._closed:
            raise StoreClosed("this Holdfast was closed: make a new one")
        if self.damage is not None:
            raise self.damage

    def raise_for(self, error: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        """Raise Holdfast's exception instead. If the file is damaged, refuse all further writes."""
        translated = translate(error, self._path)
        if not self._files.check():
            translated = file_replaced(self._path)
        if isinstance(translated, CorruptDatabase):
            self._refuse_writes(translated)
        raise translated from error

    def raise_for_leader(self, error: sqlite3.Error | UnicodeDecodeError) -> NoReturn:
        """As `raise_for`, in the thread that keeps the others from writing: it recovers from a failed flush."""
        self._notice_failed_flush(error)
        self.raise_for(error)

    def file_replaced(self) -> CorruptDatabase:
        """Refuse all further writes, since another file has the name of this one. Return the exception to raise."""
        if self.damage is None:
            self._refuse_writes(file_replaced(self._path))
        assert self.damage is not None
        return self.damage

    def _refuse_writes(self, damage: CorruptDatabase) -> None:
        self.damage, self._usable = damage, False

    def _notice_failed_flush(self, error: BaseException | None) -> None:
        if is_failed_flush(error):
            assert error is not None
            self.failed_flush.notice(error)

    def _require_flushed(self) -> None:
        """Recover from a failed flush, or raise, before a commit that must be on disk."""
        if self._durable_level == FLUSHED:
            self._recover()

    def _require_complete_log(self) -> None:
        """Recover from a failed flush, or raise, before a checkpoint: with a gap in the log it would do harm."""
        self.failed_flush.look()
        if self.failed_flush.is_open:
            self._recover()
        if not self._files.check():
            raise self.file_replaced()

    def try_to_recover(self) -> None:
        """Recover from a failed flush, if possible. For the leader only."""
        if self.failed_flush.is_open and self.damage is None:
            with suppress(StoreError):
                self._recover()

    def _recover(self) -> None:
        try:
            self.failed_flush.recover(self._busy_retry.run)
        except CorruptDatabase as error:
            self._refuse_writes(error)
            raise

    def _commit_group(self) -> None:
        """Run the pending work of the queue, as the leader."""
        group: list[_Request[Any]] = []
        try:
            self._take_group(group)
            self._require_usable()
            if self.failed_flush.is_open:
                self._run_unflushed(group)
            elif len(group) == 1:
                self._run_single(group[0])
                self._notice_failed_flush(group[0].error)
            elif not self._run_combined(group):
                self._run_group(group)
            self._after_commit(group)
        except Exception as error:  # noqa: BLE001  raised in each thread of the group
            self._notice_failed_flush(error)
            for request in group:
                request.error = error
        except BaseException:  # an interrupt belongs to this thread, and the followers must not wait for ever
            for request in group:
                request.error = StoreError("the write was interrupted, so its outcome is unknown: do it again")
            raise
        finally:
            self._queue.finish(group)

    def _take_group(self, group: list[_Request[Any]]) -> None:
        """Take the pending requests. If the last group had followers, wait for them to come back first."""
        if self._last_group > 1:
            self._queue.wait_for_followers(self._last_group)
        self._queue.take_group(group, MAX_GROUP)
        self._last_group = len(group)

    def _run_single(self, request: _Request[Any]) -> None:
        connection = self._connection
        self._use_level(request.durable)
        if request.atomic:
            request.attempt(connection)
            if isinstance(request.error, sqlite3.OperationalError) and is_busy(request.error):
                self._busy_retry.run(lambda: self._run_atomic(request), request.timeout)
            return
        self._busy_retry.run(lambda: connection.execute("BEGIN IMMEDIATE"), request.timeout)
        try:
            request.attempt(connection)
            if request.error is None:
                connection.execute("COMMIT")
        finally:
            self._roll_back_if_open()

    def _run_atomic(self, request: _Request[Any]) -> None:
        request.attempt(self._connection)
        if request.error is not None:
            raise request.error  # so that BUSY is retried

    def _run_group(self, group: list[_Request[Any]]) -> None:
        """Run the requests one after the other in one transaction."""
        connection = self._connection
        self._use_level(any(request.durable for request in group))
        self._busy_retry.run(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            self._queue.begin(group)
            for request in group:
                self._run_member(request)
            connection.execute("COMMIT")
        finally:
            self._roll_back_if_open()

    def _run_unflushed(self, group: list[_Request[Any]]) -> None:
        """Refuse what must be on disk, unless the flush can be repeated now, and run the rest."""
        allowed = group
        try:
            if any(request.durable for request in group):
                self._require_flushed()
        except StoreError as error:
            allowed = [request for request in group if not request.durable]
            for request in group:
                request.error = error if request.durable else None
        if allowed:
            self._run_group(allowed)

    def _run_combined(self, group: list[_Request[Any]]) -> bool:
        """Run the whole group with one statement, which is a transaction by itself. Return False if impossible."""
        works = _combinable(group)
        if len(works) < len(group) or len(works) > works[0].max_combined:
            return False
        self._use_level(any(request.durable for request in group))
        self._queue.begin(group)
        works = _combinable(group)  # without those that have withdrawn
        try:
            results = works[0].run_combined(self._connection, works)
        except sqlite3.IntegrityError:
            return False  # one row is invalid: running each request by itself shows which
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            self._queue.postpone(group)
            return False
        for request, result in zip(group, results, strict=True):
            request.result = result
        return True

    def _run_member(self, request: _Request[Any]) -> None:
        """Run one request of a group. If it fails, only its own changes are rolled back."""
        connection = self._connection
        if not request.atomic:
            connection.execute("SAVEPOINT member")
        request.attempt(connection)
        if not connection.in_transaction:  # a full disk has rolled back the whole transaction
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
        self.changes_since_fold += changes
        if wakes:
            self._on_commit()
        is_flushed = self._level == FLUSHED
        if is_flushed and not self._files.check():
            raise self.file_replaced()
        if self._checkpointer.count(changes, is_flushed):
            self._checkpoint_if_possible()


def _combinable(group: list[_Request[Any]]) -> list[Combinable[Any]]:
    return [request.work for request in group if isinstance(request.work, Combinable)]


def _run_once(action: Callable[[], T]) -> T:
    return action()
