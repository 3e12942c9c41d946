"""What a store does: one method per transition. PostgreSQL and SQLite differ only behind this."""

from __future__ import annotations  # so that they cost nothing at import

import builtins
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from ..failure import Failure
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
from ..schedule import NewSchedule, Plan, ScheduleRecord

OperatorAction = Literal["requeue", "cancel", "run_now", "delete", "purge"]


class Store(Protocol):
    """Delays and leases are microseconds. `conn` is the user's own connection, to take part in its transaction."""

    @property
    def actor(self) -> str:
        """Who this process is in the history. Another after a fork."""
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

    def exchange(self, settlements: Sequence[Settlement], wants: Sequence[Wanted]) -> Exchanged:
        """Settle what has ended and claim what comes next, in one transaction."""
        ...

    # --- out of running: False where the lease was lost, and then nothing happened ---

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
    ) -> int:
        """Do it to every job that fits and is in a state that allows it; returns how many."""
        ...

    def pause(self, queue: str, actor: str) -> bool: ...

    def resume(self, queue: str, actor: str) -> bool: ...

    # --- cron ---

    def put_schedule(self, schedule: NewSchedule, actor: str) -> bool:
        """Add it, or change the one of that name. A new expression counts from now. False if it is the same."""
        ...

    def remove_schedule(self, name: str, actor: str) -> bool: ...

    def pause_schedule(self, name: str, actor: str) -> bool: ...

    def resume_schedule(self, name: str, actor: str) -> bool:
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

    def checkpoint(self) -> tuple[int, int]: ...

    def close(self) -> None: ...
