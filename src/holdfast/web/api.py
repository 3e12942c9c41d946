"""The endpoints of the HTTP API, below /api/v1. docs/reference/http-api.md describes them.

Each endpoint is a function that is given a `Call` and returns data; one that may wait is a coroutine function. What
it takes and returns is declared with it, so that requests are checked and the OpenAPI document is made from the same
types. An endpoint knows nothing of HTTP beyond that: authentication, errors and encoding are in app.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..app.explain import Explanation
from ..app.job import Job
from ..app.jobs import Filters, HistoryEntry, Jobs
from ..app.operations import Operation, Operations
from ..app.queue import Queue
from ..app.relations import BlockerNode, Relations
from ..app.schedules import Schedule, ScheduleRun, Schedules
from ..app.workflows import Batches, BatchProgress
from ..errors import HoldfastError, InvalidInput, LeaseLost
from ..model.job import NAME_FIELDS, Counted
from ..model.operation import BulkAction
from ..model.stats import Counts, QueueOverview, QueueStats, Storage
from ..observe import Observe
from ..observe.results import (
    Event,
    FailureInfo,
    Latency,
    RetentionStatus,
    Snapshot,
    TaskAttempts,
    ThroughputPoint,
    TimelinePoint,
    WorkerHealth,
)
from ..serialize import to_data
from ..upkeep.doctor.check import Checkup
from ..upkeep.vacuum import VacuumReport
from .auth import Identity, Role, RoleNeeded

T = TypeVar("T")
MAX_WAIT = 60.0  # seconds of one long poll
MAX_LISTED = 500
VACUUM_SECONDS = 5.0
RUNS = 5  # of a schedule: the last ones, and the next
HIDDEN = "•••"


class Served(Protocol):
    """What the web page and the API use of an app."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def observe(self) -> Observe: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def batches(self) -> Batches: ...

    @property
    def operations(self) -> Operations: ...

    @property
    def tasks(self) -> Mapping[str, Any]: ...

    def queue(self, name: str) -> Queue[Any]: ...

    def queues(self) -> list[QueueOverview]: ...

    def check(self) -> Checkup: ...

    def stop_worker(self, id: str, *, actor: str | None = None, reason: str = "") -> bool: ...

    def vacuum(self, *, actor: str | None = None, reason: str = "", seconds: float | None = None) -> VacuumReport: ...


class PayloadRules(Struct, frozen=True):
    """How the API treats payloads."""

    hide_args: bool = False
    """Viewers see no arguments, results and progress texts."""
    redact: tuple[re.Pattern[str], ...] = ()
    """Values of keys that match one of these are replaced, for everyone."""


class Call(Struct, frozen=True):
    """One request, after it was authenticated and checked."""

    app: Served
    identity: Identity
    rules: PayloadRules
    path: Mapping[str, Any]
    query: Any
    body: Any
    key: str | None = None
    """The header Idempotency-Key."""

    @property
    def hides_payloads(self) -> bool:
        return self.rules.hide_args and self.identity.role == Role.viewer

    @property
    def by(self) -> dict[str, Any]:
        """Who acts and why, for the event log."""
        return {"actor": self.identity.name, "reason": getattr(self.body, "reason", "") or ""}


class Endpoint(Struct, frozen=True):
    """A method and a path, with what it takes and returns."""

    method: str
    path: str
    run: Callable[[Call], Any]
    role: Role
    result: Any
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    status: int = 200
    idempotent_key: bool = False

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").split("\n")[0].rstrip(".")


ENDPOINTS: list[Endpoint] = []


def endpoint(method: str, path: str, role: Role, result: Any, **more: Any) -> Callable[[T], T]:
    def add(run: T) -> T:
        ENDPOINTS.append(Endpoint(method, path, run, role, result, **more))  # type: ignore[arg-type]
        return run

    return add


# --- shapes ---------------------------------------------------------------------------------------


class Items(Struct, Generic[T]):
    """A page of items. `next` and `previous` are cursors; null where there are no more."""

    items: list[T]
    next: str | None = None
    previous: str | None = None
    scanned: int | None = None
    """Not null: the search stopped after this many jobs without an index. `next` continues it."""


class Done(Struct):
    ok: bool


