"""What a store does: a few small protocols, one method per transition or question.

Each protocol is implemented by an object that is given the database, once for SQLite and once for PostgreSQL. What
only a file has (checkpoints, pages, lock files) is not here: see `Store.file`.

Delays and leases are microseconds. `conn` is the caller's own connection, to take part in its transaction.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from ..failure import Failure
from ..model.diagnosis import Examination, Vitals
from ..model.job import Sweep

if TYPE_CHECKING:
    from ..clock import Clock
    from ..model.blocker import Blockers, JobDetails, WaitingJobs
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
    )
    from ..model.pruning import Doomed, DoomedChain, EndedJob, OldRows, Pruned, Pruner, PruneRun, Rest, Weight
    from ..model.schedule import DueOccurrences, NewSchedule, ScheduleRecord
    from ..model.stats import (
        CountsRecord,
        EventRecord,
        FailureRecord,
        MinuteRecord,
        StorageRecord,
        Totals,
        WaitingJob,
    )
    from ..model.worker import WorkerRecord, WorkerStatus
    from ..model.workflow import BatchRecord, Deletion
    from ..retention import Expiry, Mark


class Pages(Struct, frozen=True):
    """How the file is filled."""

    count: int
    free: int
    size: int
    auto_vacuum: int  # 0: none, 1: full, 2: incremental
    file_bytes: int  # as it is on the disk

    @property
    def held_bytes(self) -> int:
        """Bytes of the file behind its last page: they are cut off when the write-ahead log can be emptied."""
        return max(0, self.file_bytes - self.count * self.size)

    @property
    def used_bytes(self) -> int:
        return (self.count - self.free) * self.size

    @property
    def free_bytes(self) -> int:
        return self.free * self.size


class StoreFile(Protocol):
    # --- space ---

    def checkpoint(self) -> tuple[int, int]:
        """Copy the write-ahead log into the database. Returns its pages, and how many of them were copied."""
        ...

    def pages(self) -> Pages: ...

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        """Give free pages back to the system, at most so many, for about so long. Returns how many, and the seconds
        with the write lock."""
        ...

    def vacuum(self, tick: Callable[[], None]) -> None:
        """Rewrite the whole file. tick: called now and then; what it raises aborts it, and nothing has changed."""
        ...

    # --- checks ---

    def examine(self, deep: bool = False) -> Examination:
        """Look for problems; nothing is written. deep: look at all rows, however long it takes."""
        ...

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        """What a health check needs: what waits longest, how attempts ended since a minute, and the live workers."""
        ...

    def left_behind(self) -> int:
        """Count deleted jobs with orphaned rows, as far as a look at the oldest and newest rows tells."""
        ...

    # --- repairs ---

    def note(self, event: str, actor: str, detail: dict[str, Any]) -> None:
        """Log what an operator did to the database itself."""
        ...

    def restore_schema(self) -> list[str]:
        """Create missing indexes and triggers; returns their names. What was changed is left as it is."""
        ...

    def delete_leftovers(self) -> int:
        """Delete some orphaned rows of deleted jobs. Returns how many, 0 if none is left."""
        ...

    def mend_ends(self) -> int:
        """Set `finished_at` to now where it is missing or lies ahead, of some jobs. Returns how many, 0 if none is
        left."""
        ...

    def recount(self) -> int:
        """Correct wrong counts; returns how many."""
        ...

    def note_missed_endings(self) -> int:
        """Note again what has ended and is still waited for, so that a sweep of endings sees it. Returns how many."""
        ...


OperatorAction = Literal[
    "requeue", "cancel", "run_now", "complete", "fail_outside", "delete", "purge", "pause", "resume"
]
ScheduleAction = Literal["remove", "pause", "resume"]


class JobStore(Protocol):
    # --- into the queue: nothing is promised before these return ---

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> builtins.list[int]:
        """Insert one job per payload, all alike, in one transaction. Returns their ids in order."""
        ...

    # --- ready -> running ---

    def claim_messages(self, queue: str, limit: int, lease: int, worker: str) -> builtins.list[Claimed]: ...

    def settle_and_claim(self, settlements: Sequence[Settlement], wants: Sequence[ClaimRequest]) -> SettledAndClaimed:
        """Settle what has ended and claim what comes next, in one transaction."""
        ...

    # --- out of running ---

    def settle(self, settlement: Settlement, conn: Any = None) -> bool:
        """Settle one attempt, in the caller's transaction if there is one. False: the lease was lost, nothing
        happened."""
        ...

    def renew(self, reports: Sequence[LeaseRenewal], lease: int | None, conn: Any = None) -> set[int]:
        """Store when attempts began and how far they are, with a new lease. Returns the ids of those still held.

        lease: None changes nothing, and only tells which are still held; in a transaction they are until its end.
        """
        ...

    def sweep(self, what: Sweep = Sweep.ALL) -> int:
        """Move what is due, expired, orphaned or unblocked. Claims do this as well. Returns how many jobs."""
        ...

    # --- by an operator ---

    def operate(
        self,
        action: OperatorAction,
        criteria: Criteria,
        actor: str,
        *,
        delay: int = 0,
        attempts: int = 1,
        reason: str = "",
        result: str | None = None,
        failure: Failure = ...,
    ) -> int:
        """Do it to every job that fits and is in a state that allows it; pause and resume: to the queues of the
        criteria. Returns how many."""
        ...

    # --- reading ---

    def get(self, job_id: int) -> JobRecord | None: ...

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> Listed:
        """Newest first, at most `limit`, on the cursor's side. See Listed for a search that ended early."""
        ...

    def count(self, criteria: Criteria, deletable: bool = False, most: int | None = None) -> Counted:
        """Count the jobs that fit. deletable: only those that no other job waits for, in chains that fit as a whole.

        most: stop after so many jobs were looked at, or a few more. See Counted.
        """
        ...

    def history(self, job_id: int) -> builtins.list[TimelineEntry]: ...

    def traceback(self, fingerprint: str) -> str | None: ...

    # --- large payloads ---

    def fetch(self, name: str) -> bytes:
        """Read a large payload. Raises BlobMissing or BlobDamaged; BlobError where that cannot be told now."""
        ...

    def keep_apart(self, settlement: Settlement) -> Settlement:
        """Put a large result, or the large payload of a continuation, into the blob store, before it is settled."""
        ...


