"""Run what is due, in this thread, on a clock that jumps to the next due time."""

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
from .clock import FakeClock
from .runner import Ran, lease_of, never_idle, raise_first_error, run_claimed

if TYPE_CHECKING:
    from ..app.options import Seconds
    from ..worker.scheduler import Scheduler


def store_declared(app: App) -> None:
    """As a worker does at its start."""
    if app.schedules.declared:
        _scheduler(app).store_declared()


def fire(app: App) -> float:
    """Enqueue what is due. Returns the moment of the next occurrence; infinity if there is none."""
    if not app.store.schedules.list("", 1):
        return math.inf
    seconds = _scheduler(app).fire_due()
    return math.inf if seconds == math.inf else app.clock.now() + round(seconds * SECOND)


def _scheduler(app: App) -> Scheduler:
    """A new one each time: it would not look again before a second has passed, and here time may stand still."""
    from ..worker.scheduler import Scheduler

    return Scheduler(app.store, app.clock, app.tasks, app.schedules.declared.values())


WAITING = Criteria(status=("ready", "scheduled", "blocked"), messages=False)
LATER = Criteria(status=("scheduled", "blocked"), messages=False)
ADVICE = "Pass until= or seconds= to stop at a time, or a larger limit= if that is meant"


class Drained(Sequence[Ran]):
    """The attempts that `drain` ran, in their order, and how many ended in which way."""

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
        return self._number("succeeded")

    @property
    def failed(self) -> int:
        return self._number("failed")

    @property
    def retried(self) -> int:
        return self._number("retried")

    @property
    def snoozed(self) -> int:
        return self._number("snoozed")

    @property
    def cancelled(self) -> int:
        return self._number("cancelled")

    @property
    def lost(self) -> int:
        return self._number("lost")

    @property
    def errors(self) -> list[BaseException]:
        """What handlers raised."""
        return [one.error for one in self._ran if one.error is not None]

    def _number(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self._ran)

    def __repr__(self) -> str:
        outcomes = dict.fromkeys(one.outcome for one in self._ran)
        numbers = ", ".join(f"{self._number(outcome)} {outcome}" for outcome in outcomes)
        return f"<Drained: {numbers or 'nothing to run'}>"


def drain(
    app: App,
    *,
    until: datetime | None = None,
    seconds: Seconds | None = None,
    limit: int = 1000,
    raise_errors: bool = False,
) -> Drained:
    """Run in this thread what is due, one after the other, as a worker would.

    On a FakeClock it goes on: the clock jumps to the next due time, until no job is left to wait for. With `until` or
    `seconds` it goes on to that moment, and no further; schedules fire on the way, and at the end it is that time.
    Without them schedules fire only what is due when it begins, since they never end.

    limit: so many attempts, beside one for each job that waits when it begins. If there is more to run, NeverIdle.
    raise_errors: raise what a handler raised, after the job was settled, instead of going on.
    """
    if not isinstance(app, App):
        raise InvalidInput(f"drain takes an app, not {validate.shown(app)}")
    most = validate.integer(limit, "limit", 1, 2**31) + app.store.jobs.count(WAITING).count
    validate.flag(raise_errors, "raise_errors")
    end = _end(app, until, seconds)
    ran: list[Ran] = []
    store_declared(app)
    occurrence = fire(app)
    while True:
        for one in _run_due(app, most, ran):
            if raise_errors:
                raise_first_error([one])
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
        raise InvalidInput("until and seconds both say when to stop: pass one of them")
    if not isinstance(app.clock, FakeClock):
        raise InvalidInput("until and seconds need a clock that can be moved: make the app with clock=FakeClock()")
    if until is not None:
        return validate.moment(until, "until")
    return app.clock.now() + validate.duration(seconds, "seconds")


def _run_due(app: App, most: int, ran: list[Ran]) -> Iterator[Ran]:
    """One at a time, so that what a handler enqueues with a higher priority comes before what waits."""
    wanted = ClaimRequest(list(app.tasks), 1, lease_of(app), app.store.actor)
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
    """When a job is due next, or a schedule if there is an end to it; None if that is after the end, or never."""
    if not isinstance(app.clock, FakeClock):
        return None
    moments = [_next_due(app), occurrence] if end is not None else [_next_due(app)]
    moment = min(moments)
    return None if moment == math.inf or (end is not None and moment > end) else int(moment)


def _next_due(app: App) -> float:
    """Only of tasks that this app has: what cannot be run is nothing to wait for."""
    records = all_records(app.store, LATER)
    return min(
        (_moment(record) for record in records if record.task in app.tasks or record.external), default=math.inf
    )


def _moment(record: JobRecord) -> float:
    if record.status == "scheduled":
        return record.run_at
    return math.inf if record.timeout_at is None else record.timeout_at


def _move_to(clock: Any, moment: int) -> None:
    if moment > clock.now():
        clock.advance((moment - clock.now()) / SECOND)
