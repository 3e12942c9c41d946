"""`App`: the tasks, queues and jobs of one database. `Holdfast` adds the worker and maintenance."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from msgspec import Struct

from .. import validate
from ..blobs import LARGE_BYTES, BlobStore
from ..clock import SECOND, Clock, as_datetime, with_times
from ..codec import encode, encode_state
from ..context import Completion, Context
from ..errors import InvalidArguments, InvalidInput, InvalidTask, LeaseLost, UndefinedAnnotation, WorkerNotFound
from ..failure import ErrorTable
from ..model.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, FailureReport, Lease, Links, NewJob
from ..model.schedule import Missed
from ..model.stats import QueueOverview, queue_overviews
from ..model.worker import WorkerStatus
from ..retention import Retention
from ..retry_policies import RetryPolicy
from ..store.open import open_store
from ..store.protocol import Store
from ..store.transactions import ConnectionOfLoop, is_asynchronous
from ..validate import NOT_GIVEN
from .hooks import Hooks
from .job import Job
from .jobs import Jobs
from .operations import Operations
from .options import CronTaskOptions, Seconds, TaskDecoratorOptions, checked, task_options
from .queue import Queue
from .schedules import Schedules
from .task import BoundTask, FailureHook, Task, TaskDecorator, make_task
from .waiting import TransactionInCoroutine, finish_in_thread, in_thread
from .workflows import Batch, Batches, Chains, Group, Step, batch_id, callback, check_steps, enqueue_pipeline

if TYPE_CHECKING:
    from random import Random

    from typing_extensions import TypeForm  # type checkers have it without an installed package

    from ..store.sqlite.engine.transaction import Transaction
    from .hooks import Inline, Process, Tracing

    Callback = Task[..., Any] | BoundTask[..., Any] | Step | None


class AppContextBackend:
    """Reads jobs, results and batches for a `Context`, and opens its transactions."""

    def __init__(self, app: App) -> None:
        self._app = app

    def job(self, job_id: int) -> Job[Any]:
        return self._app.jobs.get(job_id)

    def blocker_results(self, job_id: int) -> tuple[Any, ...]:
        return tuple(self._result(one.id) for one in self._app.store.workflows.blockers(job_id).found)

    def batch(self, job_id: int) -> Any:
        record = self._app.store.jobs.get(job_id)
        if record is not None and record.batch_id is not None:
            return self._app.batches.get(record.batch_id)
        batch = self._app.store.workflows.batch(callback=job_id)
        return None if batch is None else Batch(self._app, batch.id)

    def completion(self, result: Any, conn: Any) -> AbstractContextManager[Completion]:
        return self._app._with_inline(self._completion(result, conn))

    @contextmanager
    def _completion(self, result: Any, conn: Any) -> Iterator[Completion]:
        with self._app.store.transaction(completes=True, conn=conn) as opened:
            opened.result = result
            yield opened

    def state(self, job_id: int) -> dict[str, Any]:
        return self._app.jobs.get(job_id).state or {}

    def save_state(self, job_id: int, attempt: int, state: dict[str, Any]) -> None:
        if not self._app.store.jobs.save_state(Lease(job_id, attempt), encode_state(state).decode()):
            raise LeaseLost(f"attempt {attempt} of job {job_id} has lost its lease: the state was not stored")

    def in_coroutine(self, transaction: AbstractContextManager[T]) -> AbstractAsyncContextManager[T]:
        return TransactionInCoroutine(self._app.store, transaction)

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        self._app.store.require_no_transaction()
        return finish_in_thread(call)

    def run_on(self, conn: Any) -> Callable[[Callable[[Any], T]], Awaitable[T]]:
        if not is_asynchronous(conn):
            raise InvalidInput(
                "acomplete takes an AsyncSession or AsyncConnection of SQLAlchemy, or of psycopg, as conn, got "
                f"{type(conn).__qualname__}: use ctx.complete(conn=…) for others"
            )
        bound = ConnectionOfLoop.here(conn)
        return lambda function: finish_in_thread(lambda: function(bound))

    def _result(self, last_id: int | None) -> Any:
        record = None if last_id is None else self._app.store.jobs.get(last_id)
        if record is None:  # deleted
            return None
        job: Job[Any] = Job(self._app, record)
        return job.result if job.status == "succeeded" else job.failure()


class WorkerInfo(Struct, frozen=True):
    """A running worker, or one that ended recently."""

    id: str
    """Random at each start. `job.worker` has it."""
    pid: int
    host: str
    queues: tuple[str, ...] | None
    """None: all queues."""
    tasks: tuple[str, ...]
    """The tasks that it can run."""
    concurrency: int
    lease: float
    """Seconds until its claims expire without a heartbeat."""
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None
    ending: Literal["stopped", "lost"] | None
    """How it ended. "lost": it died, and another worker noticed."""
    state: Literal["alive", "suspended", "stopped", "lost"]
    """alive, suspended by a signal, stopped (shut down), or lost (its process died)."""

    @classmethod
    def from_status(cls, worker: WorkerStatus) -> WorkerInfo:
        record = worker.record
        return with_times(
            cls,
            record,
            lease=record.lease / SECOND,
            ending="stopped" if record.ending == "stopped" else None if record.ending is None else "lost",
            state="alive" if worker.state == "unknown" else worker.state,
        )


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[[Context], Iterator[None]])
F = TypeVar("F", bound=Callable[[], Any])
HOOK_PREFIX = "on_failure:"  # of the names of hooks; failures of these tasks are not reported (failures.sql)
HOOK_TIMEOUT_SECONDS = 60
EXAMPLE_FAILURE = FailureReport(1, "task", "default", 1, 1, "INTERNAL:ERROR", "", as_datetime(0))
Retry = RetryPolicy | Sequence[float] | float | Callable[[int], float]
BUSY_SECONDS, WORKER_BUSY_SECONDS = 5.0, 60.0


class App:
    """Durable jobs and messages in one database.

    url: a path, `sqlite:///app.db`, `postgresql://…`, or by default the environment variable HOLDFAST_URL.
    durability: "full" flushes every enqueue to disk before it returns; "normal" may lose the last ones in a power
        cut, but not in a crash of the program.
    prefix: of the names of all tables.
    schema: of the tables, on PostgreSQL. Default: public.
    notify: wake sleeping workers when a transaction with `conn=` commits. False: they look once a second. Default:
        True. Only PostgreSQL.
    migrate: upgrade older tables; False raises SchemaOutdated instead.
    busy_timeout: seconds to wait for another write transaction before StoreBusy is raised. Default: 5, as a user may
        wait for the answer, and 60 in a process that runs jobs.
    min_free_bytes: refuse to enqueue when the disk has less free space than this. Default: 16 MiB. Only SQLite.
    guard_connections: switch off automatic checkpoints on connections passed as `conn=`, which can lose commits
        on SQLite before 3.51.3. Default: True. Only SQLite.
    blobs: the store for large payloads and results; by default files in a folder beside the database.
    blob_bytes: payloads and results larger than this go there. None: all go into the database, up to 1 MiB each.
    payload_timeout: for how many seconds a job whose payload does not fit the code of any worker is kept for newer
        code, before it fails.
    retention: how long finished jobs are kept. Default: the rules stored in the database, or else `Retention()`.
    clock, random: for tests.
    """

    _inline: Inline | None = None  # set by holdfast.testing.inline
    _tracing: Tracing | None = None  # set by holdfast.contrib.otel

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        durability: Literal["full", "normal"] = "full",
        prefix: str = "holdfast_",
        schema: str | None = None,
        notify: bool | None = None,
        migrate: bool = True,
        busy_timeout: float | None = None,
        min_free_bytes: int | None = None,
        guard_connections: bool | None = None,
        blobs: BlobStore | None = None,
        blob_bytes: int | None = LARGE_BYTES,
        payload_timeout: Seconds = 3600,
        retention: Retention | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability must be 'full' or 'normal', got {validate.shown(durability)}")
        from random import Random

        chance = random or Random()
        self.tasks: dict[str, Task[..., Any]] = {}
        self.task = TaskDecorator(self._register, {}, TaskDecoratorOptions.__annotations__)
        self.on_failure = TaskDecorator(self._register_hook, {}, TaskDecoratorOptions.__annotations__)
        self._hooks = Hooks()
        self.jobs = Jobs(self)
        self.chains = Chains(self)
        self.batches = Batches(self)
        self.operations = Operations(self)
        self._context_backend = AppContextBackend(self)
        self.schedules = Schedules(self)
        self.error_table = ErrorTable()
        self.middlewares: list[Callable[[Context], Any]] = []
        self.random = chance
        self._retention = validate.retention(retention)
        self.payload_timeout = validate.duration(payload_timeout, "payload_timeout")
        self._settings: dict[str, Any] = {
            "prefix": validate.prefix(prefix),
            "durable_level": durability.upper(),
            "migrate": validate.flag(migrate, "migrate"),
            **_busy_timeouts(busy_timeout),
            "schema": None if schema is None else validate.schema(schema),
            "notify": None if notify is None else validate.flag(notify, "notify"),
            "min_free_bytes": None
            if min_free_bytes is None
            else validate.integer(min_free_bytes, "min_free_bytes", 0, 2**63 - 1),
            "guard_connections": None
            if guard_connections is None
            else validate.flag(guard_connections, "guard_connections"),
            "blobs": validate.blob_store(blobs),
            "blob_bytes": validate.blob_bytes(blob_bytes),
        }
        self.store: Store = self._open(url, clock)
        self.clock: Clock = self.store.clock

    def _open(self, url: str | os.PathLike[str] | None, clock: Clock | None, **other_settings: Any) -> Store:
        """Open a store with the settings and random generator of this app. clock: None is the clock of the store."""
        # Random at each start, since host names and process ids are reused.
        token = f"{self.random.getrandbits(48):012x}"
        settings = self._settings | other_settings
        return open_store(url, **settings, clock=clock, random=self.random, token=token)

    def _register(
        self, function: Callable[..., Any], given: Mapping[str, Any], *, is_hook: bool = False
    ) -> Task[..., Any]:
        options = task_options(function, given)
        if isinstance(function, staticmethod):
            function = function.__func__
        known = self.tasks.get(options.name)
        if known is not None and _place(known.function) != _place(function):
            raise InvalidTask(
                f"the task name {options.name!r} is taken by {_place(known.function)}: pass another name, such as "
                f"@app.task(name='{function.__module__}.{options.name}')"
            )
        task = make_task(self, function, options, is_hook=is_hook)
        self.tasks[options.name] = task
        self.schedules.forget(task)
        return task

    def _register_hook(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Task[..., Any]:
        """Make a task of a function that is called with a FailureReport."""
        name = f"{HOOK_PREFIX}{given.get('name') or getattr(function, '__name__', '')}"
        task = self._register(function, {"timeout": HOOK_TIMEOUT_SECONDS, **given, "name": name}, is_hook=True)
        try:
            with suppress(UndefinedAnnotation):
                task.signature.encode((EXAMPLE_FAILURE,), {})
        except InvalidArguments as error:
            del self.tasks[name]
            raise InvalidTask(
                f"@app.on_failure calls its function with one argument, a FailureReport: {error}"
            ) from None
        return task

    def failure_hooks(self) -> list[FailureHook[..., Any]]:
        """Return the tasks of `@app.on_failure`."""
        return [task for task in self.tasks.values() if isinstance(task, FailureHook)]

    @overload
    def on_worker_start(self, function: F, /) -> F: ...
    @overload
    def on_worker_start(self, /, *, process: Process | None) -> Callable[[F], F]: ...
    def on_worker_start(self, /, *function: Any, process: Process | None = None) -> Any:
        """Call a function without arguments when a worker starts, before it takes jobs.

        It is called in each process that runs jobs: that of the worker, and those of `pool="process"`.
        process: "worker" or "pool", to call it only there.
        If it raises, the worker does not start.
        """
        return self._hooks.add("on_worker_start", function, process)

    @overload
    def on_worker_stop(self, function: F, /) -> F: ...
    @overload
    def on_worker_stop(self, /, *, process: Process | None) -> Callable[[F], F]: ...
    def on_worker_stop(self, /, *function: Any, process: Process | None = None) -> Any:
        """Call a function without arguments when a worker has stopped, after its last job.

        process: as for `on_worker_start`. If it raises, that is logged. A process that is killed does not call it.
        """
        return self._hooks.add("on_worker_stop", function, process)

    def before_job(self, function: F, /) -> F:
        """Call a function without arguments before each attempt, in its thread. If it raises, that is only logged."""
        return cast(F, self._hooks.add("before_job", (function,)))

    def after_job(self, function: F, /) -> F:
        """Call a function without arguments after each attempt, whatever its outcome, in its thread.

        It is for clean-up, such as closing connections. If it raises, that is only logged.
        """
        return cast(F, self._hooks.add("after_job", (function,)))

    def cron(
        self,
        expression: str,
        /,
        *,
        tz: str = "UTC",
        missed: Missed = "coalesce",
        catch_up_limit: int | None = None,
        jitter: Seconds = 0,
        name: str | None = None,
        **options: Unpack[CronTaskOptions],
    ) -> TaskDecorator:
        """Enqueue a task on a schedule: `@app.cron("*/5 * * * *", tz="Europe/Zurich")`.

        It turns a function into a task, with the options of `@app.task`, or is put above `@app.task`. A worker stores
        the schedule when it starts.
        missed: what to do about occurrences during which no worker was running. "coalesce" enqueues one job, for the
            newest; "skip" none; "catch_up" one for each, up to `catch_up_limit` (100).
        jitter: each job is due up to this many seconds later, at random, so that not all schedules start at once.
        name: the name of the schedule, by default that of the task, and of the task if this makes it one.
        """
        checked(options, CronTaskOptions.__annotations__)
        timing = self.schedules.timing(expression, tz, missed, catch_up_limit, jitter)

        def make(function: Callable[..., Any], given: Mapping[str, Any]) -> Task[..., Any]:
            if not isinstance(function, Task):
                task = self._register(function, {**given, "name": name})
            elif options:
                raise InvalidTask(f"{function.name} is already a task: pass {sorted(options)[0]} to its @app.task")
            else:
                task = function
            self.schedules.declare(task, task.name if name is None else name, timing)
            return task

        return TaskDecorator(make, options, {})

    def every(
        self,
        interval: Seconds,
        /,
        *,
        missed: Missed = "coalesce",
        catch_up_limit: int | None = None,
        jitter: Seconds = 0,
        name: str | None = None,
        **options: Unpack[CronTaskOptions],
    ) -> TaskDecorator:
        """Enqueue a task at an interval: `@app.every(30)` (seconds), or a timedelta. The rest is as for `@app.cron`.

        It fires at multiples of the interval since 1970 UTC, such as every half minute, and so does not drift.
        """
        seconds = validate.interval(interval)
        timing = {"missed": missed, "catch_up_limit": catch_up_limit, "jitter": jitter, "name": name}
        return self.cron(f"@every {seconds}s", **timing, **options)  # type: ignore[arg-type]

    def middleware(self, layer: M, /) -> M:
        """Wrap every task in a generator function, which is called with the Context and yields once.

        The code before its `yield` runs before the task, the code after it runs after the task. `result = yield`
        returns the value of the task, or raises its exception. The first middleware is the outermost.
        """
        from inspect import isgeneratorfunction

        checked: Callable[[Context], Any] = layer
        if not isgeneratorfunction(checked):
            raise InvalidInput(f"middleware must be a generator function with one yield, got {validate.shown(layer)}")
        self.middlewares.append(layer)
        return layer

    def _layers(self) -> list[Callable[[Context], Any]]:
        """Return the middleware for a worker that starts now: hooks and tracing first, if there are any."""
        outermost = [self._hooks.middleware(), None if self._tracing is None else self._tracing.middleware()]
        found = [layer for layer in outermost if layer is not None]
        return [*found, *self.middlewares] if found else self.middlewares

    def classify(self, exception_type: type[BaseException], code: str) -> None:
        """Give an error code to exceptions of this type that tasks raise."""
        self.error_table.classify(exception_type, code)

    @overload
    def queue(
        self,
        name: str,
        *,
        type: type[T],
        visibility: Seconds = 30,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        history: bool = True,
    ) -> Queue[T]: ...
    @overload
    def queue(
        self,
        name: str,
        *,
        type: TypeForm[T],  # such as `A | B`, which is no `type[T]`
        visibility: Seconds = 30,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        history: bool = True,
    ) -> Queue[T]: ...
    @overload
    def queue(
        self, name: str, *, visibility: Seconds = 30, max_attempts: int = DEFAULT_MAX_ATTEMPTS, history: bool = True
    ) -> Queue[Any]: ...
    def queue(
        self,
        name: str,
        *,
        type: Any = Any,
        visibility: Seconds = 30,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        history: bool = True,
    ) -> Queue[Any]:
        """Return a queue of messages.

        type: of the bodies; anything that msgspec can decode from JSON.
        visibility: seconds that a received message is hidden from other consumers.
        max_attempts: deliveries before a message becomes a dead letter.
        history: False deletes a message when it is acknowledged and writes no attempts or events, for speed.
        """
        return Queue(
            self,
            validate.name(name, "queue name"),
            type,
            validate.duration(visibility, "visibility"),
            validate.max_attempts(max_attempts),
            validate.flag(history, "history"),
        )

    def external(
        self,
        name: str,
        payload: Any = None,
        *,
        queue: str = DEFAULT_QUEUE,
        timeout_at: datetime | None = None,
        key: str | None = None,
        tags: str | Sequence[str] = (),
        batch: Batch | None = None,
        conn: Any = NOT_GIVEN,
    ) -> Job[Any]:
        """Store a job that no worker runs. Settle it with `app.jobs.complete(id, result)` or `.fail(id, code)`.

        It is blocked until then, and other jobs may wait for it with `after=`.
        timeout_at: the job fails at this time with TIMEOUT:EXTERNAL, unless it was settled before.
        """
        if validate.name(name, "name") in self.tasks:
            raise InvalidInput(f"name must not be the name of a task, got {name!r}: choose another name")
        self._require_own(batch)
        deadline = None if timeout_at is None else validate.moment(timeout_at, "timeout_at")
        new = NewJob(
            queue=validate.name(queue, "queue name"),
            task=name,
            args=encode(payload).decode(),
            max_attempts=1,
            key=None if key is None else validate.name(key, "key", validate.MAX_KEY),
            tags=validate.tags(tags) if tags else None,
            expires_at=deadline,
            links=Links(external=True, batch_id=batch_id(batch)),
        )
        within = None if conn is NOT_GIVEN else validate.connection(conn)
        inserted = (self._tracing or self.store.jobs).insert(new, within)
        return Job(self, inserted.record(new), deduplicated=inserted.existing is not None)

    def batch(self, on_success: Callback = None, on_done: Callback = None, *, conn: Any = NOT_GIVEN) -> Batch:
        """Return a new batch: `with app.batch(on_done=report.s(7)) as batch: task.using(batch=batch).enqueue(…)`.

        on_success: a task, or `task.s(…)`, that is enqueued once, when all members have succeeded.
        on_done: the same, when all members have finished, in whatever state.
        conn: store the batch in your transaction.
        If the block raises, the members are cancelled.
        """
        callbacks = callback(self, on_success, "on_success"), callback(self, on_done, "on_done")
        within = None if conn is NOT_GIVEN else validate.connection(conn)
        return Batch(self, None, lambda: self.store.workflows.add_batch(*callbacks, within), within)

    def pipeline(self, *steps: Step | Group, conn: Any = NOT_GIVEN) -> list[Job[Any]]:
        """Enqueue steps that run in order: `app.pipeline(fetch.s(1), group(crop.s(), blur.s()), send.s())`.

        Each step is a job of its own. It waits for the step before it, or for all of a group, as with `after=`, and
        finds their results in `ctx.blocker_results`. Returns the jobs in order; wait for the last one. If one fails,
        the steps after it stay blocked until it is retried; with `task.using(on_blocker_failure="fail").s(…)` they
        fail, too. All jobs are stored in one transaction, or in yours.
        """
        check_steps(self, steps)
        if conn is not NOT_GIVEN:
            return enqueue_pipeline(self, steps, validate.connection(conn))
        with self.transaction() as opened:
            return enqueue_pipeline(self, steps, opened)

    def _require_own(self, *things: Any) -> None:
        """Raise InvalidInput for a job, chain, batch or task of another database, whose ids mean other jobs here."""
        for thing in things:
            for one in thing if isinstance(thing, (list, tuple)) else [thing]:
                other = getattr(one, "app", self)
                if other is not self and other.store.location != self.store.location:
                    place = other.store.location
                    raise InvalidInput(f"{validate.shown(one)} belongs to another database: use the app of {place}")

    def _tell_inline(self, ids: Sequence[int], conn: Any) -> None:
        """Tell `holdfast.testing.inline` about new jobs."""
        if self._inline is not None and ids:
            self._inline.enqueued(self, ids, conn)

    def queues(self) -> list[QueueOverview]:
        """Return all queues that have unfinished or failed jobs, or were ever paused, sorted by name."""
        with self.store.snapshot():
            counts, waiting = self.store.statistics.counts(), self.store.statistics.oldest(-1, ("ready",))
        return queue_overviews(counts, waiting, self.clock.now())

    def workers(self) -> list[WorkerInfo]:
        """Return the running workers and the last hundred that ended, newest first."""
        return [WorkerInfo.from_status(one) for one in self.store.workers.list()]

    def stop_worker(self, id: str, *, actor: str | None = None, reason: str = "") -> bool:
        """Ask a worker, on any machine, to stop: it claims no more jobs and ends when its jobs have finished.

        The request is on disk when this returns, and the worker sees it within about a second. False if the worker
        has ended or was asked before. Raises WorkerNotFound.
        """
        worker = validate.name(id, "worker id")
        asked = self.store.workers.request_stop(worker, validate.actor(actor), validate.reason(reason))
        if asked is None:
            raise WorkerNotFound(f"there is no worker {validate.shown(id)}: see app.observe.workers()")
        return asked

    aexternal, apipeline, astop_worker = in_thread(external), in_thread(pipeline), in_thread(stop_worker)
    aqueues, aworkers = in_thread(queues), in_thread(workers)

    @property
    def _app(self) -> Self:  # for in_thread
        return self

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction. It commits at the end of the block, or rolls back if the block raises.

        Run your own statements with `tx.execute(…)`, and enqueue with `conn=tx`.
        """
        return self._with_inline(self.store.transaction())

    def guard(self, conn: Any) -> bool:
        """Let Holdfast checkpoint for a connection of yours to the same file, which then does not do so by itself.

        Do this for every connection that you never pass as `conn=`: two connections that checkpoint can lose commits
        on SQLite before 3.51.3. Returns False, and does nothing, for a connection to another database.
        """
        return self.store.guard(validate.connection(conn))

    def _with_inline(self, opened: AbstractContextManager[T]) -> AbstractContextManager[T]:
        """Let `holdfast.testing.inline` run the jobs of a transaction after it committed."""
        return opened if self._inline is None else self._inline.after_commit(self, opened)

    def close(self) -> None:
        """Close the database. Further calls raise StoreClosed."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _busy_timeouts(given: float | None) -> dict[str, float]:
    if given is None:
        return {"busy_timeout": BUSY_SECONDS, "worker_busy_timeout": WORKER_BUSY_SECONDS}
    seconds = validate.duration(given, "busy_timeout") / SECOND
    return {"busy_timeout": seconds, "worker_busy_timeout": seconds}


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
