"""Run due jobs in the calling thread, on a clock that jumps to the next due time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from .. import validate
from ..app import App
from ..app.jobs import all_records
from ..clock import SECOND
from ..errors import InvalidInput
from ..model.job import ClaimRequest, Criteria, JobRecord, Settlement
from ..worker.housekeeping import FailureReporter
from .runner import FakeClock, Ran, lease_of, never_idle, raise_first_error, run_claimed

if TYPE_CHECKING:
    from ..app.options import Seconds
    from ..worker.scheduler import Scheduler

WAITING = Criteria(status=("ready", "scheduled", "blocked"), messages=False)
LATER = Criteria(status=("scheduled", "blocked"), messages=False)
ADVICE = "Pass until= or seconds= to stop at a time, or a larger limit= if this is intended"


def store_declared(app: App) -> None:
    """Store the schedules of `@app.cron`, as a worker does at its start."""
    if app.schedules.declared:
        _scheduler(app).store_declared()


def fire(app: App) -> float:
    """Enqueue due occurrences of schedules. Returns the time of the next one, or infinity."""
    if not app.store.schedules.list("", 1):
        return math.inf
    scheduler = _scheduler(app)
    while (seconds := scheduler.fire_due()) == 0.0 and scheduler.has_more:
        pass
    return math.inf if seconds == math.inf else app.clock.now() + round(seconds * SECOND)


def _scheduler(app: App) -> Scheduler:
    """Return a new scheduler: one that was used checks again only after a second, and here time may stand still."""
    from ..worker.scheduler import Scheduler

    return Scheduler(app.store, app.clock, app.tasks, app.schedules.declared.values())


class Drained(Sequence[Ran]):
    """The attempts that `drain` ran, in order, with the number of each outcome."""

    def __init__(self, ran: list[Ran]) -> None:
        self._ran = ran

    @overload
    def __getitem__(self, index: int) -> Ran: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Ran]: ...
    def __getitem__(self, index: int | slice) -> Ran | Sequence[Ran]:
        return self._ran[index]

    def __len__(self) -> int:
        return len(self._ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self._ran)

    @property
    def succeeded(self) -> int:
        return self._count("succeeded")

    @property
    def failed(self) -> int:
        return self._count("failed")

    @property
    def retried(self) -> int:
        return self._count("retried")

    @property
    def snoozed(self) -> int:
        return self._count("snoozed")

    @property
    def cancelled(self) -> int:
        return self._count("cancelled")

    @property
    def returned(self) -> int:
        return self._count("returned")

    @property
    def lost(self) -> int:
        return self._count("lost")

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions that handlers raised."""
        return [one.error for one in self._ran if one.error is not None]

    def _count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self._ran)

    def __repr__(self) -> str:
        outcomes = dict.fromkeys(one.outcome for one in self._ran)
        numbers = ", ".join(f"{self._count(outcome)} {outcome}" for outcome in outcomes)
        return f"<Drained: {numbers or 'nothing to run'}>"


def drain(
    app: App,
    *,
    until: datetime | None = None,
    seconds: Seconds | None = None,
    limit: int = 1000,
    raise_errors: bool = False,
) -> Drained:
    """Run due jobs in the calling thread, one after the other, as a worker would. Returns the attempts.

    On a FakeClock, the clock then jumps to the next due time, until no scheduled job is left. With `until` or
    `seconds`, it stops at that time: schedules fire on the way, and the clock is set to that time at the end. Without
    them, schedules fire only occurrences that are due at the start, since they would never end.

    limit: the maximum number of attempts, plus one for each job that waits at the start; then NeverIdle is raised.
    raise_errors: raise the first exception of a handler, after its job was settled, instead of continuing.
    """
    if not isinstance(app, App):
        raise InvalidInput(f"drain: app must be a Holdfast, got {validate.shown(app)}")
    most = validate.integer(limit, "limit", 1, 2**31) + app.store.jobs.count(WAITING).count
    validate.flag(raise_errors, "raise_errors")
    end = _end(app, until, seconds)
    ran: list[Ran] = []
    store_declared(app)
    occurrence = fire(app)
    reporter = FailureReporter(app.store, app.failure_hooks())
    reporter.report()
    while True:
        for one in _run_due(app, most, ran):
            if raise_errors:
                raise_first_error([one])
        if reporter.report():
            continue
        moment = _next_moment(app, end, occurrence)
        if moment is None:
            break
        _move_to(app.clock, moment)
        if end is not None:
            occurrence = fire(app)
    if end is not None:
        _move_to(app.clock, end)
    return Drained(ran)


def _end(app: App, until: datetime | None, seconds: Seconds | None) -> int | None:
    if until is None and seconds is None:
        return None
    if until is not None and seconds is not None:
        raise InvalidInput("pass either until or seconds, not both")
    if not isinstance(app.clock, FakeClock):
        raise InvalidInput("until and seconds need a clock that can be moved: create the app with clock=FakeClock()")
    if until is not None:
        return validate.moment(until, "until")
    return app.clock.now() + validate.duration(seconds, "seconds")


def _run_due(app: App, most: int, ran: list[Ran]) -> Iterator[Ran]:
    """Run due jobs one at a time, so that a job of a higher priority that a handler enqueues runs next."""
    versions = {name: task.version for name, task in app.tasks.items()}
    wanted = ClaimRequest(list(app.tasks), 1, lease_of(app), app.store.actor, versions=versions)
    while found := app.store.jobs.settle_and_claim([], [wanted]).claimed:
        if len(ran) >= most:
            app.store.jobs.settle_and_claim(
                [Settlement(one.lease, "give_back", None, app.clock.now()) for one in found], []
            )
            raise never_idle(ran, ADVICE)
        for claimed in found:
            ran.append(run_claimed(app, claimed))
            yield ran[-1]


def _next_moment(app: App, end: int | None, occurrence: float) -> int | None:
    """Return when the next job is due or, with an end, the next schedule. None: after the end, or never."""
    if not isinstance(app.clock, FakeClock):
        return None
    moments = [_next_due(app), occurrence] if end is not None else [_next_due(app)]
    moment = min(moments)
    return None if moment == math.inf or (end is not None and moment > end) else int(moment)


def _next_due(app: App) -> float:
    """Return when the next job is due. Jobs of tasks that this app does not have are ignored: it cannot run them."""
    records = all_records(app.store, LATER)
    return min(
        (_due_at(record) for record in records if record.task in app.tasks or record.external), default=math.inf
    )


def _due_at(record: JobRecord) -> float:
    """Return when the job changes: it is due, or it expires."""
    due = record.run_at if record.status == "scheduled" else math.inf
    return due if record.expires_at is None else min(due, record.expires_at)


def _move_to(clock: Any, moment: int) -> None:
    if moment > clock.now():
        clock.advance((moment - clock.now()) / SECOND)
