"""The values of a job, from its enqueue to its end, and of bulk operations. Pure data: no I/O, no threads, no clock.

States, and how a job moves between them:

    enqueue ──▶ blocked ──blockers done──▶ ┐
    enqueue ──▶ scheduled ──────due──────▶ ready ──claim──▶ running ──▶ succeeded
    enqueue ─────────────────────────────▶ ▲                  │ │ └───▶ failed     attempts spent, or Fail
                      retry, snooze,       │                  │ └─────▶ cancelled
                      release, recover     └──────────────────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Flag, StrEnum, auto
from typing import Any, Generic, Literal, TypeVar, get_args, overload

from msgspec import Struct

from ..failure import Failure


class Status(StrEnum):
    """The states of a job. Each member equals the text in the database."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def __repr__(self) -> str:
        return repr(self.value)


STATUSES: frozenset[str] = frozenset(Status)
TERMINAL: frozenset[str] = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
DEFAULT_MAX_ATTEMPTS = 5  # of tasks, messages and schedules; the defaults in the schema are the same
DEFAULT_QUEUE = "default"
OnConflict = Literal["return", "replace"]
OnBlockerFailure = Literal["hold", "fail", "cancel", "run"]
ON_BLOCKER_FAILURE: frozenset[str] = frozenset(get_args(OnBlockerFailure))
T = TypeVar("T")
Transition = Literal["succeed", "retry", "fail", "stop", "snooze", "interrupt", "give_back", "release", "unfit"]
_PAYLOADS = frozenset({"args", "result", "state", "arguments", "named_arguments", "new_job"})


