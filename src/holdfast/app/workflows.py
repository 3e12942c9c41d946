"""Jobs that belong together: steps and groups of a pipeline, chains, batches, and the relations of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from .. import validate
from ..clock import with_times
from ..errors import BatchNotFound, HasWaitingJobs, HoldfastError, InvalidInput, JobNotFound, NoResult
from ..failure import shorten
from ..model.job import STATUSES, TERMINAL, JobRecord, NewJob, Page, Status
from ..model.workflow import BATCH_STATES, BatchRecord, BatchState, Blocker
from ..text import plural
from .job import Job, still
from .jobs import Filters, criteria, page_by_id, page_of
from .waiting import WaitForEnd, finish_in_thread, in_thread

if TYPE_CHECKING:
    from .app import App
    from .job import Job
    from .task import BoundTask, Task

T = TypeVar("T")


class Step:
    """A call of a task with checked arguments and options, which is not enqueued yet. Immutable."""

    def __init__(self, task: BoundTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._task, self._arguments = task, task.encode(args, kwargs)

    @property
    def app(self) -> App:
        return self._task.app

    def new_job(self) -> NewJob:
        if self._task.conn is not None:
            raise InvalidInput(f"{self!r} does not take conn: pass it to app.batch or app.pipeline")
        return self._task.new_job(self._arguments)

    def enqueue_after(self, jobs: Sequence[Job[Any]], conn: Any) -> Job[Any]:
        """Enqueue the step with these jobs as blockers, besides those of its own `after=`."""
        return self._task.behind([job.id for job in jobs], conn).enqueue_encoded(self._arguments)

    def __repr__(self) -> str:
        return f"<Step of {self._task!r}>"


class Group:
    """Steps of a pipeline that may run at the same time."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return f"<Group of {len(self.steps)}>"


def group(*steps: Step) -> Group:
    """Return a group of steps for `app.pipeline(…)`: they may run at once; the next step waits for all of them."""
    if not steps:
        raise InvalidInput("a group must have at least one step, such as group(resize.s(1), resize.s(2))")
    for step in steps:
        _require_step(step, "a group must be made of steps")
    return Group(steps)


def enqueue_pipeline(app: App, steps: Sequence[Step | Group], conn: Any) -> list[Job[Any]]:
    """Enqueue the steps, each with all jobs of the step before it as blockers."""
    jobs: list[Job[Any]] = []
    before: list[Job[Any]] = []
    for step in steps:
        before = [one.enqueue_after(before, conn) for one in (step.steps if isinstance(step, Group) else (step,))]
        jobs += before
    for job in jobs:
        app._tell_inline([job.id], conn)
    return jobs


def check_steps(app: App, steps: Sequence[Any]) -> None:
    if not steps:
        raise InvalidInput("a pipeline must have at least one step, such as app.pipeline(fetch.s(1), store.s())")
    for step in steps:
        for one in step.steps if isinstance(step, Group) else (step,):
            _require_step(one, "a pipeline must be made of steps and groups of steps")
            app._require_own(one)


def callback(app: App, value: Any, what: str) -> NewJob | None:
    """Return the job for `on_success` or `on_done`, which take a task, `task.using(…)` or a step."""
    if value is None:
        return None
    step = value if isinstance(value, Step) else value.s() if hasattr(value, "s") else None
    if not isinstance(step, Step):
        raise InvalidInput(f"{what} must be a task, such as report or report.s(7), got {validate.shown(value)}")
    app._require_own(step)
    job, tracing = step.new_job(), app._tracing
    job = job if tracing is None else replace(job, trace=tracing.current())
    if job.links is not None or job.key is not None:
        raise InvalidInput(f"{what} is enqueued when the batch is done, so it does not take after, batch or key")
    return job


def _require_step(step: Any, rule: str) -> None:
    if not isinstance(step, Step):
        raise InvalidInput(f"{rule}, such as fetch.s(1), got {validate.shown(step)}")


