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
    Inserted,
    JobRecord,
    Lease,
    NewJob,
    QueueStats,
    TimelineEntry,
)

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
    ) -> list[Claimed]:
        """Only tasks that are named are taken. `queues=None` means all of them."""
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

    # --- by the clock: claims do these as well ---

    def promote(self) -> int:
        """scheduled -> ready, for all that is due."""
        ...

    def recover(self) -> int:
        """running -> ready or failed, for every lease that has ended."""
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

    # --- reading ---

    def get(self, job_id: int) -> JobRecord | None: ...

    def list(self, criteria: Criteria, limit: int, cursor: Cursor | None = None) -> list[JobRecord]:
        """Newest first, at most `limit`, on the cursor's side."""
        ...

    def history(self, job_id: int) -> builtins.list[TimelineEntry]: ...

    def traceback(self, fingerprint: str) -> str | None: ...

    def message_stats(self, queue: str) -> QueueStats: ...

    # --- waiting ---

    def commits_seen(self) -> int:
        """Take this before looking, and pass it to `wait_for_commit` if there was nothing."""
        ...

    def wait_for_commit(self, seen: int, timeout: float) -> None:
        """Until anyone commits, or the time is over; at times it returns for nothing, so look again."""
        ...

    def seconds_until_due(self) -> float:
        """Until the next scheduled job is due or the next lease ends; infinity if there is none."""
        ...

    # --- life ---

    def transaction(self) -> AbstractContextManager[Any]: ...

    def checkpoint(self) -> tuple[int, int]: ...

    def close(self) -> None: ...