class JobDetail(Struct):
    """What a single job has besides the fields of a listed one."""

    args: Any
    result: Any
    hidden: bool
    """Arguments and result are hidden from this user."""
    unreadable: str | None
    """Why the arguments or the result cannot be shown: damaged or missing."""
    chain_id: int
    chain_index: int
    batch_id: int | None
    is_external: bool
    timeout_at: datetime | None


class JobFilters(Struct, forbid_unknown_fields=True):
    """Filters of jobs. A text may be several, separated by commas.

    In `queue`, `task` and `error_code`, `*` is any text. `args` is a JSON object of paths into the payload and
    patterns of the values there: `{"user.name": "ada*"}`.
    """

    status: str | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    error_code: str | None = None
    tag: str | None = None
    batch: int | None = None
    args: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None

    def filters(self, call: Call) -> Filters:
        """Return the filters of `app.jobs`. Raises if this user may not look at the arguments that they name."""
        found: dict[str, Any] = {}
        for name in JobFilters.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if name == "args":
                found[name] = _argument_filters(call, value)
            elif name in NAME_FIELDS:
                found |= _names_and_patterns(name, value.split(","))
            else:
                found[name] = value.split(",") if isinstance(value, str) else value
        return cast(Filters, found)


def _names_and_patterns(name: str, values: Sequence[str]) -> dict[str, Sequence[str]]:
    parts = {name: [one for one in values if "*" not in one], f"{name}_like": [one for one in values if "*" in one]}
    return {key: several for key, several in parts.items() if several}


def _argument_filters(call: Call, text: str) -> dict[str, str]:
    """Who may not see a value may not search for it either: the answers would tell it."""
    if call.hides_payloads:
        raise RoleNeeded(Role.operator)
    try:
        found = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise InvalidInput('args must be a JSON object of texts, such as {"user.name": "ada*"}') from None
    for path in found:
        if any(pattern.search(part) for part in path.split(".") for pattern in call.rules.redact):
            raise InvalidInput(f"values of {path} are hidden, so they cannot be searched for")
    return found