class Chain:
    """A job and the jobs it continued with by `Then`, as last read. A job that did not continue is a chain of one."""

    def __init__(self, app: App, last: JobRecord) -> None:
        self._app, self._last = app, last

    @property
    def app(self) -> App:
        """The app that the chain was read with."""
        return self._app

    @property
    def id(self) -> int:
        """The id of the first job, the root of the chain."""
        return self._last.chain

    @property
    def status(self) -> Status:
        """The status of the last job."""
        return self._last.status

    @property
    def length(self) -> int:
        """The number of jobs so far."""
        return self._last.chain_index + 1

    @property
    def last(self) -> Job[Any]:
        return Job(self._app, self._last)

    @property
    def result(self) -> Any:
        """The result of the last job; None until it has one."""
        return self.last.result

    @property
    def is_finished(self) -> bool:
        return self.last.is_finished

    @property
    def finished_at(self) -> datetime | None:
        return self.last.finished_at

    def jobs(self) -> list[Job[Any]]:
        """Read all jobs of the chain, in order."""
        return [Job(self._app, record) for record in self._app.store.workflows.chain(self.id)]

    def refresh(self) -> Chain:
        """Read the last job of the chain again, and return the chain."""
        self._last = _end_of(self._app, self.id)
        return self

    @overload
    def wait(self, timeout: float | None = None) -> Any: ...
    @overload
    def wait(self, timeout: float | None = None, *, last: Task[..., T] | None) -> T: ...
    def wait(self, timeout: float | None = None, *, last: Task[..., Any] | None = None) -> Any:
        """Wait until the chain has ended, and return the result of its last job. Raises JobFailed or WaitTimeout.

        last: the task that it is expected to end with: see `Job.wait_chain`.
        """
        self._end(timeout).run()
        return self._outcome(last)

    @overload
    async def await_result(self, timeout: float | None = None) -> Any: ...
    @overload
    async def await_result(self, timeout: float | None = None, *, last: Task[..., T] | None) -> T: ...
    async def await_result(self, timeout: float | None = None, *, last: Task[..., Any] | None = None) -> Any:
        """Do the same as `wait` in a coroutine. While it waits it holds no thread."""
        await self._end(timeout).run_async()
        return await finish_in_thread(lambda: self._outcome(last))

    def _end(self, timeout: float | None) -> WaitForEnd:
        return WaitForEnd(
            self._app.store,
            ("chain", self.id),
            lambda: self.refresh().is_finished,
            timeout,
            lambda: still(f"chain {self.id}", self.last),
        )

    def _outcome(self, last: Task[..., Any] | None) -> Any:
        if last is not None and self.status == "succeeded" and self._last.task != last.name:
            raise NoResult(f"chain {self.id} ended with {self._last.task}, not with {last.name}")
        return self.last._outcome()

    arefresh, ajobs = in_thread(refresh), in_thread(jobs)

    def __repr__(self) -> str:
        return f"<Chain {self.id}: {self.status} at job {self._last.id}, {self.length} so far>"


class Chains:
    """`app.chains`: look at chains and delete them."""

    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Chain:
        """Return the chain that the job with this id belongs to. Raises JobNotFound."""
        return Chain(self._app, _end_of(self._app, self._app.jobs.get(id).chain_id))

    def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[Filters]) -> Page[Chain]:
        """Return a page of chains, newest first. `status` is the chain's; other filters are about its first job."""
        wanted = criteria(filters)
        wanted = replace(wanted, status=(), chain_status=wanted.status, roots=True, messages=False)
        page = page_of(self._app.store, wanted, limit, cursor)
        chains = [Chain(self._app, root if not root.continued else _end_of(self._app, root.id)) for root in page]
        return Page(chains, page.next, page.previous, page.scanned)

    def delete(self, id: int, *, cascade: bool = False, actor: str | None = None, reason: str = "") -> bool:
        """Delete all jobs of the chain, with their attempts and events. False if one is running: cancel it first.

        Raises HasWaitingJobs if other jobs wait for the chain. `cascade` deletes them and their chains, too.
        """
        validate.flag(cascade, "cascade")
        chain_id = self._app.jobs.get(id).chain_id
        by = validate.actor(actor), validate.reason(reason)
        deletion = self._app.store.workflows.delete_chain(chain_id, cascade, *by)
        if deletion.waiting:
            raise HasWaitingJobs(chain_id, deletion.waiting)
        return bool(deletion.ids)

    aget, alist, adelete = in_thread(get), in_thread(list), in_thread(delete)


