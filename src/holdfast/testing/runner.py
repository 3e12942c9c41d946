"""Run one attempt in the calling thread, as a worker would, and settle it. A clock that only the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, Literal

from msgspec import Struct

from ..app import App
from ..clock import SECOND
from ..errors import NeverIdle
from ..model.job import Claimed, LeaseRenewal, SettledAndClaimed, Settlement, Transition
from ..model.outcome import Outcome
from ..worker.attempt import Attempt
from ..worker.executor import Executor
from ..worker.job_log import JobLog
from ..worker.outcomes import OutcomeMapper

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
        """Reboot the machine: the boot clock restarts, the wall clock goes on."""
        self._boot_now, self._boot_id = 10 * SECOND, boot_id
