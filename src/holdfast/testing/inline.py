"""Run jobs as soon as they are enqueued, in the thread that enqueues them."""

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
from ..worker.housekeeping import FailureReporter
from .drain import Ran, lease_of, never_idle, raise_first_error, run_claimed

T = TypeVar("T")
MAX_DEPTH = 10  # of jobs that run inside each other
Stored = tuple[App, int]


@contextmanager
def inline(app: App | None = None, *, raise_errors: bool = True, limit: int = 1000) -> Iterator[None]:
    """Within the block, `enqueue` stores the job and then runs it, in the calling thread, before it returns.

    app: run only its jobs; by default those of every app.
    raise_errors: raise the exception of a handler from `enqueue`, after the job was settled.
    limit: the maximum number of attempts that follow from one `enqueue` or `enqueue_many`; then NeverIdle is raised.

    Jobs that are scheduled for later are stored and not run. A job of a transaction runs when `app.transaction()` has
    committed; a job enqueued with `conn=` runs at the next enqueue after the commit, or at the end of the block.
    """
    if app is not None and not isinstance(app, App):
        raise InvalidInput(f"inline: app must be a Holdfast or None, got {validate.shown(app)}: write inline(app)")
    flag, number = validate.flag(raise_errors, "raise_errors"), validate.integer(limit, "limit", 1, 2**31)
    runner, target = _Inline(flag, number), App if app is None else app
    before = vars(target).get("_inline")
    target._inline = runner
    try:
        yield
        runner.run_committed()
    finally:
        if before is None and app is not None:
            del app._inline  # so that the attribute of the class applies again
        else:
            target._inline = before


class _Round:
    """One enqueue and all that follows from it: its job, the jobs that its handler enqueues, and so on."""

    def __init__(self, jobs: Sequence[Stored], limit: int) -> None:
        self.queue = deque(jobs)
        self.limit = limit + len(jobs) - 1
        self.ran: list[Ran] = []
        self.started = self.depth = 0
        self.hit_limit = self.is_over = False


_round: ContextVar[_Round | None] = ContextVar("holdfast_inline_round", default=None)


class _Inline:
    """Runs jobs when they are enqueued. `App` calls its methods."""

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
        """Return the jobs among those enqueued in transactions that are committed now."""
        found: list[Stored] = []
        for _ in range(len(self._uncommitted)):
            try:
                app, job_id = self._uncommitted.popleft()
            except IndexError:  # another thread took it
                break
            record = app.store.jobs.get(job_id)
            if record is None:
                self._uncommitted.append((app, job_id))
            elif record.task in app.tasks:  # otherwise it was rolled back, and its id was used again
                found.append((app, job_id))
        return found

    def _run(self, jobs: Sequence[Stored]) -> None:
        running = _round.get()
        if running is None or running.is_over:
            self._run_round(jobs)
        elif running.depth >= MAX_DEPTH:
            running.queue.extend(jobs)  # a long chain must not overflow Python's stack
        else:
            running.depth += 1
            try:
                for job in jobs:
                    self._run_one(running, *job)
            finally:
                running.depth -= 1

    def _run_round(self, jobs: Sequence[Stored]) -> None:
        """Run the jobs and all that follow. Errors are raised here, not from an `enqueue` inside a handler.

        With a worker, that `enqueue` would not raise them either.
        """
        current = _Round(jobs, self._limit)
        token = _round.set(current)
        try:
            while current.queue:
                self._run_one(current, *current.queue.popleft())
        finally:
            current.is_over = True
            _round.reset(token)
        if current.hit_limit:
            raise never_idle(current.ran, "If this is intended, pass a larger limit=")
        if self._raise_errors:
            raise_first_error(current.ran)

    def _run_one(self, running: _Round, app: App, job_id: int) -> None:
        if running.started >= running.limit:
            running.hit_limit = True
            return
        wanted = ClaimRequest((), 1, lease_of(app), app.store.actor, job_id=job_id)
        claimed = next(iter(app.store.jobs.settle_and_claim([], [wanted]).claimed), None)
        if claimed is not None:
            reporter = FailureReporter(app.store, app.failure_hooks())
            reporter.report()
            running.started += 1
            running.ran.append(run_claimed(app, claimed))
            running.queue.extend((app, follower) for follower in [*_followers(app, job_id), *reporter.report()])


def _followers(app: App, job_id: int) -> list[int]:
    """Return the jobs that this job's end made ready: the next of its chain, waiting jobs, callbacks of its batch."""
    app.store.jobs.sweep(Sweep.ENDINGS)  # as a worker's next claim would, if there was too much for one transaction
    found, ended = list[int](), [app.store.jobs.get(job_id)]
    seen = set[int]()
    while ended:
        record = ended.pop()
        if record is None or record.chain in seen:
            continue
        seen.add(record.chain)
        batch = None if record.batch_id is None else app.store.workflows.batch(record.batch_id, counted=False)
        callbacks = [] if batch is None else [batch.done_job_id, batch.success_job_id]
        last = app.store.workflows.chain(record.chain, last_only=True)
        waiting = app.store.workflows.waiting_for(record.chain, -1, include_finished=True).found
        for one in [*last, *(app.store.jobs.get(id) for id in callbacks if id is not None), *waiting]:
            if one is None or one.id == job_id:
                continue
            if one.status == "ready":
                found.append(one.id)
            elif one.status in TERMINAL:  # failed or cancelled because of its blocker
                ended.append(one)
    return found