def _end_of(app: App, chain_id: int) -> JobRecord:
    found = app.store.workflows.chain(chain_id, last_only=True)
    if not found:
        raise JobNotFound(f"there is no chain {chain_id} any more: it was deleted")
    return found[0]


class BatchProgress(Struct, frozen=True):
    """The members of a batch by status. A member that continued as a chain counts once, by its chain's status."""

    id: int
    """The id of the batch."""
    created_at: datetime
    total: int
    blocked: int
    scheduled: int
    ready: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    deleted: int
    """Members that were deleted before they succeeded. They are not in `total`, and prevent `on_success`."""
    sealed: bool
    """Whether the block that made the batch has ended. A batch is not done before that."""
    abandoned: bool
    """Whether it was sealed although its block had not ended: the block raised, or its process died."""
    done_at: datetime | None
    """When all members had finished, or None. A retry of members sets it to None again."""
    more: bool = False
    """Whether there are more members than were counted. `app.batches.list` counts up to 1,000 of each status."""

    @property
    def state(self) -> Literal["open", "running", "done"]:
        """Open until the block has ended, then running until all members have finished."""
        if self.done_at is not None:
            return "done"
        return "running" if self.sealed else "open"

    @property
    def pending(self) -> int:
        """Members that have not finished."""
        return self.blocked + self.scheduled + self.ready + self.running

    @property
    def finished(self) -> int:
        """Members that succeeded, failed or were cancelled."""
        return self.total - self.pending

    @property
    def is_done(self) -> bool:
        """Whether the batch is done: its block has ended, and all members have finished."""
        return self.done_at is not None