class WorkerStore(Protocol):
    def enlist(self, worker: WorkerRecord, retention: str | None = None) -> None:
        """Register a worker. From now on, and while this process lives, others know that it does.

        retention: its policy, as JSON, which is in force from now on.
        """
        ...

    def retire(self, worker_id: str) -> None:
        """The worker has stopped. What it still holds goes back, uncounted."""
        ...

    def heartbeat(self, worker_id: str) -> builtins.list[Lease] | None:
        """Returns what runs in its name; None where others have taken it for dead: it needs a new id."""
        ...

    def list(self) -> builtins.list[WorkerStatus]:
        """Workers that are present, and the last ones that were. The newest first."""
        ...


class WorkflowStore(Protocol):
    def chain(
        self, chain_id: int, *, last_only: bool = False, near: int | None = None, each_side: int = 0
    ) -> builtins.list[JobRecord]:
        """The jobs of a chain, in order. near: only those around this index, the first and the last."""
        ...

    def blockers(self, job_id: int, limit: int = -1, *, urgent_first: bool = False) -> Blockers:
        """The chains that a job waits for, or waited for: in their order, or first those that need an operator."""
        ...

    def waiting_for(self, chain_id: int, limit: int, *, ended: bool = False) -> WaitingJobs:
        """Unfinished jobs that wait for this chain, or waited for it. ended: those that have ended, too."""
        ...

    def delete_chain(
        self, chain_id: int, cascade: bool, actor: str, reason: str = "", *, dry_run: bool = False
    ) -> Deletion:
        """Delete the whole chain, unless others wait for it; with `cascade` those, too. All or nothing."""
        ...

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int: ...

    def close_batch(self, batch_id: int, conn: Any = None, *, cancel: str | None = None) -> None:
        """No more members come from outside. cancel: a reason; its members are cancelled and no callback runs."""
        ...

    def batch(self, batch_id: int | None = None, *, callback: int | None = None) -> BatchRecord | None:
        """A batch by its id, or by the job that was enqueued as its callback."""
        ...

    def job_details(self, job_id: int) -> JobDetails | None:
        """Why a job is where it is. Reads a bounded part."""
        ...

    def ahead_of(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        """How many ready jobs of these tasks come before it, for a worker that serves these queues in this order;
        of a message, how many messages of its queue."""
        ...


class ScheduleStore(Protocol):
    def put(self, schedule: NewSchedule, actor: str, reason: str = "") -> bool:
        """Add it, or change the one of that name. A new expression counts from now. False if it is the same."""
        ...

    def change(self, action: ScheduleAction, name: str, actor: str, reason: str = "") -> bool:
        """Resumed, it counts from now: what was missed during the pause does not fire. False: nothing changed."""
        ...

    def list(self, after: str = "", limit: int = 1000, name: str | None = None) -> builtins.list[ScheduleRecord]:
        """By name, those after one; or the one of this name."""
        ...

    def due(
        self, tasks: Sequence[str], declared: Sequence[str], now: int, after: str, limit: int
    ) -> tuple[builtins.list[ScheduleRecord], int | None]:
        """By name, those of these tasks with something to do, and the next occurrence of such after now. Of those
        from code, only the ones that are declared."""
        ...

    def fire(self, schedule: ScheduleRecord, plan: DueOccurrences) -> builtins.list[int]:
        """Enqueue the occurrences that have not fired yet, and move on. Nothing if the schedule has changed since."""
        ...


class StatisticsStore(Protocol):
    def counts(self, queue: str | None = None) -> CountsRecord:
        """How many jobs there are of each state, by queue and task; and which queues are paused."""
        ...

    def oldest(
        self, limit: int, statuses: Collection[str] = ..., queue: str | None = None
    ) -> builtins.list[WaitingJob]:
        """What runs, could run or is blocked for longest, of each queue and task. limit: of each state; -1 is all."""
        ...

    def minutes(
        self, since_minute: int, step: int = 1, task: str | None = None, queue: str | None = None
    ) -> builtins.list[MinuteRecord]:
        """What happened since a minute, summed up over steps of so many minutes: see fold.py."""
        ...

    def failures(
        self, since_minute: int | None, limit: int, task: str | None = None, queue: str | None = None
    ) -> builtins.list[FailureRecord]:
        """Failures since then, or ever, the most frequent first; each counted for that time."""
        ...

    def totals(self) -> Totals:
        """Sums since the beginning, which only grow."""
        ...

    def events(
        self, limit: int, *, after: int | None = None, before: int | None = None, job_id: int | None = None
    ) -> builtins.list[EventRecord]:
        """The log in order, of all or of one job: from after an event on; or the end of it, before an event."""
        ...

    def fold(self) -> int:
        """Add a part of the log to the statistics, or delete events of deleted jobs. Returns how many events, 0 if
        there is nothing left to do."""
        ...

    def size(self) -> StorageRecord: ...


class PruningStore(Protocol):
    """Methods that delete take the token of a run, and the sum of what the run has deleted before. They return None
    where another run has taken over, and then nothing was deleted."""

    def begin(self, kind: Pruner, actor: str, note: dict[str, Any]) -> str | None:
        """A token for the run; None where another is running. An operator takes it from a worker."""
        ...

    def end(self, token: str, interrupted: bool) -> None:
        """Leaves the event, if the run has deleted something, or an operator asked for it."""
        ...

    def state(self) -> PruneRun:
        """Who prunes now, what the last run did, and the policy of the last worker that had one."""
        ...

    def ended_after(self, status: str, after: Mark, until: Mark, limit: int) -> builtins.list[EndedJob]:
        """Jobs that ended in one way, in the order in which they did, from one mark to another."""
        ...

    def doomed_chains(
        self, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()
    ) -> builtins.list[DoomedChain]:
        """Of these chains, those that may go. gone: jobs that are to be taken for deleted."""
        ...

    def export(self, ids: Collection[int]) -> Iterator[bytes]:
        """Each job as a line of JSON, with its attempts, events and blockers."""
        ...

    def weigh(self, ids: Collection[int]) -> builtins.list[Weight]:
        """What would go with each of these jobs, for a dry run."""
        ...

    def weigh_rest(self, rest: Rest) -> dict[str, int]:
        """What would go besides jobs, for a dry run."""
        ...

    def delete(self, token: str, doomed: Doomed, counts: dict[str, int]) -> Pruned | None:
        """Delete these jobs or chains, or a part of one, unless they have changed since they were found."""
        ...

    def delete_old(self, token: str | None, rows: OldRows, counts: dict[str, int]) -> Pruned | None:
        """Delete some rows that belong to no job: minutes, failures, tracebacks, audit, batches or blobs."""
        ...


class Store(Protocol):
    @property
    def actor(self) -> str:
        """This process in the history. Another after a fork."""
        ...

    @property
    def place(self) -> str:
        """Names the database: the same for all who use its tables."""
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
    def pruning(self) -> PruningStore: ...

    @property
    def file(self) -> StoreFile:
        """What only a file has."""
        ...

    # --- transactions ---

    def transaction(self, *, completes: bool = False) -> AbstractContextManager[Any]:
        """A write transaction for the caller. completes: a job is to succeed with it; it has a `result`, which may be
        changed in it."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """In the block, all that this thread reads is of one moment."""
        ...

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """In the block, this thread's writes wait no longer than this for other writers, and raise StoreBusy."""
        ...

    def held_for(self) -> float:
        """Seconds for which a thread of this process has had a transaction open, so that no other can write; or 0."""
        ...

    def refuse_waiting_for_itself(self) -> None:
        """Raise TransactionError if this thread, or coroutine, has a transaction open: before another thread is to
        write for it, and would wait for the end of that."""
        ...

    # --- waiting ---

    def commits_seen(self) -> int:
        """Take this before looking, and pass it to `wait_for_commit` if there was nothing."""
        ...

    def wait_for_commit(self, seen: int, timeout: float, *, until_due: bool = False) -> int:
        """Wait until anyone commits, or the time is over; until_due: or something is due, or a lease ends. It may
        return early, so look again. Returns a number that grows when a worker may have died."""
        ...

    def wake_waiting(self) -> None:
        """Let `wait_for_commit` return in the threads of this process."""
        ...

    def close(self) -> None: ...