class Redacted(Struct, frozen=True):
    """A struct whose repr hides payloads, since more people can read the logs than the database."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = self.__struct_fields__
        return [(name, "…" if name in _PAYLOADS else getattr(self, name)) for name in names]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class Links(Struct, frozen=True):
    """The relations of a new job to others."""

    after: tuple[int, ...] = ()  # ids of jobs; it waits for their chains
    on_blocker_failure: OnBlockerFailure = "hold"
    batch_id: int | None = None
    external: bool = False

    @property
    def holds(self) -> bool:
        """Whether the job starts out blocked."""
        return self.external or bool(self.after)


class NewJob(Redacted, frozen=True):
    """A job as enqueue and send hand it to the store. Times are microseconds."""

    queue: str
    task: str | None  # None: a message
    args: str  # JSON
    delay: int = 0
    run_at: int | None = None  # takes precedence over delay
    expires: int | None = None  # after the enqueue; a job that waits until then is cancelled
    expires_at: int | None = None  # the same as a time; of an external job: when it fails
    priority: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: int | None = None
    key: str | None = None
    key_window: int | None = None
    on_conflict: OnConflict = "return"
    tags: str | None = None  # a JSON array
    history: bool = True
    actor: str | None = None  # None: this process
    reason: str | None = None  # why the actor enqueues it, for the event log
    links: Links | None = None  # None: no relation to other jobs
    trace: str | None = None  # the trace context of the enqueue
    args_blob: str | None = None  # the blob that `args` refers to
    version: int = 0  # of the task's code

    def due(self, now: int) -> int:
        """Return when the job is due. The database rejects times in early 1970, as a wrong unit: they are raised."""
        return now + self.delay if self.run_at is None else max(self.run_at, now // 100)

    def expiry(self, now: int) -> int | None:
        """Return when the job expires."""
        return self.expires_at if self.expires is None else now + self.expires

    def first_status(self, now: int) -> Status:
        if self.links is not None and self.links.holds:
            return Status.BLOCKED
        return Status.SCHEDULED if self.due(now) > now else Status.READY


class JobRecord(Redacted, frozen=True):
    """A row of the jobs table. Times are microseconds, `args` and `result` JSON."""

    id: int
    queue: str
    task: str | None
    args: bytes
    status: Status
    priority: int
    run_at: int
    created_at: int
    claimed_at: int | None
    started_at: int | None
    finished_at: int | None
    heartbeat_at: int | None
    attempt: int
    max_attempts: int
    timeout: int | None
    worker: str | None
    error_code: str | None
    error_detail: str | None
    result: bytes | None
    key: str | None
    tags: str | None
    progress: float | None
    progress_text: str | None
    history: int
    chain_id: int | None = None  # None: the job is the root of its chain
    chain_index: int = 0
    continued: int = 0
    on_blocker_failure: str | None = None
    batch_id: int | None = None
    external: int = 0
    expires_at: int | None = None  # of an external job: when it fails
    args_blob: str | None = None  # see blobs.py
    result_blob: str | None = None
    state: bytes | None = None  # JSON, saved by an attempt for the next one
    version: int = 0
    unfit_since: int | None = None  # since when workers return it, because the payload does not fit their code

    @property
    def chain(self) -> int:
        """The id of the chain, which is the id of its root."""
        return self.id if self.chain_id is None else self.chain_id


class Inserted(Struct, frozen=True):
    """The job that exists after an enqueue: a new one, or the one that had the key already."""

    id: int
    now: int
    existing: JobRecord | None = None
    linked: JobRecord | None = None  # a new job whose first state depended on other jobs

    def record(self, job: NewJob) -> JobRecord:
        """Return the row of the job without reading it."""
        if self.existing is not None:
            return self.existing
        if self.linked is not None:
            return self.linked
        run_at = job.due(self.now)
        return JobRecord(
            id=self.id,
            queue=job.queue,
            task=job.task,
            args=job.args.encode(),
            status=job.first_status(self.now),
            priority=job.priority,
            run_at=run_at,
            created_at=self.now,
            claimed_at=None,
            started_at=None,
            finished_at=None,
            heartbeat_at=None,
            attempt=0,
            max_attempts=job.max_attempts,
            timeout=job.timeout,
            worker=None,
            error_code=None,
            error_detail=None,
            result=None,
            key=job.key,
            tags=job.tags,
            progress=None,
            progress_text=None,
            history=int(job.history),
            expires_at=job.expiry(self.now),
            version=job.version,
        )


class Claimed(Redacted, frozen=True, gc=False):
    """A claimed job, which this process may run as long as `attempt` is the newest."""

    id: int
    attempt: int
    max_attempts: int
    queue: str
    task: str | None
    args: bytes
    timeout: int | None
    history: int
    uncounted: int = 0
    error_code: str | None = None
    error_detail: str | None = None
    run_at: int = 0
    trace: bytes | None = None  # the trace context of the enqueue; not decoded, since plain SQL may have written it
    args_blob: str | None = None  # the blob that `args` refers to

    @property
    def origin(self) -> str | None:
        """The trace context of the enqueue, as text."""
        return None if self.trace is None else self.trace.decode("utf-8", "replace")

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self.attempt, bool(self.history), self.queue if self.task is None else None)


class Lease(Struct, frozen=True, gc=False):
    """The right to settle one attempt. `attempt` is the fencing token: a newer claim invalidates this lease."""

    id: int
    attempt: int
    history: bool = True  # a hint that saves a statement; the row decides
    queue: str | None = None  # the queue that a message must belong to


class ClaimRequest(Struct, frozen=True):
    """A request of a worker for jobs of its tasks, from these queues in this order, or from all queues."""

    tasks: Collection[str]
    limit: int
    lease: int
    worker: str
    queues: Sequence[tuple[str, int]] | None = None  # name and the most jobs to take
    job_id: int | None = None  # only this job
    versions: Mapping[str, int] = {}  # of tasks; 0 for the others. Jobs of newer versions are not claimed
    skip: Collection[int] = ()  # ids of jobs not to claim


class Sweep(Flag):
    """Transitions that are due to time, or to the end of another job or worker."""

    DUE = auto()  # scheduled -> ready
    LEASES = auto()  # running -> ready or failed: the lease has expired
    WORKERS = auto()  # running -> ready or failed: the worker is dead
    ENDINGS = auto()  # blocked -> ready, scheduled, failed or cancelled: the blockers have finished
    ALL = DUE | LEASES | WORKERS | ENDINGS


class Settlement(Redacted, frozen=True, gc=False):
    """How one attempt ended: a transition and its values. Times are microseconds."""

    lease: Lease
    transition: Transition
    started_at: int | None
    finished_at: int
    result: str | None = None  # JSON
    delay: int = 0
    failure: Failure | None = None
    reason: str = ""
    then: NewJob | None = None  # the next job of the chain, after a success
    result_blob: str | None = None  # the blob that `result` refers to
    progress: float | None = None  # None: as it is stored
    progress_text: str | None = None
    keep: int = 0  # how long a payload that does not fit is kept for newer code


class SettledAndClaimed(Struct, frozen=True):
    """The result of settling and claiming in one transaction."""

    lost: list[Settlement]  # not recorded, since their leases were lost
    claimed: list[Claimed]
    otherwise: list[tuple[Settlement, Settlement]] = []  # (requested, recorded) where these differ

    def instead_of(self, requested: Settlement) -> Settlement:
        """Return the settlement that was recorded for the requested one."""
        return next((recorded for one, recorded in self.otherwise if one is requested), requested)


class LeaseRenewal(Struct, frozen=True):
    """A heartbeat of a running attempt."""

    lease: Lease
    started_at: int | None = None
    progress: float | None = None
    progress_text: str | None = None


class FailureReport(Struct, frozen=True, omit_defaults=True):
    """A job or message that failed for good, as `@app.on_failure` hands it to a hook."""

    id: int
    task: str | None
    """None for a message."""
    queue: str
    attempt: int
    max_attempts: int
    error_code: str
    error_detail: str
    failed_at: datetime
    worker: str | None = None
    """The worker of the last attempt; None if the job was not running when it failed."""
    fingerprint: str | None = None
    traceback: str | None = None
    """Of the exception that the last attempt raised, if it raised one."""


class UnreportedFailures(Struct, frozen=True):
    """Failures that a hook was not told about. The numbers are ids of events."""

    cursor: int | None  # as it is stored; None: the hook is new
    until: int  # what was read
    failed: list[FailureReport]
    more: bool


NameField = Literal["queue", "task", "error_code"]
NAME_FIELDS: tuple[NameField, ...] = ("queue", "task", "error_code")
"""The fields that a pattern may name."""


class Criteria(Struct, frozen=True):
    """Filters for jobs. An empty field matches all jobs; several values match any of them."""

    ids: tuple[int, ...] | None = None
    status: tuple[str, ...] = ()
    queue: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    error_code: tuple[str, ...] = ()
    fingerprint: tuple[str, ...] = ()  # of the traceback of their last failed attempt
    tag: tuple[str, ...] = ()
    batch_id: tuple[int, ...] = ()
    created_from: int | None = None
    created_before: int | None = None
    finished_from: int | None = None
    finished_before: int | None = None
    messages: bool | None = None  # True: messages only, False: tasks only
    roots: bool = False  # only the first jobs of chains
    chain_status: tuple[str, ...] = ()  # the status of the chain, for its root
    inbox: bool = False  # only external jobs that wait to be settled
    like: tuple[tuple[NameField, str], ...] = ()  # patterns of names, in which `*` is any text; beside exact names
    args: tuple[tuple[str, str], ...] = ()  # paths into the payload, such as "user.name", and patterns of the values


class Cursor(Struct, frozen=True):
    """A position in a listing: continue with jobs older, or newer, than one id."""

    id: int
    newer: bool = False


class Listed(Struct, frozen=True):
    """Records, newest first. A search without a suitable index stops after a bounded number of jobs."""

    records: list[JobRecord]
    scanned: int | None = None  # the number of scanned jobs, if the search stopped early
    resume: int | None = None  # the last scanned id, to continue from


class Counted(Struct, frozen=True):
    """The number of matching jobs; if the search stopped early, of those that were scanned."""

    count: int
    is_complete: bool = True


class Page(Sequence[T], Generic[T]):
    """A page of a listing, newest first. `next` and `previous` are cursors for `list(cursor=…)`, or None.

    scanned: None, or the number of scanned jobs after which a search without a suitable index stopped. The page may
    then be incomplete or empty, and its cursor continues the search.
    """

    def __init__(self, items: list[T], next: str | None, previous: str | None, scanned: int | None = None) -> None:
        self.items, self.next, self.previous, self.scanned = items, next, previous, scanned

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"Page({self.items!r}, next={self.next!r}, previous={self.previous!r})"


class TimelineEntry(Struct, frozen=True):
    """One entry of a job's history: an event or an attempt."""

    at: int
    kind: Literal["event", "attempt"]
    name: str  # the event, or the outcome of the attempt ('running' until it ends)
    attempt: int
    actor: str | None
    detail: dict[str, Any]


