"""Batches: many jobs, and one more when all of them have ended. `app.batch(…)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import Struct
from msgspec.structs import replace

from .. import validate
from ..clock import as_datetime
from ..errors import BatchNotFound, HoldfastError, InvalidInput, JobNotFound, StillAwaited
from ..failure import shorten
from ..model.job import STATUSES, JobRecord, NewJob, Page, Status
from ..model.workflow import BatchRecord
from .job import Job, still
from .jobs import Filters, criteria, page_of
from .waiting import wait_until

if TYPE_CHECKING:
    from .app import App
    from .job import Job
    from .task import BoundTask


class Step:
    """A task with its arguments and options, checked. Immutable, and enqueued by what takes steps."""

    def __init__(self, task: BoundTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._task, self._arguments = task, task.encode(args, kwargs)

    @property
    def app(self) -> App:
        return self._task.app

    def new_job(self) -> NewJob:
        if self._task.conn is not None:
            raise InvalidInput(f"{self!r} takes no conn: it is enqueued later, or by what takes it")
        return self._task.new_job(self._arguments)

    def enqueue_after(self, jobs: Sequence[Job[Any]], conn: Any) -> Job[Any]:
        """Behind these jobs, and behind what its own `after=` names."""
        return self._task.behind([job.id for job in jobs], conn).enqueue_encoded(self._arguments)

    def __repr__(self) -> str:
        return f"<Step of {self._task!r}>"


class Group:
    """Steps that may run at the same time."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return f"<Group of {len(self.steps)}>"


def group(*steps: Step) -> Group:
    """Steps that may run at the same time, as one link of `app.pipeline(…)`: what comes next waits for all of them."""
    if not steps:
        raise InvalidInput("a group has at least one step, such as group(resize.s(1), resize.s(2))")
    for step in steps:
        _require_step(step, "a group takes steps")
    return Group(steps)


def enqueue_in_line(app: App, links: Sequence[Step | Group], conn: Any) -> list[Job[Any]]:
    """Each link waits for all jobs of the one before."""
    made: list[Job[Any]] = []
    before: list[Job[Any]] = []
    for link in links:
        before = [step.enqueue_after(before, conn) for step in (link.steps if isinstance(link, Group) else (link,))]
        made += before
    for job in made:
        app.tell_inline([job.id], conn)
    return made


def check_links(app: App, links: Sequence[Any]) -> None:
    if not links:
        raise InvalidInput("a pipeline must have at least one step, such as app.pipeline(fetch.s(1), store.s())")
    for link in links:
        for step in link.steps if isinstance(link, Group) else (link,):
            _require_step(step, "a pipeline takes steps and groups of them")
            app.require_own(step)


def callback(app: App, value: Any, what: str) -> NewJob | None:
    """What `on_success` and `on_done` name: a task, one with options, or a step."""
    if value is None:
        return None
    step = value if isinstance(value, Step) else value.s() if hasattr(value, "s") else None
    if not isinstance(step, Step):
        raise InvalidInput(f"{what} takes a task, such as report or report.s(7), not {validate.shown(value)}")
    app.require_own(step)
    job, tracing = step.new_job(), app._tracing
    job = job if tracing is None else replace(job, trace=tracing.current())
    if job.links is not None or job.key is not None:
        raise InvalidInput(f"{what} is enqueued when the batch has ended: it takes no after, batch or key")
    return job


def _require_step(step: Any, rule: str) -> None:
    if not isinstance(step, Step):
        raise InvalidInput(f"{rule}, such as fetch.s(1), not {validate.shown(step)}")


class Chain:
    """A chain as it was when it was last read. Every job is a chain of at least one."""

    def __init__(self, app: App, last: JobRecord) -> None:
        self._app, self._last = app, last

    @property
    def app(self) -> App:
        """The app through which it was read."""
        return self._app

    @property
    def id(self) -> int:
        """The id of its first job, its root."""
        return self._last.chain

    @property
    def status(self) -> Status:
        """That of its last job."""
        return self._last.status

    @property
    def length(self) -> int:
        """How many jobs it has so far."""
        return self._last.chain_index + 1

    @property
    def last(self) -> Job[Any]:
        return Job(self._app, self._last)

    @property
    def result(self) -> Any:
        """The result of its last job; None while there is none."""
        return self.last.result

    @property
    def is_finished(self) -> bool:
        return self.last.is_finished

    @property
    def finished_at(self) -> datetime | None:
        return self.last.finished_at

    def jobs(self) -> list[Job[Any]]:
        """Its jobs, in order, as they are now."""
        return [Job(self._app, record) for record in self._app.store.workflows.chain(self.id)]

    def refresh(self) -> Chain:
        """Read its last job again, which may be another, and return it."""
        self._last = _end_of(self._app, self.id)
        return self

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its end and return the last job's result. Raises JobFailed, or WaitTimeout after the seconds."""
        wait_until(self._app.store, lambda: self.refresh().is_finished, timeout, self._describe)
        if self.status != "succeeded":
            raise self.last.failure()
        return self.result

    def _describe(self) -> str:
        return still(f"chain {self.id}", self.last)

    def __repr__(self) -> str:
        return f"<Chain {self.id}: {self.status} at job {self._last.id}, {self.length} so far>"


