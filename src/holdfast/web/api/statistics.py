"""Statistics, failures and the event log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import Struct

from ...errors import InvalidInput
from ...model.stats import (
    Counts,
    Event,
    FailureInfo,
    Latency,
    Snapshot,
    TaskAttempts,
    ThroughputPoint,
    TimelinePoint,
)
from ...text import to_data
from ..auth import Role
from .call import (
    MAX_LISTED,
    Call,
    Items,
    Resource,
    window,
    without_traceback,
    without_tracebacks,
)

endpoint = Resource()


class SinceQuery(Struct, forbid_unknown_fields=True):
    since: float = 3600.0
    """Seconds back from now."""
    whole: bool = False
    """Begin a long period at a full hour or at midnight UTC, which is read faster."""
    queue: str | None = None
    task: str | None = None

    @property
    def window(self) -> timedelta:
        return window(self.since)


class FailureQuery(Struct, forbid_unknown_fields=True):
    since: float | None = None
    limit: int = 20
    queue: str | None = None
    task: str | None = None
    parts: int = 0
    """Count each failure also in this many equal parts of the period, as `trend`."""


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


class TracebackText(Struct):
    traceback: str | None
    """Null: it is not stored any more, or hidden from this user."""


@endpoint("GET", "/stats", Role.viewer, Snapshot, has_etag=True)
def stats(call: Call) -> Any:
    """Get counts, oldest jobs, attempts, failures, workers, latency, storage and retention, as of one moment."""
    found = call.app.observe.snapshot()
    return to_data(without_tracebacks(found) if call.hides_payloads else found)


@endpoint("GET", "/counts", Role.viewer, Counts)
def counts(call: Call) -> Any:
    """Count the jobs in each state, by queue and task."""
    return to_data(call.app.observe.counts())


@endpoint("GET", "/attempts", Role.viewer, Items[TaskAttempts], query=SinceQuery)
def attempts(call: Call) -> Any:
    """Count the attempts of each task, with the most failures first."""
    return {"items": to_data(call.app.observe.attempts(call.query.window, whole=call.query.whole))}


@endpoint("GET", "/throughput", Role.viewer, Items[ThroughputPoint], query=ThroughputQuery)
def throughput(call: Call) -> Any:
    """Count the attempts that ended in each step of time, by queue and task."""
    query: ThroughputQuery = call.query
    return {"items": to_data(call.app.observe.throughput(window(query.since), window(query.step)))}


@endpoint("GET", "/timeline", Role.viewer, Items[TimelinePoint], query=ThroughputQuery)
def timeline(call: Call) -> Any:
    """Get counts and percentiles of all attempts for each step of time, for charts."""
    query: ThroughputQuery = call.query
    return {"items": to_data(call.app.observe.timeline(window(query.since), window(query.step)))}


@endpoint("GET", "/latency", Role.viewer, Items[Latency], query=SinceQuery)
def latency(call: Call) -> Any:
    """Get percentiles of how long attempts waited and ran."""
    query: SinceQuery = call.query
    return {"items": to_data(call.app.observe.latency(query.task, query.queue, query.window, whole=query.whole))}


@endpoint("GET", "/failures", Role.viewer, Items[FailureInfo], query=FailureQuery)
def failures(call: Call) -> Any:
    """List the most frequent failures, by error code and place in the code."""
    query: FailureQuery = call.query
    since = None if query.since is None else window(query.since)
    limit = min(query.limit, MAX_LISTED)
    found = call.app.observe.failures(since, limit, task=query.task, queue=query.queue, parts=query.parts)
    return {"items": to_data(list(map(without_traceback, found)) if call.hides_payloads else found)}


@endpoint("GET", "/tracebacks/{fingerprint}", Role.viewer, TracebackText)
def traceback(call: Call) -> Any:
    """Get a traceback by the fingerprint of a failed attempt."""
    return {"traceback": None if call.hides_payloads else call.app.jobs.traceback(call.path["fingerprint"])}


@endpoint("GET", "/events", Role.viewer, Items[Event], query=EventQuery, is_stream=True)
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