class JobQuery(JobFilters, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


class Selection(Struct, forbid_unknown_fields=True):
    """The jobs of a bulk operation: by ids, or by the filters of `GET /jobs`."""

    action: BulkAction
    ids: list[int] | None = None
    filters: JobFilters | None = None

    def wanted(self, call: Call) -> dict[str, Any]:
        if self.action == "delete" and call.identity.role < Role.admin:
            raise RoleNeeded(Role.admin)
        found: dict[str, Any] = {} if self.filters is None else {**self.filters.filters(call)}
        return found if self.ids is None else {**found, "ids": self.ids}


class OperationBody(Selection, forbid_unknown_fields=True):
    reason: str = ""
    delay: float = 0
    attempts: int | None = None


class PageQuery(Struct, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


class BatchQuery(Struct, forbid_unknown_fields=True):
    state: Literal["open", "running", "done", "abandoned"] | None = None
    limit: int = 50
    cursor: str | None = None


class SinceQuery(Struct, forbid_unknown_fields=True):
    since: float = 3600.0
    """Seconds back from now."""
    queue: str | None = None
    task: str | None = None

    @property
    def window(self) -> timedelta:
        return _window(self.since)


class FailureQuery(Struct, forbid_unknown_fields=True):
    since: float | None = None
    limit: int = 20
    queue: str | None = None
    task: str | None = None
    parts: int = 0
    """Count each failure also in this many equal parts of the period, as `trend`."""


class InboxQuery(Struct, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


class ThroughputQuery(Struct, forbid_unknown_fields=True):
    since: float = 3600.0
    step: float = 60.0


class EventQuery(Struct, forbid_unknown_fields=True):
    after: int | None = None
    """The id of the last event seen: return those that follow it."""
    before: int | None = None
    """Return the events before this one, in order."""
    job: int | None = None
    limit: int = 100


class Reason(Struct, forbid_unknown_fields=True):
    reason: str = ""


class NewJobBody(Struct, forbid_unknown_fields=True):
    task: str
    args: dict[str, Any] = {}
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    timeout: float | UnsetType | None = UNSET
    delay: float | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET

    def options(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("task", "args")}
        return {name: value for name, value in given.items() if value is not UNSET}


class RetryBody(Reason):
    delay: float = 0
    attempts: int | UnsetType = UNSET


class CompleteBody(Reason):
    result: Any = None


class FailBody(Reason, kw_only=True):
    code: str
    detail: str = ""


class NewMessageBody(Struct, forbid_unknown_fields=True):
    body: Any
    delay: float = 0
    priority: int = 0


class ReceiveBody(Struct, forbid_unknown_fields=True):
    limit: int = 1
    visibility: float = 30
    wait: float = 0


class AckBody(Struct, forbid_unknown_fields=True):
    attempt: int


class ExtendBody(AckBody):
    seconds: float


class ReleaseBody(AckBody):
    delay: float = 0


class InboxItem(Struct):
    """An external job that waits for a decision."""

    id: int
    task: str
    """The name that it was stored with."""
    queue: str
    created_at: datetime
    timeout_at: datetime | None
    """When it fails, unless it was settled before."""
    key: str | None
    tags: list[str]
    batch_id: int | None
    args: Any
    hidden: bool
    unreadable: str | None


class TracebackText(Struct):
    traceback: str | None
    """Null: it is not stored any more."""


class GraphNode(Struct):
    """A job in the graph of relations."""

    id: int
    task: str | None
    status: str
    """`deleted` if it is gone."""
    error_code: str | None = None
    external: bool = False
    more: int = 0
    """Further blockers of it that are left out."""


class GraphEdge(Struct):
    source: int
    target: int
    kind: Literal["continues", "blocks"]


class Graph(Struct):
    """The chain of a job, the jobs that it waits for and theirs, and those that wait for it."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    chain_length: int
    more_blockers: int
    more_waiting: int
    batch_id: int | None
    is_callback: bool


class ScheduleTimes(Struct):
    upcoming: list[datetime]
    runs: list[ScheduleRun]


class Changed(Struct):
    jobs: int
    """How many jobs were changed."""


class MessageData(Struct):
    id: int
    attempt: int
    body: Any


class Created(Struct):
    id: int
    deduplicated: bool = False
    """A job with this key existed already, and nothing was stored."""


# --- jobs -----------------------------------------------------------------------------------------


@endpoint("GET", "/jobs", Role.viewer, Items[Job[Any]], query=JobQuery)
def list_jobs(call: Call) -> Any:
    """List jobs, newest first."""
    query: JobQuery = call.query
    page = call.app.jobs.list(limit=min(query.limit, MAX_LISTED), cursor=query.cursor, **query.filters(call))
    items = [_job(call, job) for job in page]
    return {"items": items, "next": page.next, "previous": page.previous, "scanned": page.scanned}


@endpoint("POST", "/jobs", Role.operator, Created, body=NewJobBody, status=201, idempotent_key=True)
def enqueue(call: Call) -> Any:
    """Enqueue a job. With an Idempotency-Key, a repeated request stores nothing while the job is unfinished."""
    options = call.body.options() | ({} if call.key is None else {"key": call.key})
    job = call.app.jobs.enqueue(call.body.task, call.body.args, actor=call.identity.name, **options)
    return {"id": job.id, "deduplicated": job.deduplicated}


@endpoint("GET", "/jobs/{id:int}", Role.viewer, (Job, JobDetail))
def get_job(call: Call) -> Any:
    """Get a job with its arguments and result."""
    return _detailed(call, call.app.jobs.get(call.path["id"]))


def _detailed(call: Call, job: Job[Any]) -> dict[str, Any]:
    detail = JobDetail(
        args=None,
        result=None,
        hidden=call.hides_payloads,
        unreadable=None,
        chain_id=job.chain_id,
        chain_index=job.chain_index,
        batch_id=job.batch_id,
        is_external=job.is_external,
        timeout_at=job.timeout_at,
    )
    if not detail.hidden:
        try:
            detail.args = redacted(job.args, call.rules.redact)
            detail.result = redacted(job.plain_result, call.rules.redact)
        except HoldfastError as error:
            detail.unreadable = str(error)
    return {**_job(call, job), **to_data(detail)}


@endpoint("GET", "/jobs/{id:int}/history", Role.viewer, Items[HistoryEntry])
def history(call: Call) -> Any:
    """Get the attempts and events of a job, in order of time."""
    return {"items": to_data(call.app.jobs.history(call.path["id"]))}


@endpoint("GET", "/jobs/{id:int}/explain", Role.viewer, Explanation)
def explain(call: Call) -> Any:
    """Explain why a job is in its state, and what would change that."""
    return to_data(call.app.jobs.explain(call.path["id"]))


@endpoint("GET", "/jobs/{id:int}/graph", Role.viewer, Graph)
def graph(call: Call) -> Any:
    """Get the jobs around a job as a graph. Large graphs are cut."""
    return to_data(graph_of(call.path["id"], call.app.jobs.relations(call.path["id"])))


@endpoint("GET", "/inbox", Role.viewer, Items[InboxItem], query=InboxQuery)
def inbox(call: Call) -> Any:
    """List external jobs that wait for a decision, newest first, with their payloads."""
    page = call.app.jobs.inbox(limit=min(call.query.limit, MAX_LISTED), cursor=call.query.cursor)
    items = [
        {name: one[name] for name in InboxItem.__struct_fields__} for one in (_detailed(call, job) for job in page)
    ]
    return {"items": items, "next": page.next, "previous": page.previous}


@endpoint("POST", "/jobs/{id:int}/retry", Role.operator, Done, body=RetryBody)
def retry(call: Call) -> Any:
    """Run a failed or cancelled job again."""
    more = {} if call.body.attempts is UNSET else {"attempts": call.body.attempts}
    return {"ok": call.app.jobs.retry(call.path["id"], delay=call.body.delay, **more, **call.by)}


@endpoint("POST", "/jobs/{id:int}/cancel", Role.operator, Done, body=Reason)
def cancel(call: Call) -> Any:
    """Cancel an unfinished job."""
    return {"ok": call.app.jobs.cancel(call.path["id"], **call.by)}


@endpoint("POST", "/jobs/{id:int}/run-now", Role.operator, Done, body=Reason)
def run_now(call: Call) -> Any:
    """Make a scheduled job ready now."""
    return {"ok": call.app.jobs.run_now(call.path["id"], **call.by)}


@endpoint("POST", "/jobs/{id:int}/complete", Role.operator, Done, body=CompleteBody)
def complete(call: Call) -> Any:
    """Let an unfinished job succeed with a result."""
    return {"ok": call.app.jobs.complete(call.path["id"], call.body.result, **call.by)}


@endpoint("POST", "/jobs/{id:int}/fail", Role.operator, Done, body=FailBody)
def fail(call: Call) -> Any:
    """Let an unfinished job fail with an error code."""
    return {"ok": call.app.jobs.fail(call.path["id"], call.body.code, call.body.detail, **call.by)}


@endpoint("DELETE", "/jobs/{id:int}", Role.admin, Done, body=Reason)
def delete(call: Call) -> Any:
    """Delete a job with its attempts and events."""
    return {"ok": call.app.jobs.delete(call.path["id"], **call.by)}


# --- bulk operations ------------------------------------------------------------------------------


@endpoint("POST", "/operations/count", Role.operator, Counted, body=Selection)
def count_selected(call: Call) -> Any:
    """Count the jobs that a bulk operation would change: a dry run. It stops early in a large database."""
    return to_data(call.app.operations.count(call.body.action, **call.body.wanted(call)))


@endpoint("POST", "/operations", Role.operator, Operation, body=OperationBody, status=202)
def start_operation(call: Call) -> Any:
    """Retry, cancel, run now or delete many jobs in the background. Deleting needs the role admin."""
    body: OperationBody = call.body
    how = {"delay": body.delay, "attempts": body.attempts, **call.by}
    return _operation(call, call.app.operations.start(body.action, **body.wanted(call), **how))


@endpoint("GET", "/operations", Role.viewer, Items[Operation], query=PageQuery)
def list_operations(call: Call) -> Any:
    """List bulk operations with their progress, newest first."""
    page = call.app.operations.list(limit=min(call.query.limit, MAX_LISTED), cursor=call.query.cursor)
    return {"items": [_operation(call, one) for one in page], "next": page.next, "previous": page.previous}


@endpoint("GET", "/operations/{id:int}", Role.viewer, Operation)
def get_operation(call: Call) -> Any:
    """Get a bulk operation with its progress."""
    return _operation(call, call.app.operations.get(call.path["id"]))


@endpoint("POST", "/operations/{id:int}/stop", Role.operator, Done, body=Reason)
def stop_operation(call: Call) -> Any:
    """Stop a bulk operation. Jobs that it has changed stay so."""
    return {"ok": call.app.operations.stop(call.path["id"], **call.by)}


def _operation(call: Call, one: Operation) -> dict[str, Any]:
    data: dict[str, Any] = to_data(one)
    if call.hides_payloads and "args" in data["criteria"]:
        data["criteria"] = {**data["criteria"], "args": HIDDEN}
    return data


# --- queues and messages --------------------------------------------------------------------------


@endpoint("GET", "/queues", Role.viewer, Items[QueueOverview])
def list_queues(call: Call) -> Any:
    """List the queues that have unfinished or failed jobs."""
    return {"items": to_data(call.app.queues())}


@endpoint("GET", "/queues/{queue}", Role.viewer, QueueStats)
def get_queue(call: Call) -> Any:
    """Count the messages of a queue by state."""
    return to_data(call.app.queue(call.path["queue"]).stats())


@endpoint("POST", "/queues/{queue}/pause", Role.operator, Done, body=Reason)
def pause_queue(call: Call) -> Any:
    """Stop all workers and consumers from taking jobs of a queue."""
    return {"ok": call.app.queue(call.path["queue"]).pause(**call.by)}


@endpoint("POST", "/queues/{queue}/resume", Role.operator, Done, body=Reason)
def resume_queue(call: Call) -> Any:
    """Undo a pause."""
    return {"ok": call.app.queue(call.path["queue"]).resume(**call.by)}


@endpoint(
    "POST", "/queues/{queue}/messages", Role.operator, Created, body=NewMessageBody, status=201, idempotent_key=True
)
def send(call: Call) -> Any:
    """Send a message."""
    body: NewMessageBody = call.body
    queue = call.app.queue(call.path["queue"])
    return {"id": queue.send(body.body, delay=body.delay, priority=body.priority, key=call.key)}


@endpoint("POST", "/queues/{queue}/receive", Role.operator, Items[MessageData], body=ReceiveBody)
async def receive(call: Call) -> Any:
    """Receive messages. `wait` is how many seconds to wait for one, up to 60."""
    body: ReceiveBody = call.body
    queue, wait = call.app.queue(call.path["queue"]), min(body.wait, MAX_WAIT)
    messages = await queue.areceive_many(body.limit, visibility=body.visibility, wait=wait)
    return {"items": [{"id": one.id, "attempt": one.attempt, "body": one.body} for one in messages]}


@endpoint("POST", "/queues/{queue}/messages/{id:int}/ack", Role.operator, Done, body=AckBody)
def ack(call: Call) -> Any:
    """Acknowledge a message. 409: the lease was lost."""
    return _held(call, call.app.queue(call.path["queue"]).ack(call.path["id"], call.body.attempt))


@endpoint("POST", "/queues/{queue}/messages/{id:int}/extend", Role.operator, Done, body=ExtendBody)
def extend(call: Call) -> Any:
    """Extend the lease of a message. 409: the lease was lost."""
    queue, body = call.app.queue(call.path["queue"]), call.body
    return _held(call, queue.extend(call.path["id"], body.attempt, body.seconds))


@endpoint("POST", "/queues/{queue}/messages/{id:int}/release", Role.operator, Done, body=ReleaseBody)
def release(call: Call) -> Any:
    """Release a message for another delivery. 409: the lease was lost."""
    queue, body = call.app.queue(call.path["queue"]), call.body
    return _held(call, queue.release(call.path["id"], body.attempt, body.delay))


def _held(call: Call, held: bool) -> Any:
    if not held:
        raise LeaseLost(f"message {call.path['id']} is not held by delivery {call.body.attempt} any more")
    return {"ok": True}


# --- statistics -----------------------------------------------------------------------------------


@endpoint("GET", "/stats", Role.viewer, Snapshot)
def stats(call: Call) -> Any:
    """Get counts, oldest jobs, attempts, failures, workers, latency, storage and retention, as of one moment."""
    return to_data(call.app.observe.snapshot())


@endpoint("GET", "/counts", Role.viewer, Counts)
def counts(call: Call) -> Any:
    """Count the jobs in each state, by queue and task."""
    return to_data(call.app.observe.counts())


@endpoint("GET", "/attempts", Role.viewer, Items[TaskAttempts], query=SinceQuery)
def attempts(call: Call) -> Any:
    """Count the attempts of each task, with the most failures first."""
    return {"items": to_data(call.app.observe.attempts(call.query.window))}


@endpoint("GET", "/throughput", Role.viewer, Items[ThroughputPoint], query=ThroughputQuery)
def throughput(call: Call) -> Any:
    """Count the attempts that ended in each step of time, by queue and task."""
    query: ThroughputQuery = call.query
    return {"items": to_data(call.app.observe.throughput(_window(query.since), _window(query.step)))}


@endpoint("GET", "/timeline", Role.viewer, Items[TimelinePoint], query=ThroughputQuery)
def timeline(call: Call) -> Any:
    """Get counts and percentiles of all attempts for each step of time, for charts."""
    query: ThroughputQuery = call.query
    return {"items": to_data(call.app.observe.timeline(_window(query.since), _window(query.step)))}


@endpoint("GET", "/latency", Role.viewer, Items[Latency], query=SinceQuery)
def latency(call: Call) -> Any:
    """Get percentiles of how long attempts waited and ran."""
    query: SinceQuery = call.query
    return {"items": to_data(call.app.observe.latency(query.task, query.queue, query.window))}


@endpoint("GET", "/failures", Role.viewer, Items[FailureInfo], query=FailureQuery)
def failures(call: Call) -> Any:
    """List the most frequent failures, by error code and place in the code."""
    query: FailureQuery = call.query
    since = None if query.since is None else _window(query.since)
    limit = min(query.limit, MAX_LISTED)
    found = call.app.observe.failures(since, limit, task=query.task, queue=query.queue, parts=query.parts)
    return {"items": to_data(found)}


@endpoint("GET", "/workers", Role.viewer, Items[WorkerHealth])
def workers(call: Call) -> Any:
    """List the live workers and the most recent of the others."""
    return {"items": to_data(call.app.observe.workers())}


@endpoint("POST", "/workers/{id}/stop", Role.operator, Done, body=Reason)
def stop_worker(call: Call) -> Any:
    """Ask a worker to stop when its jobs have finished."""
    return {"ok": call.app.stop_worker(call.path["id"], **call.by)}


@endpoint("POST", "/vacuum", Role.admin, VacuumReport, body=Reason)
def vacuum(call: Call) -> Any:
    """Return free space of the database to the file system, for at most some seconds."""
    return to_data(call.app.vacuum(seconds=VACUUM_SECONDS, **call.by))


@endpoint("GET", "/retention", Role.viewer, RetentionStatus)
def retention(call: Call) -> Any:
    """Get the retention rules, and what they delete now and next."""
    return to_data(call.app.observe.retention())


@endpoint("GET", "/tracebacks/{fingerprint}", Role.viewer, TracebackText)
def traceback(call: Call) -> Any:
    """Get a traceback by the fingerprint of a failed attempt."""
    return {"traceback": call.app.jobs.traceback(call.path["fingerprint"])}


@endpoint("GET", "/storage", Role.viewer, Storage)
def storage(call: Call) -> Any:
    """Get the size of the database."""
    return to_data(call.app.observe.storage())


@endpoint("GET", "/doctor", Role.viewer, Checkup)
def doctor(call: Call) -> Any:
    """Check the database for problems."""
    return to_data(call.app.check())


@endpoint("GET", "/events", Role.viewer, Items[Event], query=EventQuery)
def events(call: Call) -> Any:
    """Read the event log: the newest events, or those after or before one. As an event stream, follow it."""
    query, observe = call.query, call.app.observe
    limit = min(query.limit, MAX_LISTED)
    if query.after is not None and query.before is not None:
        raise InvalidInput("after and before exclude each other: pass one of them")
    if query.after is not None:
        found = observe.events(query.after, limit, query.job)
    else:
        found = observe.last_events(limit, query.job, query.before)
    return {"items": to_data(found), "next": str(found[-1].id) if found else None}


# --- schedules ------------------------------------------------------------------------------------


@endpoint("GET", "/schedules", Role.viewer, Items[Schedule])
def list_schedules(call: Call) -> Any:
    """List the schedules."""
    return {"items": to_data(call.app.schedules.list())}


@endpoint("GET", "/schedules/{name}/times", Role.viewer, ScheduleTimes)
def schedule_times(call: Call) -> Any:
    """Get the next occurrences of a schedule, and its last runs with the states of their jobs."""
    name, schedules = call.path["name"], call.app.schedules
    return to_data(ScheduleTimes(schedules.get(name).upcoming(RUNS), schedules.runs(name, RUNS)))


@endpoint("POST", "/schedules/{name}/pause", Role.operator, Done, body=Reason)
def pause_schedule(call: Call) -> Any:
    """Stop a schedule until it is resumed."""
    return {"ok": call.app.schedules.pause(call.path["name"], **call.by)}


@endpoint("POST", "/schedules/{name}/resume", Role.operator, Done, body=Reason)
def resume_schedule(call: Call) -> Any:
    """Undo the pause of a schedule."""
    return {"ok": call.app.schedules.resume(call.path["name"], **call.by)}


@endpoint("POST", "/schedules/{name}/run", Role.operator, Created, body=Reason, status=201)
def run_schedule(call: Call) -> Any:
    """Enqueue a job of a schedule now."""
    job = call.app.schedules.run_now(call.path["name"], **call.by)
    return {"id": job.id, "deduplicated": job.deduplicated}


# --- batches --------------------------------------------------------------------------------------


@endpoint("GET", "/batches", Role.viewer, Items[BatchProgress], query=BatchQuery)
def list_batches(call: Call) -> Any:
    """List batches with their progress, newest first. Members are counted up to 1,000 of each status."""
    query: BatchQuery = call.query
    page = call.app.batches.list(state=query.state, limit=min(query.limit, MAX_LISTED), cursor=query.cursor)
    return {"items": to_data(page.items), "next": page.next, "previous": page.previous, "scanned": None}


@endpoint("POST", "/batches/{id:int}/cancel", Role.operator, Changed, body=Reason)
def cancel_batch(call: Call) -> Any:
    """Cancel the unfinished members of a batch."""
    return {"jobs": call.app.batches.cancel(call.path["id"], **call.by)}


@endpoint("POST", "/batches/{id:int}/retry", Role.operator, Changed, body=Reason)
def retry_batch(call: Call) -> Any:
    """Run the failed members of a batch again."""
    return {"jobs": call.app.batches.retry(call.path["id"], **call.by)}


# --- the graph ------------------------------------------------------------------------------------

NEAR = 3  # jobs of a chain on each side


def graph_of(id: int, relations: Relations) -> Graph:
    """Return the relations of a job as nodes and edges."""
    last = relations.chain[-1].chain_index if relations.chain else 0
    here = next((one.chain_index for one in relations.chain if one.id == id), 0)
    chain = [one for one in relations.chain if one.chain_index in (0, last) or abs(one.chain_index - here) <= NEAR]
    nodes = {one.id: GraphNode(one.id, one.task, one.status, one.error_code, bool(one.external)) for one in chain}
    edges = [GraphEdge(one.id, other.id, "continues") for one, other in pairwise(chain)]
    for waiting in relations.waiting:
        nodes.setdefault(waiting.id, GraphNode(waiting.id, waiting.task, waiting.status, waiting.error_code))
        edges.append(GraphEdge(chain[-1].id if chain else id, waiting.id, "blocks"))

    def add(node: BlockerNode, target: int) -> None:
        one = node.blocker
        found = GraphNode(
            one.id or one.chain_id, one.task, one.status or "deleted", one.error_code, bool(one.external)
        )
        found.more = node.more
        nodes.setdefault(found.id, found)
        edges.append(GraphEdge(found.id, target, "blocks"))
        for child in node.children:
            add(child, found.id)

    for blocker in relations.blockers:
        add(blocker, id)
    return Graph(
        nodes=list(nodes.values()),
        edges=edges,
        chain_length=relations.chain_length,
        more_blockers=relations.more_blockers,
        more_waiting=relations.more_waiting,
        batch_id=relations.batch_id,
        is_callback=relations.is_callback,
    )


# --- payloads -------------------------------------------------------------------------------------


def _job(call: Call, job: Job[Any]) -> dict[str, Any]:
    data: dict[str, Any] = to_data(job)
    if call.hides_payloads:
        data["progress_text"] = data["error_detail"] = None
    return data


def redacted(value: Any, patterns: Sequence[re.Pattern[str]]) -> Any:
    """Return the value with those of its members replaced whose name matches a pattern."""
    if not patterns:
        return value
    if isinstance(value, dict):
        return {
            name: HIDDEN if any(one.search(str(name)) for one in patterns) else redacted(member, patterns)
            for name, member in value.items()
        }
    return [redacted(one, patterns) for one in value] if isinstance(value, list) else value


def _window(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise InvalidInput(f"since and step must be seconds, got {seconds}") from None