class Chains:
    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Chain:
        """The chain of this id, or that the job of this id belongs to."""
        return Chain(self._app, _end_of(self._app, self._app.jobs.get(id).chain_id))

    def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[Filters]) -> Page[Chain]:
        """Newest first. `status` is that of the chain; the other filters are about its first job."""
        wanted = criteria(filters)
        wanted = replace(wanted, status=(), chain_status=wanted.status, roots=True, messages=False)
        page = page_of(self._app.store, wanted, limit, cursor)
        chains = [Chain(self._app, root if not root.continued else _end_of(self._app, root.id)) for root in page]
        return Page(chains, page.next, page.previous, page.looked_at)

    def delete(self, id: int, *, cascade: bool = False, actor: str | None = None, reason: str = "") -> bool:
        """Remove all its jobs, with their attempts and events. False if one of them is running: cancel it first.

        Where others wait for it, StillAwaited is raised. With `cascade`, they and their chains are deleted, too.
        """
        validate.flag(cascade, "cascade")
        chain_id = self._app.jobs.get(id).chain_id
        by = validate.actor(actor), validate.reason(reason)
        deletion = self._app.store.workflows.delete_chain(chain_id, cascade, *by)
        if deletion.waiting:
            raise StillAwaited(chain_id, deletion.waiting)
        return bool(deletion.ids)


def _end_of(app: App, chain_id: int) -> JobRecord:
    found = app.store.workflows.chain(chain_id, last_only=True)
    if not found:
        raise JobNotFound(f"chain {chain_id} is gone: it was deleted")
    return found[0]


class BatchProgress(Struct, frozen=True):
    """How far a batch is. A member that goes on as a chain counts once, by how its chain stands."""

    total: int
    blocked: int
    scheduled: int
    ready: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    deleted: int
    """Members that were deleted and had not succeeded. They are not in `total`, and keep `on_success` from firing."""
    sealed: bool
    """Whether the block that made it has ended. Before that, it is never done."""
    done_at: datetime | None
    """When all members had ended, or None."""

    @property
    def pending(self) -> int:
        """How many have not ended."""
        return self.blocked + self.scheduled + self.ready + self.running

    @property
    def ended(self) -> int:
        return self.total - self.pending

    @property
    def is_done(self) -> bool:
        """Whether it has ended as a whole."""
        return self.done_at is not None


class Batch:
    """`with app.batch(on_done=report) as batch:` makes one; `app.batches.get(id)` and `ctx.batch` find it again."""

    def __init__(self, app: App, id: int | None, make: Callable[[], int] | None = None, conn: Any = None) -> None:
        self._app, self._id, self._make, self._conn = app, id, make, conn

    @property
    def app(self) -> App:
        """The app that it was made or found with."""
        return self._app

    @property
    def id(self) -> int:
        if self._id is None:
            raise InvalidInput("a batch is made by its block: with app.batch(…) as batch:")
        return self._id

    def progress(self) -> BatchProgress:
        return _progress(self._read())

    def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until all members have ended. Raises WaitTimeout after so many seconds."""
        found: list[BatchProgress] = []

        def is_done() -> bool:
            found[:] = [self.progress()]
            return found[0].is_done

        wait_until(
            self._app.store, is_done, timeout, lambda: f"batch {self.id} has {found[0].pending} members to end"
        )
        return found[0]

    @property
    def success_job_id(self) -> int | None:
        """The job that `on_success` became, or None."""
        return self._read().success_job_id

    @property
    def done_job_id(self) -> int | None:
        """The job that `on_done` became, or None."""
        return self._read().done_job_id

    def _read(self) -> BatchRecord:
        record = self._app.store.workflows.batch(self.id)
        if record is None:
            raise BatchNotFound(f"there is no batch {self.id}: it never existed, or was rolled back or deleted")
        return record

    def seal(self) -> None:
        """No more members but those that members add: from now on it is done when all have ended.

        The end of its block does this. By hand it is for a batch whose process died inside the block.
        """
        self._app.store.workflows.close_batch(self.id, self._conn)
        self._tell_inline()

    def __enter__(self) -> Self:
        if self._make is None:
            raise InvalidInput(f"{self!r} was made already: only what app.batch(…) gives is entered, and once")
        self._id, self._make = self._make(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.seal()
            return
        reason = shorten(f"batch {self.id} was given up: {type(error).__name__} in the block that made it")
        try:
            self._app.store.workflows.close_batch(self.id, self._conn, cancel=reason)
        except HoldfastError as second:  # the first is what the program must see
            error.add_note(f"Its batch {self.id} could not be given up: {second}")

    def _tell_inline(self) -> None:
        if self._conn is None and self._app._inline is not None:
            record = self._read()
            jobs = [one for one in (record.done_job_id, record.success_job_id) if one is not None]
            self._app.tell_inline(jobs, None)

    def __repr__(self) -> str:
        return "<Batch, not made yet>" if self._id is None else f"<Batch {self._id}>"


class Batches:
    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Batch:
        batch = Batch(self._app, validate.integer(id, "a batch id", 1, 2**63 - 1))
        batch.progress()  # raises where there is none
        return batch


def _progress(record: BatchRecord) -> BatchProgress:
    counts = {status: record.counts.get(status, 0) for status in STATUSES}
    return BatchProgress(
        total=sum(counts.values()),
        **counts,
        deleted=record.deleted,
        sealed=record.sealed_at is not None,
        done_at=None if record.done_at is None else as_datetime(record.done_at),
    )


def batch_id(value: Any) -> int | None:
    """What `batch=` takes. None is none, so that `batch=ctx.batch` is always right."""
    if value is not None and not isinstance(value, Batch):
        raise InvalidInput(f"batch takes what app.batch(…) gives, not {validate.shown(value)}")
    return None if value is None else value.id
