"""Jobs that run as soon as they are enqueued, in the thread that enqueues them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from .. import validate
from ..app import App
from ..errors import InvalidInput
from ..model.job import TERMINAL, ClaimRequest, Sweep
from .runner import Ran, lease_of, never_idle, raise_first_error, run_claimed

T = TypeVar("T")
DEEPEST = 10
Stored = tuple[App, int]


@contextmanager
def inline(app: App | None = None, *, raise_errors: bool = True, limit: int = 1000) -> Iterator[None]:
    """Within the block, `enqueue` stores the job as always and then runs it, in this thread, before it returns.

    app: whose jobs; by default those of every app.
    raise_errors: raise what a handler raised at whoever enqueued the job, after the job was settled.
    limit: so many attempts may follow from one enqueue; after that, NeverIdle. An `enqueue_many` counts as one.

    What is scheduled for later is stored and not run. A job of a transaction runs when `app.transaction()` has
    committed; one of a connection of your own at the next enqueue, or at the end of the block.
    """
    if app is not None and not isinstance(app, App):
        raise InvalidInput(f"inline takes an app or nothing, as in inline(app), not {validate.shown(app)}")
    flag, number = validate.flag(raise_errors, "raise_errors"), validate.integer(limit, "limit", 1, 2**31)
    runner, place = _Inline(flag, number), App if app is None else app
    before = vars(place).get("_inline")
    place._inline = runner
    try:
        yield
        runner.run_committed()
    finally:
        if before is None and app is not None:
            del app._inline  # so that it is as its class says
        else:
            place._inline = before


class _Round:
    """One enqueue and all that follows from it: its job, the jobs that its handler enqueues, and theirs."""

    def __init__(self, jobs: Sequence[Stored], limit: int) -> None:
        self.line = deque(jobs)
        self.limit = limit + len(jobs) - 1
        self.ran: list[Ran] = []
        self.begun = self.depth = 0
        self.is_endless = self.is_over = False


_round: ContextVar[_Round | None] = ContextVar("holdfast_inline_round", default=None)


class _Inline:
    def __init__(self, raise_errors: bool, limit: int) -> None:
        self._raise_errors, self._limit = raise_errors, limit
        self._uncommitted: deque[Stored] = deque()

    def enqueued(self, app: App, ids: Sequence[int], conn: Any) -> None:
        jobs = [(app, job_id) for job_id in ids]
        if conn is None:
            self._run([*self._committed(), *jobs])
        else:
            self._uncommitted.extend(jobs)

    def ended(self, app: App, job_id: int) -> None:
        self._run([(app, follower) for follower in _followers(app, job_id)])

    @contextmanager
    def after_commit(self, app: App, transaction: AbstractContextManager[T]) -> Iterator[T]:  # noqa: ARG002
        with transaction as opened:
            yield opened
        self.run_committed()

    def run_committed(self) -> None:
        self._run(self._committed())

    def _committed(self) -> list[Stored]:
        """Of the jobs that were enqueued into transactions, those that are there now."""
        found: list[Stored] = []
        for _ in range(len(self._uncommitted)):
            try:
                app, job_id = self._uncommitted.popleft()
            except IndexError:  # another thread was faster
                break
            record = app.store.jobs.get(job_id)
            if record is None:
                self._uncommitted.append((app, job_id))
            elif record.task in app.tasks:  # or it was rolled back, and another has its id
                found.append((app, job_id))
        return found

    def _run(self, jobs: Sequence[Stored]) -> None:
        running = _round.get()
        if running is None or running.is_over:
            self._run_round(jobs)
        elif running.depth >= DEEPEST:
            running.line.extend(jobs)  # a long chain must not use up Python's stack
        else:
            running.depth += 1
            try:
                for job in jobs:
                    self._run_one(running, *job)
            finally:
                running.depth -= 1

    def _run_round(self, jobs: Sequence[Stored]) -> None:
        """Errors are raised here and not where a handler enqueues: there, no worker would raise them."""
        begun = _Round(jobs, self._limit)
        token = _round.set(begun)
        try:
            while begun.line:
                self._run_one(begun, *begun.line.popleft())
        finally:
            begun.is_over = True
            _round.reset(token)
        if begun.is_endless:
            raise never_idle(begun.ran, "If that is meant, pass a larger limit=")
        if self._raise_errors:
            raise_first_error(begun.ran)

    def _run_one(self, running: _Round, app: App, job_id: int) -> None:
        if running.begun >= running.limit:
            running.is_endless = True
            return
        wanted = ClaimRequest((), 1, lease_of(app), app.store.actor, job_id=job_id)
        claimed = next(iter(app.store.jobs.settle_and_claim([], [wanted]).claimed), None)
        if claimed is not None:
            running.begun += 1
            running.ran.append(run_claimed(app, claimed))
            running.line.extend((app, follower) for follower in _followers(app, job_id))


def _followers(app: App, job_id: int) -> list[int]:
    """What became ready by the end of this job: the next of its chain, who waited for it, what its batch calls."""
    app.store.jobs.sweep(Sweep.ENDINGS)  # as a worker's next look would, for what was too much for one transaction
    found, ended = list[int](), [app.store.jobs.get(job_id)]
    seen = set[int]()
    while ended:
        record = ended.pop()
        if record is None or record.chain in seen:
            continue
        seen.add(record.chain)
        batch = None if record.batch_id is None else app.store.workflows.batch(record.batch_id)
        called = [] if batch is None else [batch.done_job_id, batch.success_job_id]
        last = app.store.workflows.chain(record.chain, last_only=True)
        waiting = app.store.workflows.waiting_for(record.chain, -1, include_finished=True).found
        for one in [*last, *(app.store.jobs.get(id) for id in called if id is not None), *waiting]:
            if one is None or one.id == job_id:
                continue
            if one.status == "ready":
                found.append(one.id)
            elif one.status in TERMINAL:  # since it was not to wait in vain
                ended.append(one)
    return found
