"""Run due jobs in the calling thread, as a worker would, on a clock that jumps to the next due time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Literal, overload

from msgspec import Struct

from .. import validate
from ..app import App
from ..app.jobs import all_records
from ..clock import SECOND
from ..errors import InvalidInput, NeverIdle
from ..model.job import (
    Claimed,
    ClaimRequest,
    Criteria,
    JobRecord,
    LeaseRenewal,
    SettledAndClaimed,
    Settlement,
    Transition,
)
from ..model.outcome import Outcome
from ..worker.attempt import Attempt
from ..worker.executor import Executor
from ..worker.housekeeping import FailureReporter
from ..worker.job_log import JobLog
from ..worker.outcomes import OutcomeMapper

if TYPE_CHECKING:
    from ..app.options import Seconds
    from ..worker.scheduler import Scheduler


Ending = Literal["succeeded", "retried", "snoozed", "failed", "cancelled", "returned", "lost"]
ENDINGS: dict[Transition, Ending] = {
    "succeed": "succeeded",
    "retry": "retried",
    "snooze": "snoozed",
    "fail": "failed",
    "stop": "cancelled",
    "unfit": "returned",
}
HOUR = 3600 * SECOND
CENTURY = 100 * 365 * 24 * HOUR


class Ran(Struct, frozen=True):
    """One attempt that was run, and its outcome."""

    job_id: int
    task: str
    attempt: int
    outcome: Ending
    """`"retried"` if a retry is scheduled; `"returned"` if the payload does not fit the task; `"lost"` if the job was
    cancelled or claimed by another while it ran."""
    error: BaseException | None = None
    """The exception that the handler raised, unless it was an outcome such as Retry."""


class _RecordingMapper(OutcomeMapper):
    """Maps outcomes as in a worker, and records the exception that the handler raised."""

    raised: BaseException | None = None

    def for_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        if not isinstance(error, Outcome):
            self.raised = error
        return super().for_error(attempt, error)


class _TestAttempt(Attempt, eq=False):
    """An attempt on the app's clock, if that is a FakeClock. No worker watches it, so it checks its lease itself."""

    app: Any = None

    def finished_at(self) -> int:
        clock = self.app.clock
        return clock.now() if isinstance(clock, FakeClock) else super().finished_at()

    def is_cancelled(self) -> bool:
        return not self.app.store.jobs.renew([LeaseRenewal(self.claimed.lease)], None)


def lease_of(app: App) -> int:
    """Return a long lease: a test may move its FakeClock far while a handler runs."""
    return CENTURY if isinstance(app.clock, FakeClock) else HOUR


def run_claimed(app: App, claimed: Claimed) -> Ran:
    """Run the attempt and settle it. Exceptions for the test itself, such as a Ctrl-C, are raised after that."""
    mapper = _RecordingMapper(app.error_table, app.random, app.payload_timeout)
    executor = Executor(mapper, app.clock, app._layers(), app.store, app._context_backend)
    attempt = _TestAttempt(claimed, app.tasks[claimed.task or ""], monotonic_ns(), app=app)
    settlement = attempt.with_progress(_execute(executor, attempt))
    settled = SettledAndClaimed([], [])
    if attempt.completed is None:
        settled = app.store.jobs.settle_and_claim([settlement], [])
    lost, settlement = settled.lost, settled.instead_of(settlement)
    JobLog().settled([(attempt, settlement)], set(map(id, lost)))
    if mapper.raised is not None and _is_for_the_test(mapper.raised):
        raise mapper.raised
    ending = "lost" if lost else _ending(claimed, settlement)
    return Ran(claimed.id, attempt.handler.name, claimed.attempt, ending, mapper.raised)


def _execute(executor: Executor, attempt: Attempt) -> Settlement:
    if (
        attempt.handler.kind != "async"
    ):  # in this process also for pool="process": another would not have the test's objects
        return executor.run(attempt)
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_on_loop(executor, attempt)
    return _run_on_loop_in_thread(executor, attempt)


def _run_on_loop(executor: Executor, attempt: Attempt) -> Settlement:
    import asyncio

    with asyncio.Runner() as runner:
        # Not with `runner.run`, which would turn a Ctrl-C into the cancellation of the handler.
        return runner.get_loop().run_until_complete(executor.run_async(attempt))


def _run_on_loop_in_thread(executor: Executor, attempt: Attempt) -> Settlement:
    """Run the attempt in another thread and wait for it: this thread already runs an event loop."""
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1, "holdfast-test") as threads:
        return threads.submit(copy_context().run, _run_on_loop, executor, attempt).result()


def _is_for_the_test(error: BaseException) -> bool:
    """Return whether it is for the test, as `pytest.fail()` or Ctrl-C, and not a failure of the handler."""
    from asyncio import CancelledError

    return not isinstance(error, (Exception, SystemExit, GeneratorExit, CancelledError))


def _ending(claimed: Claimed, settlement: Settlement) -> Ending:
    """Return the outcome. A retry after the last attempt is a failure."""
    if settlement.transition == "retry" and claimed.attempt >= claimed.max_attempts:
        return "failed"
    return ENDINGS[settlement.transition]


def raise_first_error(ran: Sequence[Ran]) -> None:
    """Raise the first exception, with a note that names the job."""
    for one in ran:
        if one.error is not None:
            one.error.add_note(f"Raised by job {one.job_id}, {one.task}, attempt {one.attempt}: {one.outcome}.")
            raise one.error


def never_idle(ran: Sequence[Ran], advice: str) -> NeverIdle:
    """Return the error for jobs that never end, with the job or task that is the most likely cause."""
    task, _ = Counter(one.task for one in ran).most_common(1)[0]
    attempts: Counter[Any] = Counter(one.job_id for one in ran if one.task == task)
    job_id, times = attempts.most_common(1)[0]
    if times >= len(attempts):
        outcome = next(one.outcome for one in reversed(ran) if one.job_id == job_id)
        cause = f"job {job_id} of {task} ran {times} times and {outcome} the last time"
    else:
        cause = f"{len(attempts)} jobs of {task} ran, up to job {max(attempts)}, as if each enqueued the next"
    return NeverIdle(f"stopped after {len(ran)} attempts with jobs still to run: {cause}. {advice}")


class FakeClock:
    """A wall clock and a boot clock for tests. Pass it as `Holdfast(clock=…)`."""

    def __init__(self, now: int = 1_700_000_000 * SECOND, boot_id: str = "boot-1") -> None:
        self._now, self._boot_now, self._boot_id = now, 1000 * SECOND, boot_id

    def now(self) -> int:
        return self._now

    def boot_now(self) -> int:
        return self._boot_now

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now += round(seconds * SECOND)
        self._boot_now += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """Set the wall clock forwards or backwards. No time passes."""
        self._now += round(seconds * SECOND)

    def reboot(self, boot_id: str = "boot-2") -> None:
        """Reboot the machine: the boot clock restarts, the wall clock continues."""
        self._boot_now, self._boot_id = 10 * SECOND, boot_id


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