BulkAction = Literal["retry", "cancel", "run_now", "delete"]
OperationState = Literal["running", "finished", "stopped", "failed"]
STATES_FOR: dict[BulkAction, tuple[str, ...]] = {
    "retry": ("failed", "cancelled"),
    "cancel": ("blocked", "scheduled", "ready", "running"),
    "run_now": ("scheduled",),
    "delete": ("blocked", "scheduled", "ready", "succeeded", "failed", "cancelled"),
}
"""The states in which jobs can be changed so."""


class NewOperation(Struct, frozen=True):
    action: BulkAction
    criteria: Criteria
    actor: str
    reason: str = ""
    delay: int = 0  # of retried jobs, in microseconds
    attempts: int | None = None  # of retried jobs; None: as many as at first
    matched: int = 0
    matched_all: bool = True


class OperationRecord(Struct, frozen=True):
    """An operation as it is stored. Times are microseconds."""

    id: int
    action: BulkAction
    criteria: str  # JSON
    actor: str
    reason: str
    delay: int
    attempts: int | None
    state: OperationState
    matched: int
    matched_all: bool
    changed: int
    position: int  # every job up to this id was looked at
    until: int  # the newest job when it was added
    runner: str | None
    error: str | None
    created_at: int
    updated_at: int
    finished_at: int | None
