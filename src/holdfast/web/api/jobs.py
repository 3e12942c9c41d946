"""Jobs: list, get, history, explain, inbox, enqueue, and what can be done to one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...app.explain import Explanation
from ...app.job import Job
from ...app.jobs import Filters, HistoryEntry
from ...errors import HoldfastError, InvalidInput
from ...model.job import NAME_FIELDS
from ...text import to_data
from ..auth import Role, RoleNeeded
from .call import (
    MAX_LISTED,
    Call,
    Created,
    Done,
    Items,
    Reason,
    Resource,
    public_job,
    redacted,
)
from .graph import Graph, graph_of

endpoint = Resource()


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
    """Filters of jobs. A text may be several, separated by commas; a comma in one of them is written as `\\,`.

    In `queue`, `task` and `error_code`, `*` is any text. `args` is a JSON object of paths into the payload and
    patterns of the values there: `{"user.name": "ada*"}`.
    """

    status: str | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
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
                found |= _names_and_patterns(name, _several(value))
            else:
                found[name] = _several(value) if isinstance(value, str) else value
        return cast(Filters, found)


def _several(text: str) -> list[str]:
    return [one.replace("\\,", ",") for one in re.split(r"(?<!\\),", text)]


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


class InboxQuery(Struct, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


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
    reason: str = ""

    def options(self) -> dict[str, Any]:
        options = [name for name in self.__struct_fields__ if name not in ("task", "args", "reason")]
        given = {name: getattr(self, name) for name in options}
        return {name: value for name, value in given.items() if value is not UNSET}


class RetryBody(Reason):
    delay: float = 0
    attempts: int | UnsetType = UNSET


class CompleteBody(Reason):
    result: Any = None


class FailBody(Reason, kw_only=True):
    code: str
    detail: str = ""


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


@endpoint("GET", "/jobs", Role.viewer, Items[Job[Any]], query=JobQuery)
def list_jobs(call: Call) -> Any:
    """List jobs, newest first."""
    query: JobQuery = call.query
    page = call.app.jobs.list(limit=min(query.limit, MAX_LISTED), cursor=query.cursor, **query.filters(call))
    items = [public_job(call, job) for job in page]
    return {"items": items, "next": page.next, "previous": page.previous, "scanned": page.scanned}


@endpoint("POST", "/jobs", Role.operator, Created, body=NewJobBody, status=201, idempotent_key=True)
def enqueue(call: Call) -> Any:
    """Enqueue a job. With an Idempotency-Key, a repeated request stores nothing while the job is unfinished."""
    options = call.body.options() | ({} if call.key is None else {"key": call.key})
    job = call.app.jobs.enqueue(call.body.task, call.body.args, **call.by, **options)
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
    return {**public_job(call, job), **to_data(detail)}


@endpoint("GET", "/jobs/{id:int}/history", Role.viewer, Items[HistoryEntry])
def history(call: Call) -> Any:
    """Get the attempts and events of a job, in order of time."""
    entries = to_data(call.app.jobs.history(call.path["id"]))
    for entry in entries if call.hides_payloads else ():
        entry["detail"].pop("error_detail", None)
    return {"items": entries}


@endpoint("GET", "/jobs/{id:int}/explain", Role.viewer, Explanation)
def explain(call: Call) -> Any:
    """Explain why a job is in its state, and what would change that."""
    return to_data(call.app.jobs.explain(call.path["id"], hide_messages=call.hides_payloads))


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
