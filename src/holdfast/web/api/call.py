"""What all endpoints share: the request that they are given, how one is declared, and common shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ...app.job import Job
from ...app.jobs import Jobs
from ...app.operations import Operations
from ...app.queue import Queue
from ...app.schedules import Schedules
from ...app.workflows import Batches
from ...errors import InvalidInput
from ...model.stats import FailureInfo, QueueOverview, Snapshot
from ...observe import Observe
from ...text import to_data
from ...upkeep.doctor.check import Checkup
from ...upkeep.vacuum import VacuumReport
from ..auth import Identity, Role

T = TypeVar("T")
MAX_LISTED = 500
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
    """Viewers see no arguments, results, progress texts, error messages and tracebacks."""
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
    has_etag: bool = False
    """An unchanged response is answered with 304."""
    is_stream: bool = False
    """With `Accept: text/event-stream`, it goes on as server-sent events."""

    @property
    def waits(self) -> bool:
        """Whether it may take long: it is a coroutine, and is cancelled when the client leaves."""
        return iscoroutinefunction(self.run)

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").split("\n")[0].rstrip(".")


class Resource:
    """The endpoints of one module, in the order in which they are written."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []

    def __call__(self, method: str, path: str, role: Role, result: Any, **more: Any) -> Callable[[T], T]:
        def add(run: T) -> T:
            self.endpoints.append(Endpoint(method, path, run, role, result, **more))  # type: ignore[arg-type]
            return run

        return add


class Items(Struct, Generic[T]):
    """A page of items. `next` and `previous` are cursors; null where there are no more."""

    items: list[T]
    next: str | None = None
    previous: str | None = None
    scanned: int | None = None
    """Not null: the search stopped after this many jobs without an index. `next` continues it."""


class Done(Struct):
    ok: bool


class Created(Struct):
    id: int
    deduplicated: bool = False
    """A job with this key existed already, and nothing was stored."""


class Reason(Struct, forbid_unknown_fields=True):
    reason: str = ""


class PageQuery(Struct, forbid_unknown_fields=True):
    limit: int = 50
    cursor: str | None = None


def public_job(call: Call, job: Job[Any]) -> dict[str, Any]:
    data: dict[str, Any] = to_data(job)
    if call.hides_payloads:
        data["progress_text"] = data["error_detail"] = None
    return data


def without_traceback(failure: FailureInfo) -> FailureInfo:
    """Its last line is the message of an exception, which often has an argument in it."""
    return replace(failure, traceback=None)


def without_tracebacks(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, failures=list(map(without_traceback, snapshot.failures)))


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


def window(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise InvalidInput(f"since and step must be seconds, got {seconds}") from None
