"""Run one attempt in this thread, as a worker would, and settle it."""

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
from .clock import FakeClock

Ending = Literal["succeeded", "retried", "snoozed", "failed", "cancelled", "lost"]
ENDINGS: dict[Transition, Ending] = {
    "succeed": "succeeded",
    "retry": "retried",
    "snooze": "snoozed",
    "fail": "failed",
    "stop": "cancelled",
}
HOUR = 3600 * SECOND
CENTURY = 100 * 365 * 24 * HOUR


class Ran(Struct, frozen=True):
    """One attempt that was run, and what came of it."""

    job_id: int
    task: str
    attempt: int
    outcome: Ending
    """`"retried"` if it will be tried again; `"lost"` if it was cancelled or taken over while it ran."""
    error: BaseException | None = None
    """What the handler raised, unless that was an outcome."""


class _Witness(OutcomeMapper):
    """Settles as a worker's does, and keeps what the handler raised."""

    raised: BaseException | None = None

    def of_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        if not isinstance(error, Outcome):
            self.raised = error
        return super().of_error(attempt, error)


class _AttemptHere(Attempt):
    """On the app's clock, if that is a fake one; and nobody watches over it, so it looks for itself."""

    __slots__ = ("app",)
    app: App

    def finished_at(self) -> int:
        clock = self.app.clock
        return clock.now() if isinstance(clock, FakeClock) else super().finished_at()

    def is_cancelled(self) -> bool:
        return not self.app.store.jobs.renew([LeaseRenewal(self.claimed.lease)], None)


def lease_of(app: App) -> int:
    """A fake clock may be moved far while a handler runs, and ends with its test."""
    return CENTURY if isinstance(app.clock, FakeClock) else HOUR


def run_claimed(app: App, claimed: Claimed) -> Ran:
    """Run the attempt and settle it. What is meant for the test, such as a Ctrl-C, is raised after that."""
    witness = _Witness(app.error_table, app.random)
    executor = Executor(witness, app.clock, app._layers(), app.store, app._context_backend)
    attempt = _AttemptHere(claimed, app.tasks[claimed.task or ""], monotonic_ns())
    attempt.app = app
    settlement = _execute(executor, attempt)
    if attempt.touched:
        progress = LeaseRenewal(claimed.lease, attempt.started_at, attempt.progress, attempt.progress_text)
        app.store.jobs.renew([progress], lease_of(app))
    exchanged = SettledAndClaimed([], [])
    if attempt.completed is None:
        exchanged = app.store.jobs.settle_and_claim([settlement], [])
    lost, settlement = exchanged.lost, exchanged.instead_of(settlement)
    JobLog().settled([(attempt, settlement)], set(map(id, lost)))
    if witness.raised is not None and _is_for_the_test(witness.raised):
        raise witness.raised
    ending = "lost" if lost else _ending(claimed, settlement)
    return Ran(claimed.id, attempt.handler.name, claimed.attempt, ending, witness.raised)


def _execute(executor: Executor, attempt: Attempt) -> Settlement:
    if attempt.handler.kind != "async":  # a process of its own would not have the test's objects
        return executor.run(attempt)
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _on_a_loop(executor, attempt)
    return _beside_the_loop(executor, attempt)


def _on_a_loop(executor: Executor, attempt: Attempt) -> Settlement:
    import asyncio

    with asyncio.Runner() as runner:
        # Not by its own `run`, which would make of a Ctrl-C the cancellation of a handler.
        return runner.get_loop().run_until_complete(executor.run_async(attempt))


def _beside_the_loop(executor: Executor, attempt: Attempt) -> Settlement:
    """A loop runs in this thread already, and cannot run another inside: so it is run in a thread, and waited for."""
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1, "holdfast-test") as threads:
        return threads.submit(copy_context().run, _on_a_loop, executor, attempt).result()


def _is_for_the_test(error: BaseException) -> bool:
    """`pytest.fail()`, a Ctrl-C; not what a worker takes for a failure of the handler as well as an Exception."""
    from asyncio import CancelledError

    return not isinstance(error, (Exception, SystemExit, GeneratorExit, CancelledError))


def _ending(claimed: Claimed, settlement: Settlement) -> Ending:
    """A retry after the last attempt is a failure."""
    if settlement.transition == "retry" and claimed.attempt >= claimed.max_attempts:
        return "failed"
    return ENDINGS[settlement.transition]


def raise_first_error(ran: Sequence[Ran]) -> None:
    """What the first of these raised, with a note of the job that it was."""
    for one in ran:
        if one.error is not None:
            one.error.add_note(f"Raised by job {one.job_id}, {one.task}, attempt {one.attempt}: {one.outcome}.")
            raise one.error


def never_idle(ran: Sequence[Ran], advice: str) -> NeverIdle:
    """Says who it is that goes on for ever, most likely."""
    task, _ = Counter(one.task for one in ran).most_common(1)[0]
    attempts: Counter[Any] = Counter(one.job_id for one in ran if one.task == task)
    job_id, times = attempts.most_common(1)[0]
    if times >= len(attempts):
        outcome = next(one.outcome for one in reversed(ran) if one.job_id == job_id)
        culprit = f"job {job_id} of {task} was run {times} times, and {outcome} the last time"
    else:
        culprit = f"{len(attempts)} jobs of {task} were run, up to job {max(attempts)}, as if each enqueued the next"
    return NeverIdle(f"{len(ran)} attempts were run, and there is still more to run: {culprit}. {advice}")
