"""What a store does: one method per transition. PostgreSQL and SQLite differ only behind this."""

from __future__ import annotations  # so that they cost nothing at import

import builtins
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from ..failure import Failure
from ..graph import BatchRecord, BlockerRecord, Deletion
from ..model import (
    Claimed,
    Criteria,
    Cursor,
    Exchanged,
    Inserted,
    JobRecord,
    Lease,
    NewJob,
    QueueOverview,
    QueueStats,
    Report,
    Settlement,
    TimelineEntry,
    Wanted,
    WorkerRecord,
)
from ..observations import Count, EventRecord, FailureRecord, HistogramRecord, Slice, StorageRecord, WaitingJob
from ..rollup import Sample
from ..schedule import NewSchedule, Plan, ScheduleRecord
from ..tally import Tallies
from .apart import Apart
from .circumstances import Blocker, Blockers, ChainLink, LiveWorker, Removal, Situation, Taken
from .examination import Examined
from .keeping import Keeping

OperatorAction = Literal["requeue", "cancel", "run_now", "complete", "fail_outside", "delete", "purge"]


class Store(Apart, Examined, Keeping, Protocol):
    """Delays and leases are microseconds. `conn` is the user's own connection, to take part in its transaction."""

    @property
    def actor(self) -> str:
        """Who this process is in the history. Another after a fork."""
        ...

    @property
    def place(self) -> str:
        """Names the database: the same for all who use its tables."""
        ...

    # --- into the queue: nothing is promised before these return ---

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        """One job per payload, all alike, in one transaction. Returns their ids in order."""
        ...

    # --- ready -> running ---

    def claim_messages(self, queue: str, limit: int, lease: int, worker: str) -> list[Claimed]: ...

    def claim_tasks(
        self, queues: Sequence[str] | None, tasks: Sequence[str], limit: int, lease: int, worker: str
    ) -> builtins.list[Claimed]:
        """Only tasks that are named are taken, from the queues in this order. `queues=None` means all of them."""
        ...

    def claim_one(self, job_id: int, lease: int, worker: str) -> Claimed | None:
        """This job of a task, if it is ready and its queue not paused."""
        ...

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Wanted], samples: Sequence[Sample | None] = ()
    ) -> Exchanged:
        """Settle what has ended and claim what comes next, in one transaction.

        samples: of each settlement, what is to be counted if it was not lost.
        """
        ...

    # --- out of running: False where the lease was lost, and then nothing happened ---

    def holds(self, lease: Lease, conn: Any) -> bool:
        """Whether it is held still, as the transaction sees it; and then it is until that ends."""
        ...

    def settle(self, settlement: Settlement, conn: Any, sample: Sample | None = None) -> bool:
        """Within a transaction, together with what else it does."""
        ...

    def succeed(self, lease: Lease, result: str | None = None) -> bool: ...

    def retry(self, lease: Lease, delay: int, failure: Failure) -> bool:
        """Try again after the delay; `failed` if attempts are spent."""
        ...

    def fail(self, lease: Lease, failure: Failure) -> bool: ...

    def stop(self, lease: Lease, reason: str) -> bool:
        """`cancelled`, by the attempt itself."""
        ...

    def snooze(self, lease: Lease, delay: int) -> bool:
        """Come back later; the attempt does not count."""
        ...

    def release(self, lease: Lease, delay: int) -> bool:
        """Give it back; the attempt counts, and after the last one it is `failed`."""
        ...

    def extend(self, lease: Lease, duration: int) -> bool: ...

    def report(self, reports: Sequence[Report], lease: int) -> set[int]:
        """When they began and how far they are, with a new lease. Returns the ids of those that are held still."""
        ...

    def held(self, leases: Sequence[Lease]) -> set[int]:
        """The ids of those that are held still."""
        ...

    # --- workers ---

    def enlist(self, worker: WorkerRecord) -> None:
        """From now on, and for as long as this process lives, others know that the worker does."""
        ...

    def retire(self, worker_id: str) -> None:
        """The worker has stopped. Should it hold something still, that goes back uncounted."""
        ...

    def heartbeat(self, worker_id: str) -> bool:
        """False where others have taken this worker for dead: it needs a new name."""
        ...

    def workers(self) -> builtins.list[WorkerRecord]:
        """Those that are there, and the last ones that were. The newest first."""
        ...

    def deaths_seen(self) -> int:
        """Grows when a worker may have died, as far as somebody waits for commits."""
        ...

    def claims_of(self, worker_id: str) -> builtins.list[Lease]:
        """What runs in this worker's name."""
        ...

    def recover_lost(self) -> int:
        """running -> ready or failed, for everything that dead workers held."""
        ...

    # --- by the clock: claims do these as well ---

    def promote(self) -> int:
        """scheduled -> ready, for all that is due."""
        ...

    def recover(self) -> int:
        """running -> ready or failed, for what dead workers held and for every lease that has ended."""
        ...

    def resolve(self) -> int:
        """blocked -> ready, scheduled, failed or cancelled, for what waits for something that has ended; and failed,
        for what nobody has settled in time."""
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
        """Do it to every job that fits and is in a state that allows it; returns how many."""
        ...

    def pause(self, queue: str, actor: str, reason: str = "") -> bool: ...

    def resume(self, queue: str, actor: str, reason: str = "") -> bool: ...

    # --- chains and batches ---

    def chain(self, chain_id: int) -> builtins.list[JobRecord]:
        """Its jobs, in order; empty if there is none."""
        ...

    def chain_end(self, chain_id: int) -> JobRecord | None:
        """Its last job, as it is now."""
        ...

    def blockers_of(self, job_id: int) -> builtins.list[BlockerRecord]:
        """What it waits for, or waited for, in order."""
        ...

    def waiting_for(self, chain_id: int, limit: int, ended: bool = False) -> builtins.list[JobRecord]:
        """Unfinished jobs that wait for this chain, or waited for it and may read its result. ended: all that did."""
        ...

    def delete_chain(self, chain_id: int, cascade: bool, actor: str, reason: str = "") -> Deletion:
        """The whole chain, unless others wait for it; with `cascade` those, too. All or nothing."""
        ...

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int: ...

    def seal_batch(self, batch_id: int, conn: Any = None) -> None:
        """All that are to be its members are, or will be made by members: from now on it may be done."""
        ...

    def abandon_batch(self, batch_id: int, reason: str, conn: Any = None) -> None:
        """Nothing is to come of it, and its members are cancelled; unless it went with the transaction of `conn`."""
        ...

    def batch(self, batch_id: int) -> BatchRecord | None: ...

    def batch_of_callback(self, job_id: int) -> int | None:
        """The batch that this job was enqueued for."""
        ...

    # --- why a job is where it is, and what is around it: each reads a bounded part ---

    def situation(self, job_id: int) -> Situation | None: ...

    def blockers_by_urgency(self, job_id: int, limit: int) -> Blockers:
        """The chains that it waits for, or waited for: first those that somebody must see to."""
        ...

    def behind_blockers(self, job_id: int, limit: int) -> builtins.list[Blocker]:
        """What it waits for in the end, by way of jobs that are blocked themselves."""
        ...

    def waiting_around(self, chain_id: int, limit: int) -> tuple[builtins.list[ChainLink], int]:
        """Unfinished jobs that wait for this chain, or waited for it; and how many there are, up to 10 000."""
        ...

    def chain_around(self, chain_id: int, index: int, each_side: int) -> builtins.list[ChainLink]:
        """The jobs of a chain near one place in it, its first, and its last; in order."""
        ...

    def live_workers(self) -> builtins.list[LiveWorker]:
        """Those whose process is there, by the lock that it holds and not by when it was heard of."""
        ...

    def places_taken(self, workers: Sequence[str]) -> builtins.list[Taken]:
        """What these workers have taken and not settled."""
        ...

    def jobs_ahead(self, job: JobRecord, queues: Sequence[str] | None, tasks: Collection[str], limit: int) -> int:
        """How many ready jobs of these tasks come before it, for a worker that serves these queues in this order."""
        ...

    def messages_ahead(self, job: JobRecord, limit: int) -> int: ...

    def removal(self, chain_id: int, cascade: bool) -> Removal:
        """What `delete_chain` would delete, and what would keep it from that."""
        ...

    def count_deletable(self, criteria: Criteria) -> int:
        """How many of those that fit could be deleted: nobody waits for them, and their whole chain fits."""
        ...

    # --- cron ---

    def put_schedule(self, schedule: NewSchedule, actor: str, reason: str = "") -> bool:
        """Add it, or change the one of that name. A new expression counts from now. False if it is the same."""
        ...

    def remove_schedule(self, name: str, actor: str, reason: str = "") -> bool: ...

    def pause_schedule(self, name: str, actor: str, reason: str = "") -> bool: ...

    def resume_schedule(self, name: str, actor: str, reason: str = "") -> bool:
        """It counts from now: what was missed during the pause does not fire."""
        ...

    def schedule(self, name: str) -> ScheduleRecord | None: ...

    def schedules(self, after: str, limit: int) -> builtins.list[ScheduleRecord]:
        """By name, those that come after one."""
        ...

    def due_schedules(
        self, tasks: Sequence[str], declared: Sequence[str], now: int, after: str, limit: int
    ) -> builtins.list[ScheduleRecord]:
        """By name, those of these tasks with something to do. Of those from code, only the ones that are declared."""
        ...

    def next_occurrence(self, tasks: Sequence[str], declared: Sequence[str], now: int) -> int | None:
        """The first one after now of such schedules."""
        ...

    def fire(self, schedule: ScheduleRecord, plan: Plan) -> builtins.list[int]:
        """Enqueue the occurrences that have not fired yet, and move on. Nothing if the schedule has changed since."""
        ...

    # --- reading ---

    def get(self, job_id: int) -> JobRecord | None: ...

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> list[JobRecord]:
        """Newest first, at most `limit`, on the cursor's side."""
        ...

    def history(self, job_id: int) -> builtins.list[TimelineEntry]: ...

    def traceback(self, fingerprint: str) -> str | None: ...

    def message_stats(self, queue: str) -> QueueStats: ...

    def queue_overview(self) -> builtins.list[QueueOverview]:
        """Every queue that has something waiting, running or failed, or that was ever paused, by name."""
        ...

    def count(self, criteria: Criteria) -> int: ...

    # --- how it is doing ---

    def counts(self) -> builtins.list[Count]:
        """How many there are of each state, by queue and task."""
        ...

    def longest_running(self, limit: int) -> builtins.list[int]:
        """Their ids; what runs the longest, first."""
        ...

    def slices(self, since_minute: int, step_minutes: int) -> builtins.list[Slice]:
        """What happened since a minute, summed up over so many minutes each."""
        ...

    def rollup(
        self, since_minute: int, task: str | None = None, queue: str | None = None
    ) -> builtins.list[HistogramRecord]:
        """What is kept since a minute, by queue and task: how attempts ended (bucket 0), how long they waited and
        ran, and with which attempt jobs ended."""
        ...

    def top_failures(
        self, since_minute: int | None, limit: int, task: str | None = None, queue: str | None = None
    ) -> builtins.list[FailureRecord]:
        """What failed since then, or ever, the most frequent first; each counted for that time."""
        ...

    def running_by_worker(self) -> dict[str, int]: ...

    def storage(self) -> StorageRecord:
        """How big it is."""
        ...

    def events_after(self, after: int, limit: int, job_id: int | None = None) -> builtins.list[EventRecord]:
        """The log, of all or of one job, from a place in it: an event's id."""
        ...

    def last_events(
        self, limit: int, job_id: int | None = None, before: int | None = None
    ) -> builtins.list[EventRecord]:
        """The end of the log, of all or of one job, in order; or what comes before a place in it."""
        ...

    def last_event(self) -> int:
        """The place where the log ends now."""
        ...

    def left_behind(self) -> int:
        """How many jobs are gone of which something is left, as far as a look at either end tells."""
        ...

    def tallies(self) -> Tallies:
        """What was counted from the beginning on, and only counts up."""
        ...

    def longest_ready(self, limit: int = -1) -> builtins.list[WaitingJob]:
        """Of each queue and task, the job that could have been taken for longest; the longest of all first."""
        ...

    def longest_due(self, limit: int) -> builtins.list[WaitingJob]:
        """Those that are due and scheduled still, since nobody was there to make them ready."""
        ...

    def longest_blocked(self, limit: int) -> builtins.list[WaitingJob]:
        """Of each queue and task, the blocked job that was enqueued first."""
        ...

    # --- waiting ---

    def commits_seen(self) -> int:
        """Take this before looking, and pass it to `wait_for_commit` if there was nothing."""
        ...

    def wait_for_commit(self, seen: int, timeout: float) -> None:
        """Until anyone commits, or the time is over; at times it returns for nothing, so look again."""
        ...

    def wake_waiting(self) -> None:
        """Let `wait_for_commit` return in the threads of this process."""
        ...

    def seconds_until_due(self) -> float:
        """Until the next scheduled job is due or the next lease ends; infinity if there is none."""
        ...

    # --- life ---

    def transaction(self) -> AbstractContextManager[Any]: ...

    def completion(self, result: Any) -> AbstractContextManager[Any]:
        """A transaction with which a job is to succeed. It has a `result`, which may be changed in it."""
        ...

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """In the block, this thread's writes wait no longer than this for others that write, and raise StoreBusy."""
        ...

    def held_for(self) -> float:
        """Seconds for which a thread of this process has had a transaction open, so that no other can write; or 0."""
        ...

    def refuse_waiting_for_itself(self) -> None:
        """Raise TransactionError if this thread, or coroutine, has a transaction open: before another thread is to
        write for it, and would wait for the end of that."""
        ...

    def checkpoint(self) -> tuple[int, int]: ...

    def close(self) -> None: ...