class Batch:
    """Jobs with callbacks. `with app.batch(…) as batch:` makes one; `app.batches.get(id)` and `ctx.batch` find it."""

    def __init__(self, app: App, id: int | None, make: Callable[[], int] | None = None, conn: Any = None) -> None:
        self._app, self._id, self._make, self._conn = app, id, make, conn

    @property
    def app(self) -> App:
        """The app that the batch was made or found with."""
        return self._app

    @property
    def id(self) -> int:
        if self._id is None:
            raise InvalidInput("the batch does not exist yet: enter its block first, with app.batch(…) as batch:")
        return self._id

    def progress(self) -> BatchProgress:
        """Read how many members have which status."""
        return _progress(self._read(counted=True))

    def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until the batch is done, and return its progress. Raises WaitTimeout after `timeout` seconds."""
        found: list[BatchProgress] = []
        self._end(timeout, found).run()
        return found[-1]

    async def await_done(self, timeout: float | None = None) -> BatchProgress:
        """Do the same as `wait` in a coroutine. While it waits it holds no thread."""
        found: list[BatchProgress] = []
        await self._end(timeout, found).run_async()
        return found[-1]

    def _end(self, timeout: float | None, found: list[BatchProgress]) -> WaitForEnd:
        def is_done() -> bool:
            found[:] = [self.progress()]
            return found[0].is_done

        return WaitForEnd(
            self._app.store,
            ("batch", self.id),
            is_done,
            timeout,
            lambda: f"batch {self.id} has {plural(found[0].pending, 'unfinished member')}",
        )

    aprogress = in_thread(progress)

    @property
    def creator(self) -> str | None:
        """The process that made it, as it is named in the event log; None if it was made by plain SQL."""
        return self._read().creator

    @property
    def success_job_id(self) -> int | None:
        """The id of the job that `on_success` became, or None."""
        return self._read().success_job_id

    @property
    def done_job_id(self) -> int | None:
        """The id of the job that `on_done` became, or None."""
        return self._read().done_job_id

    def _read(self, *, counted: bool = False) -> BatchRecord:
        record = self._app.store.workflows.batch(self.id, counted=counted)
        if record is None:
            raise BatchNotFound(f"there is no batch {self.id}: it never existed, or was rolled back or deleted")
        return record

    def seal(self) -> None:
        """Close the batch for new members, except those that its members add. It is done when all have finished.

        The end of the block does this. If its process dies before that, a worker does: see `BatchProgress.abandoned`.
        """
        self._seal(ends_block=False)

    def _seal(self, *, ends_block: bool) -> None:
        self._app.store.workflows.close_batch(self.id, self._conn, ends_block=ends_block)
        self._tell_inline()

    def __enter__(self) -> Self:
        if self._make is None:
            raise InvalidInput(f"{self!r} exists already: only a new app.batch(…) can be entered, and only once")
        self._id, self._make = self._make(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._seal(ends_block=True)
        else:
            self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        reason = shorten(f"{type(error).__name__} in the block that made it")
        try:
            close = self._app.store.workflows.close_batch
            close(self.id, self._conn, abandoned=reason, cancel=True, ends_block=True)
        except HoldfastError as second:  # the program must see the first error
            error.add_note(f"The members of batch {self.id} could not be cancelled: {second}")

    def _tell_inline(self) -> None:
        if self._conn is None and self._app._inline is not None:
            record = self._read()
            jobs = [one for one in (record.done_job_id, record.success_job_id) if one is not None]
            self._app._tell_inline(jobs, None)

    def __repr__(self) -> str:
        return "<Batch, not made yet>" if self._id is None else f"<Batch {self._id}>"


class Batches:
    """`app.batches`: find batches and operate on them."""

    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Batch:
        """Return the batch with this id. Raises BatchNotFound."""
        batch = Batch(self._app, validate.integer(id, "batch id", 1, 2**63 - 1))
        batch._read()  # raises BatchNotFound
        return batch

    def list(
        self, *, state: BatchState | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[BatchProgress]:
        """Return a page of batches with their progress, newest first. Members are counted up to 1,000 per status.

        state: "open", "running", "done", or "abandoned", which are those whose block did not end.
        """
        if state is not None and state not in BATCH_STATES:
            raise InvalidInput(f"state must be one of {', '.join(sorted(BATCH_STATES))}, got {validate.shown(state)}")
        read = self._app.store.workflows.batches
        page = page_by_id(lambda most, place: read(state, most, place), limit, cursor)
        return Page([_progress(record) for record in page], page.next, page.previous)

    def seal(self, id: int, *, reason: str = "", actor: str | None = None) -> bool:
        """Seal an open batch as the end of its block does. False if it was sealed already."""
        who, why = validate.actor(actor), validate.reason(reason)
        return self._app.store.workflows.close_batch(self.get(id).id, actor=who, reason=why)

    def cancel(self, id: int, *, reason: str = "", actor: str | None = None) -> int:
        """Cancel the unfinished members, and return how many. `on_done` runs, `on_success` does not.

        An open batch is sealed, so its block cannot add members any more once all have finished.
        """
        batch = self.get(id)
        if batch._read().sealed_at is None:
            why = "cancelled before its block had ended" + (f": {validate.reason(reason)}" if reason else "")
            self._app.store.workflows.close_batch(batch.id, abandoned=shorten(why), actor=validate.actor(actor))
        return self._app.jobs.cancel(batch=batch.id, status=sorted(STATUSES - TERMINAL), reason=reason, actor=actor)

    def retry(
        self,
        id: int,
        *,
        delay: float = 0,
        attempts: int | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> int:
        """Run the failed members again, and return how many. attempts: by default as `app.jobs.retry`.

        The batch is done again when they have finished. `on_done` does not run a second time; `on_success` runs if
        all members have succeeded then.
        """
        batch = self.get(id)
        how: dict[str, Any] = {} if attempts is None else {"attempts": attempts}
        return self._app.jobs.retry(batch=batch.id, status="failed", delay=delay, actor=actor, reason=reason, **how)

    aget, alist, aseal = in_thread(get), in_thread(list), in_thread(seal)
    acancel, aretry = in_thread(cancel), in_thread(retry)


def _progress(record: BatchRecord) -> BatchProgress:
    counts = {status: record.counts.get(status, 0) for status in STATUSES}
    total, sealed, abandoned = sum(counts.values()), record.sealed_at is not None, record.abandoned_at is not None
    return with_times(BatchProgress, record, **counts, total=total, sealed=sealed, abandoned=abandoned)


def batch_id(value: Any) -> int | None:
    """Return the id for `batch=`. None is allowed, so that `batch=ctx.batch` works in any task."""
    if value is not None and not isinstance(value, Batch):
        raise InvalidInput(f"batch must be a Batch, from app.batch(…) or ctx.batch, got {validate.shown(value)}")
    return None if value is None else value.id


MAX_WAITING = 10
MAX_BY_LEVEL = (10, 5, 5, 3, 3)  # blockers on each level of the tree
MAX_NODES = 60
CHAIN_JOBS = 1000


class BlockerNode(Struct):
    """A blocker, and the blockers it waits for itself."""

    blocker: Blocker
    children: list[BlockerNode]
    more: int = 0  # children that are left out
    is_repeated: bool = False  # shown earlier, with its children


class Relations(Struct):
    """How a job relates to others."""

    chain: list[JobRecord]
    blockers: list[BlockerNode]
    more_blockers: int
    waiting: list[JobRecord]
    more_waiting: int
    batch_id: int | None
    is_callback: bool
    progress: BatchProgress | None

    @property
    def chain_length(self) -> int:
        return self.chain[-1].chain_index + 1 if self.chain else 1


def find_relations(app: App, job: Job[object]) -> Relations:
    """Read the relations of a job. Large graphs are cut: blockers that need attention come first."""
    blockers, more_blockers = _BlockerWalk(app).from_job(job.id)
    workflows = app.store.workflows
    waiting = workflows.waiting_for(job.chain_id, MAX_WAITING)
    callback_of = workflows.batch(callback=job.id) if job.batch_id is None else None
    batch_id = job.batch_id if callback_of is None else callback_of.id
    return Relations(
        chain=workflows.chain(job.chain_id, near=job.chain_index, each_side=CHAIN_JOBS // 2),
        blockers=blockers,
        more_blockers=more_blockers,
        waiting=waiting.found,
        more_waiting=waiting.total - len(waiting.found),
        batch_id=batch_id,
        is_callback=callback_of is not None,
        progress=None if batch_id is None else _batch_progress(app, batch_id),
    )


def _batch_progress(app: App, batch_id: int) -> BatchProgress | None:
    try:
        return app.batches.get(batch_id).progress()
    except BatchNotFound:  # deleted with plain SQL
        return None


class _BlockerWalk:
    """Walks from a job to its blockers and theirs, within MAX_NODES and MAX_BY_LEVEL."""

    def __init__(self, app: App) -> None:
        self._workflows, self._nodes_left = app.store.workflows, MAX_NODES
        self._seen: dict[int, int] = {}  # chain id -> the level from which on it is not shown again

    def from_job(self, job_id: int, level: int = 0) -> tuple[list[BlockerNode], int]:
        """Return the blockers of a job, and how many are left out."""
        limit = min(MAX_BY_LEVEL[level], self._nodes_left) if level < len(MAX_BY_LEVEL) else 0
        blockers = self._workflows.blockers(job_id, limit, urgent_first=True)
        if level == 0:
            return [self._node(one, level) for one in blockers.found], blockers.total - len(blockers.found)
        # Blockers of a blocker matter only while they block it.
        unfinished = [one for one in blockers.found if one.status != "succeeded"]
        left_out = blockers.holding - sum(one.holds for one in unfinished)
        return [self._node(one, level) for one in unfinished], max(0, left_out)

    def _node(self, blocker: Blocker, level: int) -> BlockerNode:
        if self._seen.get(blocker.chain_id, level + 1) <= level:
            return BlockerNode(blocker, [], is_repeated=True)
        self._nodes_left = max(0, self._nodes_left - 1)
        if blocker.id is None or blocker.status == "succeeded":
            self._seen[blocker.chain_id] = 0
            return BlockerNode(blocker, [])
        children, more = self.from_job(blocker.id, level + 1)
        is_cut = more > 0 and not children  # further up, there may be space for its children
        self._seen[blocker.chain_id] = level if is_cut else 0
        return BlockerNode(blocker, children, more)
