"""The interface of a store: a few small protocols, with one method per state transition or query.

Each protocol is implemented by an object that is given the database, once per database system. Only SQLite has what
`Store.file` offers: pages, checkpoints, checks and repairs of the file.

Delays and leases are microseconds. `conn` is the caller's own connection; the method then takes part in its
transaction.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from ..failure import Failure
from ..model.diagnosis import Diagnosis, HealthMetrics
from ..model.job import Sweep

if TYPE_CHECKING:
    from ..clock import Clock
    from ..model.job import (
        Claimed,
        ClaimRequest,
        Counted,
        Criteria,
        Cursor,
        Inserted,
        JobRecord,
        Lease,
        LeaseRenewal,
        Listed,
        NewJob,
        SettledAndClaimed,
        Settlement,
        TimelineEntry,
        UnreportedFailures,
    )
    from ..model.schedule import DueOccurrences, NewSchedule, ScheduleRecord
    from ..model.stats import Counts, EventRecord, FailureRecord, MinuteRecord, Storage, Totals, WaitingJob
    from ..model.worker import WorkerRecord, WorkerStatus
    from ..model.workflow import BatchRecord, BatchState, Blockers, Deletion, JobDetails, WaitingJobs
    from .move import Side
    from .operate import BulkOperations
    from .prune import Prune
    from .wake_up import Waiters


StatementKind = Literal["read", "write", "setting"]
"""A write is also the end of a transaction. A setting is what changes nothing by itself, such as a savepoint."""


class StatementObserver(Protocol):
    """Sees what a store does with the database, for tests. What it raises is raised in place of the statement."""

    def before_statement(self, connection: Any, statement: str, kind: StatementKind) -> None: ...

    def after_commit(self, connection: Any) -> None: ...


class Pages(Struct, frozen=True):
    """The pages of the database file."""

    count: int
    free: int
    size: int
    auto_vacuum: int  # 0: none, 1: full, 2: incremental
    file_bytes: int  # the size of the file on disk

    @property
    def held_bytes(self) -> int:
        """Bytes of the file behind its last page. They are truncated when the write-ahead log can be reset."""
        return max(0, self.file_bytes - self.count * self.size)

    @property
    def used_bytes(self) -> int:
        return (self.count - self.free) * self.size

    @property
    def free_bytes(self) -> int:
        return self.free * self.size


class StoreFile(Protocol):
    """The database file: its space, its checks, and its repairs."""

    # --- space ---

    def used_bytes(self) -> int:
        """Return how much of the database is in use: what `Retention(max_bytes=…)` bounds."""
        ...

    def checkpoint(self) -> tuple[int, int]:
        """Copy the write-ahead log into the database. Returns the pages of the log, and how many were copied."""
        ...

    def pages(self) -> Pages: ...

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        """Return free pages to the file system: at most `pages`, for about `seconds`.

        Returns how many pages, and for how many seconds the write lock was held.
        """
        ...

    shrinks_in_steps: bool
    """Whether `shrink` returns space. If not, `vacuum` does, also without full."""

    def vacuum(self, tick: Callable[[], None], full: bool = True) -> None:
        """Rewrite the whole file. tick: called regularly; an exception from it aborts the rewrite without changes.

        full: on PostgreSQL, whether the tables are rewritten, which blocks all who use them.
        """
        ...

    # --- checks ---

    def diagnose(self, deep: bool = False) -> Diagnosis:
        """Read what the doctor checks; writes nothing. deep: read all rows, however long it takes."""
        ...

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics:
        """Return the longest-waiting job, how attempts ended since a minute, and the workers."""
        ...

    def count_orphaned(self) -> int:
        """Count deleted jobs with orphaned rows, among the oldest and newest rows of each table."""
        ...

    # --- repairs ---

    def log_event(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        """Log an operator's action on the database itself."""
        ...

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers. Returns their names. Changed ones are left as they are."""
        ...

    def delete_orphaned_rows(self) -> int:
        """Delete some orphaned rows of deleted jobs. Returns how many, 0 if none is left."""
        ...

    def repair_finish_times(self) -> int:
        """Set `finished_at` to now where it is missing or lies ahead, of some jobs. Returns how many, 0 if none is
        left."""
        ...

    def recount(self) -> int:
        """Correct wrong counts. Returns how many."""
        ...

    def insert_missed_endings(self) -> int:
        """Record finished jobs that others still wait for, so that a sweep of endings releases those. Returns how
        many."""
        ...


class TransactionOwner(AbstractContextManager[Any], Protocol):
    """A coroutine. A transaction that a thread opens in a copy of its context, inside `with`, belongs to it.

    Plain writes of other coroutines of its event loop are then refused: waiting, they would block the loop, which the
    transaction needs to go on.
    """

    def leave(self) -> None:
        """Called before a thread ends the transaction. From then on, others wait for it."""
        ...


OperatorAction = Literal[
    "requeue", "cancel", "run_now", "complete", "fail_outside", "delete", "purge", "pause", "resume"
]
ScheduleAction = Literal["remove", "pause", "resume"]


class JobStore(Protocol):
    """Jobs and messages, and their transitions."""

    # --- enqueue: durable when these return ---

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> builtins.list[int]:
        """Insert one job per payload, equal in everything else, in one transaction. Returns their ids in order."""
        ...

    # --- ready -> running ---

    def claim_messages(self, queue: str, limit: int, lease: int, worker: str) -> builtins.list[Claimed]: ...

    def settle_and_claim(self, settlements: Sequence[Settlement], wants: Sequence[ClaimRequest]) -> SettledAndClaimed:
        """Settle finished attempts and claim the next jobs, in one transaction."""
        ...

    # --- out of running ---

    def settle(self, settlement: Settlement, conn: Any = None) -> bool:
        """Settle one attempt. Returns False if its lease was lost; then nothing has changed."""
        ...

    def renew(self, reports: Sequence[LeaseRenewal], lease: int | None, conn: Any = None) -> set[int]:
        """Store start and progress of attempts, and renew their leases. Returns the ids of those still held.

        lease: None renews nothing and only tells which are still held. In a transaction, they then stay held until it
            ends.
        """
        ...

    def save_state(self, lease: Lease, state: str) -> bool:
        """Store what an attempt saves for the next one, durably. Returns False if its lease was lost."""
        ...

    def sweep(self, what: Sweep = Sweep.ALL, limit: int | None = None) -> int:
        """Move jobs that are due, or unblocked, or whose lease has expired. Claims do so too. Returns how many.

        limit: stop when at least this many of a kind were moved, so that the caller can do other work in between.
        """
        ...

    # --- by an operator ---

    def operate(
        self,
        action: OperatorAction,
        criteria: Criteria,
        actor: str,
        *,
        delay: int = 0,
        attempts: int | None = None,
        reason: str = "",
        result: str | None = None,
        failure: Failure = ...,
    ) -> int:
        """Apply the action to every matching job in a state that allows it. Returns how many were changed.

        attempts: of a requeued job; None: as many as it had at first.
        pause, resume: apply to the queues of the criteria.
        """
        ...

    # --- reading ---

    def get(self, job_id: int) -> JobRecord | None: ...

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> Listed:
        """Return at most `limit` matching jobs, newest first, from the cursor on. See Listed."""
        ...

    def count(self, criteria: Criteria, deletable: bool = False, max_scanned: int | None = None) -> Counted:
        """Count the matching jobs.

        deletable: only jobs that no other job waits for, and only chains of which all jobs match.
        max_scanned: stop after about this many jobs were scanned. See Counted.
        """
        ...

    def history(self, job_id: int) -> builtins.list[TimelineEntry]: ...

    def traceback(self, fingerprint: str) -> str | None: ...

    # --- hooks that are told about failures ---

    def unreported_failures(self, hook: str, after: int) -> UnreportedFailures:
        """Read jobs that have failed for good, after the cursor of the hook and after this event. Bounded."""
        ...

    def report_failures(self, hook: str, found: UnreportedFailures, jobs: Sequence[NewJob]) -> builtins.list[int]:
        """Enqueue the jobs that tell the hook, and move its cursor, in one transaction. Returns their ids.

        Returns none if another process has moved the cursor.
        """
        ...

    # --- large payloads ---

    def read_blob(self, name: str) -> bytes:
        """Read a large payload or result. Raises BlobMissing, BlobDamaged, or another BlobError."""
        ...

    def offload(self, settlement: Settlement) -> Settlement:
        """Put a large result, or the large payload of a continuation, into the blob store before settling."""
        ...


class WorkerStore(Protocol):
    """Workers and their heartbeats."""

    def register(self, worker: WorkerRecord, retention: str | None = None) -> None:
        """Register a worker. Other processes see it as alive while this process lives.

        retention: its retention policy as JSON, which is in force from now on.
        """
        ...

    def unregister(self, worker_id: str) -> None:
        """Record that the worker has stopped. Jobs that it still holds are returned; the attempt does not count."""
        ...

    def heartbeat(self, worker_id: str, memory: int | None = None) -> builtins.list[Lease] | None:
        """Record a heartbeat. Returns the leases that the worker holds, or None if another process declared it dead.

        Then the worker needs a new id. memory: the resident bytes of its process, if they are known.
        """
        ...

    def request_stop(self, worker_id: str, actor: str, reason: str = "") -> bool | None:
        """Ask a worker to stop, durably. Returns False if it has ended or was asked before, None if it is unknown."""
        ...

    def is_asked_to_stop(self, worker_id: str) -> bool: ...

    def list(self) -> builtins.list[WorkerStatus]:
        """Return the running workers and the last ones that ended, newest first."""
        ...


class WorkflowStore(Protocol):
    """Chains, blockers and batches, and why a job waits."""

    def chain(
        self, chain_id: int, *, last_only: bool = False, near: int | None = None, each_side: int = 0
    ) -> builtins.list[JobRecord]:
        """Return the jobs of a chain, in order. near: only those around this index, the first and the last."""
        ...

    def blockers(self, job_id: int, limit: int = -1, *, urgent_first: bool = False) -> Blockers:
        """Return the chains that a job waits for or waited for, in order, or those that need an operator first."""
        ...

    def waiting_for(self, chain_id: int, limit: int, *, include_finished: bool = False) -> WaitingJobs:
        """Return unfinished jobs that wait for this chain, or waited for it. include_finished: finished ones, too."""
        ...

    def delete_chain(
        self, chain_id: int, cascade: bool, actor: str, reason: str = "", *, dry_run: bool = False
    ) -> Deletion:
        """Delete the whole chain, unless jobs wait for it. cascade: delete those, too. All or nothing."""
        ...

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int:
        """Add an open batch, and begin its block.

        If this process dies before `close_batch` ends the block, a sweep of workers seals the batch as abandoned.
        """
        ...

    def close_batch(
        self,
        batch_id: int,
        conn: Any = None,
        *,
        abandoned: str | None = None,
        cancel: bool = False,
        actor: str | None = None,
        reason: str = "",
        ends_block: bool = False,
    ) -> bool:
        """Stop accepting members. Only unfinished members may then add more. Returns False if it was sealed already.

        ends_block: the block that `add_batch` began in this process is over, even if this raises.
        abandoned: why its block did not end; `on_success` will not run.
        actor, reason: of an operator, for the event log.
        cancel: cancel the members, and run no callback.
        """
        ...

    def batches(
        self, state: BatchState | None, limit: int, cursor: Cursor | None = None, *, counted: bool = True
    ) -> builtins.list[BatchRecord]:
        """Return batches, newest first. counted: with their members, counted up to a bound."""
        ...

    def batch(
        self, batch_id: int | None = None, *, callback: int | None = None, counted: bool = True
    ) -> BatchRecord | None:
        """Return a batch by its id, or by the job that was enqueued as its callback. counted: with its members."""
        ...

    def job_details(self, job_id: int) -> JobDetails | None:
        """Read what explains the state of a job, in bounded time."""
        ...

    def count_ahead(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        """Count the ready jobs that a worker with these queues, in this order, and these tasks would run first.

        For a message, count the messages of its queue that are ahead of it.
        """
        ...


class ScheduleStore(Protocol):
    """Cron schedules."""

    def run_now(self, name: str, actor: str, reason: str = "") -> Inserted | None:
        """Enqueue a job of the schedule now, paused or not. Its occurrences stay as they are.

        Returns None if there is no such schedule.
        """
        ...

    def put(self, schedule: NewSchedule, actor: str, reason: str = "") -> bool:
        """Add a schedule, or change the one of that name. A new expression counts from now.

        Returns False if nothing changed.
        """
        ...

    def change(self, action: ScheduleAction, name: str, actor: str, reason: str = "") -> bool:
        """Remove, pause or resume a schedule. Occurrences missed during a pause do not fire.

        Returns False if nothing changed.
        """
        ...

    def list(self, after: str = "", limit: int = 1000, name: str | None = None) -> builtins.list[ScheduleRecord]:
        """Return the schedules after this name, by name; or the one of this name."""
        ...

    def due(
        self, tasks: Sequence[str], declared: Sequence[str], now: int, after: str, limit: int
    ) -> tuple[builtins.list[ScheduleRecord], int | None]:
        """Return the due schedules of these tasks, by name, and the time of the next occurrence after now.

        declared: the names of schedules in this program's code. Others that come from code are ignored.
        """
        ...

    def runs(self, name: str, limit: int) -> builtins.list[tuple[int, int | None]]:
        """Return the last occurrences that fired, newest first: their times, and the ids of their jobs, if any."""
        ...

    def fire(self, due: Sequence[tuple[ScheduleRecord, DueOccurrences]]) -> builtins.list[int]:
        """Enqueue the occurrences that have not fired yet, and advance the schedules, in one transaction.

        Returns the ids of the jobs. Skips a schedule that has changed since it was read (optimistic lock).
        """
        ...


class StatisticsStore(Protocol):
    def counts(self, queue: str | None = None) -> Counts:
        """How many jobs there are of each state, by queue and task; and which queues are paused."""
        ...

    def oldest(
        self, limit: int, statuses: Collection[str] = ..., queue: str | None = None
    ) -> builtins.list[WaitingJob]:
        """Return the oldest ready, running and blocked job of each queue and task. limit: per status; -1 for all."""
        ...

    def minutes(
        self,
        since_minute: int,
        step: int = 1,
        task: str | None = None,
        queue: str | None = None,
        merged: bool = False,
        timed: bool | None = None,
    ) -> builtins.list[MinuteRecord]:
        """Return the sums since a minute, in steps of `step` minutes: see fold.py.

        merged: add up all queues and tasks. Their names are '' and None then.
        timed: only waiting and running times (True), or all but these (False), which are far fewer rows.
        """
        ...

    def failures(
        self,
        since_minute: int | None,
        limit: int,
        task: str | None = None,
        queue: str | None = None,
        trend: tuple[int, int] | None = None,
    ) -> builtins.list[FailureRecord]:
        """Return failures since a minute, or all, with their counts in that period, the most frequent first.

        trend: a minute and a step. Also count each failure since that minute, in steps of this many minutes.
        """
        ...

    def totals(self) -> Totals:
        """Return the totals since the database was created. They only grow."""
        ...

    def events(
        self, limit: int, *, after: int | None = None, before: int | None = None, job_id: int | None = None
    ) -> builtins.list[EventRecord]:
        """Return events in order, of all jobs or of one: the first after an event, or the last before one."""
        ...

    def fold(self) -> int:
        """Fold a part of the log into the statistics, or delete events of deleted jobs.

        Returns how many events, 0 if nothing is left to do.
        """
        ...

    def size(self) -> Storage: ...


class Store(Protocol):
    """A database with Holdfast's tables."""

    @property
    def actor(self) -> str:
        """The name of this process in the event log. It changes after a fork."""
        ...

    @property
    def location(self) -> str:
        """Identifies the database and its tables, the same in every process."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def jobs(self) -> JobStore: ...

    @property
    def workers(self) -> WorkerStore: ...

    @property
    def workflows(self) -> WorkflowStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def statistics(self) -> StatisticsStore: ...

    @property
    def operations(self) -> BulkOperations:
        """Bulk operations. One class serves all databases, given `Operate.apply` and `Listing.ids_after`."""
        ...

    @property
    def pruning(self) -> Prune:
        """Pruning. One class serves all databases: it needs only statements."""
        ...

    @property
    def file(self) -> StoreFile:
        """The database file, on SQLite."""
        ...

    @property
    def side(self) -> Side:
        """The database as the source or the destination of a move."""
        ...

    # --- transactions ---

    def transaction(self, *, completes: bool = False, conn: Any = None) -> AbstractContextManager[Any]:
        """Open a write transaction for the caller.

        conn: open it on this connection of the caller, which is committed at the end of the block.
        completes: the transaction settles a job as succeeded. It then has a `result` that the caller may set.
        """
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """In the block, all reads of this thread see the same snapshot."""
        ...

    def busy_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """In the block, this thread's writes wait at most this long for other writers, then raise StoreBusy."""
        ...

    def wait_as_worker(self) -> None:
        """Wait longer for other writers from now on, as a process that runs jobs does."""
        ...

    def guard(self, conn: Any) -> bool:
        """Make a connection of the caller safe to use beside the store. Returns False if it is to another one."""
        ...

    def transaction_age(self) -> float:
        """Return for how many seconds a thread of this process has held a write transaction, or 0."""
        ...

    def require_no_transaction(self) -> TransactionOwner:
        """Raise TransactionError if this thread or coroutine has a write transaction open.

        Called before another thread writes on its behalf, which would deadlock. Returns the caller, who may own the
        transaction that the other thread opens.
        """
        ...

    # --- waiting ---

    def commits_seen(self) -> int:
        """Return a counter to read before a query. If the query finds nothing, pass it to `wait_for_commit`."""
        ...

    def wait_for_commit(self, seen: int, timeout: float, *, until_due: bool = False) -> int:
        """Wait until any process commits, or the timeout. It may return early. until_due: or a job is due, or a lease
        ends.

        Returns a number that grows when a worker may have died.
        """
        ...

    def wake_waiters(self) -> None:
        """Make `wait_for_commit` return in all threads of this process."""
        ...

    @property
    def waiters(self) -> Waiters:
        """The threads and coroutines of this process that wait."""
        ...

    def close(self) -> None: ...
