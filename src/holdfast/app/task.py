"""Tasks: functions that can be enqueued."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec import convert
from msgspec.structs import replace

from .. import validate
from ..context import Context
from ..errors import InvalidArguments, InvalidInput, UndefinedAnnotation
from ..model.job import FailureReport, Links, NewJob
from ..model.outcome import Cancel, Fail, Outcome, Retry, Snooze, Then
from ..retry_policies import RetryPolicy
from ..store.transactions import ConnectionOfLoop, is_asynchronous
from .job import Job
from .options import LINK_OPTIONS, TASK_FIELDS, EnqueueOptions, TaskDecoratorOptions, TaskOptions, checked
from .waiting import finish_in_thread
from .workflows import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .app import App
    from .signature import Signature


P = ParamSpec("P")
R = TypeVar("R")
AnyOutcome = Retry | Snooze | Cancel | Fail | Then | Outcome


class Task(Generic[P, R]):
    """A function that can be enqueued. Call it to run it here and now; `enqueue` it to have a worker run it."""

    def __init__(self, app: "App", function: Callable[..., Any], options: TaskOptions) -> None:
        self._app, self.function, self.options = app, function, options
        self.name = options.name
        self.job_options = {name: getattr(options, name) for name in TASK_FIELDS}
        functools.update_wrapper(self, function)

    @functools.cached_property
    def signature(self) -> "Signature":
        """Made at first use, so that annotations may name types that are defined later."""
        from .signature import Signature

        return Signature(self.function, self.name)

    @property
    def app(self) -> "App":
        """The app that the task belongs to."""
        return self._app

    # --- for the worker ---

    @property
    def kind(self) -> Literal["thread", "async", "process"]:
        return self.options.pool

    @property
    def retry_policy(self) -> RetryPolicy:
        return self.options.retry

    @property
    def version(self) -> int:
        return self.options.version

    def retries(self, error: BaseException) -> bool:
        """Return whether an attempt that raised this is retried."""
        return isinstance(error, self.options.retry_on) and not isinstance(error, self.options.give_up_on)

    @functools.cached_property
    def wants_context(self) -> bool:
        return self.signature.context_parameter is not None

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode a stored payload into the arguments to call the function with."""
        args, kwargs = self.signature.decode(data)
        if context is None or not self.wants_context:
            return args, kwargs
        if self.signature.context_by_name:
            kwargs[self.signature.context_by_name] = context
            return args, kwargs
        call = self.signature.with_context(context, args, kwargs)
        return call.args, call.kwargs

    def check_early(self) -> None:
        """Raise InvalidTask for a function that cannot be a task, unless an annotation is not defined yet."""
        with suppress(UndefinedAnnotation):
            self.signature  # noqa: B018  a cached property

    @functools.cached_property
    def allows_none(self) -> bool:
        return self.signature.allows_none

    def check_result(self, data: bytes) -> None:
        """Raise InvalidInput if the result does not have the annotated type."""
        self.signature.check_result(data)

    def go_on_with(self, then: Then) -> NewJob:
        """Return the job with which a chain continues after a job of this task."""
        self._app._require_own(then.task)
        new, tracing = then.new_job, self._app._tracing
        return new if tracing is None else replace(new, trace=then.trace or tracing.current())

    def continuation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """Return the job with which a chain continues, for `Then`."""
        return BoundTask(self, {}).continuation(args, kwargs)

    # --- for the program ---

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.signature.context_parameter is None:
            return cast(R, self.function(*args, **kwargs))
        context = Context(task=self.name, queue=self.options.queue, backend=self._app._context_backend)
        call = self.signature.with_context(context, args, kwargs)
        return cast(R, self.function(*call.args, **call.kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> "BoundTask[P, R]":
        """Return the same task with other options, for one enqueue or many. The task itself does not change."""
        return BoundTask(self, {}).using(**options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task, and return it. The job is on disk when this returns."""
        return BoundTask(self, {}).enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue without blocking the event loop."""
        return await BoundTask(self, {}).aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        """Store one job for each mapping of arguments, all in one transaction, and return their ids."""
        return BoundTask(self, {}).enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        """Do the same as `enqueue_many` without blocking the event loop."""
        return await BoundTask(self, {}).aenqueue_many(calls)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return a call that is not enqueued yet, for `app.pipeline`, `group` and the callbacks of a batch."""
        return BoundTask(self, {}).s(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} on queue {self.options.queue}>"


class AsyncTask(Task[P, R]):
    """A task whose function is `async def`. Calling it returns a coroutine; a job of it has the awaited result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return cast(Coroutine[Any, Any, R], super().__call__(*args, **kwargs))

    @property
    def kind(self) -> Literal["thread", "async", "process"]:
        return "async"


class FailureHook(Task[P, R]):
    """A task of `@app.on_failure`: it is called with a FailureReport."""

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode the payload, and read the traceback, which is stored once for all jobs with the same error."""
        args, kwargs = super().bind(data, context)
        return tuple(map(self._with_traceback, args)), {
            name: self._with_traceback(one) for name, one in kwargs.items()
        }

    def _with_traceback(self, value: Any) -> Any:
        if isinstance(value, dict):  # a parameter without annotation
            value = convert(value, FailureReport)
        if not isinstance(value, FailureReport) or value.fingerprint is None:
            return value
        return replace(value, traceback=self._app.store.jobs.traceback(value.fingerprint))

    def report(self, failed: FailureReport) -> NewJob:
        """Return the job that calls the hook."""
        return BoundTask(self, {}).new_job(self.signature.encode((failed,), {}))


class AsyncFailureHook(FailureHook[P, R], AsyncTask[P, R]):
    """The same for a coroutine function."""


def make_task(
    app: "App", function: Callable[..., Any], options: TaskOptions, *, is_hook: bool = False
) -> Task[..., Any]:
    from inspect import iscoroutinefunction  # here, since it is slow to import and not all programs have tasks

    kinds: tuple[type[Task[..., Any]], type[Task[..., Any]]]
    kinds = (FailureHook, AsyncFailureHook) if is_hook else (Task, AsyncTask)
    task: Task[..., Any] = kinds[iscoroutinefunction(function)](app, function, options)
    task.check_early()
    return task


class _Unannotated:
    """Never made. Only a parameter that takes anything takes it: one without annotation, `Any` or `object`."""


class TaskDecorator:
    """`app.task`: turns a function into a task. `@app.task` or `@app.task(queue="mail", max_attempts=5, …)`.

    `@app.cron(…)` returns one, too.
    """

    def __init__(
        self, make: Callable[..., Task[..., Any]], options: Mapping[str, Any], allowed: Mapping[str, Any]
    ) -> None:
        """make: is called with the function and the options. allowed: the names of the options, if any."""
        self._make, self._options, self._allowed = make, options, allowed

    # For type checkers: a `Context` as first parameter disappears, and outcomes are not part of the result.
    # Parameters are not checked if the first one has no annotation, since it may be a `Context`. Functions that
    # return only outcomes, or never, come before coroutine functions, since NoReturn fits every type.
    @overload
    def __call__(self, function: Callable[Concatenate[_Unannotated, P], Any], /) -> Task[..., Any]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], AnyOutcome], /) -> Task[P, Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, AnyOutcome]], /
    ) -> AsyncTask[P, Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R | AnyOutcome]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R | AnyOutcome], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, AnyOutcome], /) -> Task[P, Any]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, AnyOutcome]], /) -> AsyncTask[P, Any]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R | AnyOutcome]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R | AnyOutcome], /) -> Task[P, R]: ...
    @overload
    def __call__(self, /, **options: Unpack[TaskDecoratorOptions]) -> "TaskDecorator": ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Turn the function into a task; or, given options, return a decorator that does."""
        unknown = options.keys() - self._allowed.keys()
        if unknown:
            raise validate.suggest(sorted(unknown)[0], self._allowed, "option")
        merged = {**self._options, **options}
        return TaskDecorator(self._make, merged, self._allowed) if function is None else self._make(function, merged)


class BoundTask(Generic[P, R]):
    """A task with options. Immutable: `using` returns another one."""

    def __init__(self, task: Task[P, R], options: Mapping[str, Any]) -> None:
        self._task, self._options = task, options

    def using(self, **options: Unpack[EnqueueOptions]) -> "BoundTask[P, R]":
        """Return the task with these options as well."""
        self._task._app._require_own(options.get("after"), options.get("batch"))
        merged = {**self._options, **checked(options, EnqueueOptions.__annotations__)}
        if "delay" in merged and "run_at" in merged:
            raise InvalidInput("delay and run_at both say when the job is due: pass only one of them")
        return BoundTask(self._task, merged)

    @property
    def app(self) -> "App":
        return self._task.app

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task, and return it. The job is on disk when this returns, or `conn` commits."""
        app, conn = self._task._app, self._options.get("conn")
        job = self.enqueue_encoded(self.encode(args, kwargs))
        if app._inline is not None:
            app._inline.enqueued(app, [job.id], conn)
            return job if conn is not None else job.refresh()
        return job

    def enqueue_encoded(self, arguments: str) -> Job[R]:
        new = self.new_job(arguments)
        app = self._task._app
        inserted = (app._tracing or app.store.jobs).insert(new, self._options.get("conn"))
        return Job(app, inserted.record(new), deduplicated=inserted.existing is not None)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue without blocking the event loop."""
        conn: Any = self._options.get("conn")
        if hasattr(conn, "run_sync"):  # SQLAlchemy's AsyncSession or AsyncConnection
            job: Job[R] = await conn.run_sync(lambda sync: self.using(conn=sync).enqueue(*args, **kwargs))
            return job
        bound = self._in_loop("enqueue")
        return await finish_in_thread(lambda: bound.enqueue(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        """Store one job for each mapping of arguments, all in one transaction, and return their ids."""
        if "key" in self._options:
            raise InvalidInput("enqueue_many does not take a key, since only one unfinished job can have it")
        validate.iterable(calls, "enqueue_many")
        encode = self._task.signature.encode
        payloads = (encode((), dict(_arguments(call))) for call in calls)
        app, conn = self._task._app, self._options.get("conn")
        ids = (app._tracing or app.store.jobs).insert_many(self.new_job(""), payloads, conn)
        if app._inline is not None:
            app._inline.enqueued(app, ids, conn)
        return ids

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        """Do the same as `enqueue_many` without blocking the event loop."""
        conn: Any = self._options.get("conn")
        if hasattr(conn, "run_sync"):
            ids: list[int] = await conn.run_sync(lambda sync: self.using(conn=sync).enqueue_many(calls))
            return ids
        bound = self._in_loop("enqueue_many")
        return await finish_in_thread(lambda: bound.enqueue_many(calls))

    def _in_loop(self, name: str) -> "BoundTask[P, R]":
        """Return the same for another thread, which waits for the loop of an asynchronous connection."""
        if "conn" not in self._options:
            self._task._app.store.require_no_transaction()
            return self
        if is_asynchronous(self.conn):
            return self.using(conn=ConnectionOfLoop.here(self.conn))
        raise InvalidInput(
            f"a{name} takes an AsyncSession or AsyncConnection of SQLAlchemy, or of psycopg, as conn, "
            f"since it runs in another thread, got {type(self.conn).__qualname__}: call {name} instead"
        )

    @property
    def conn(self) -> Any:
        return self._options.get("conn")

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return a call with these options that is not enqueued yet."""
        return Step(self, args, kwargs)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._task.signature.encode(args, kwargs)

    def behind(self, ids: "Sequence[int]", conn: Any) -> "BoundTask[P, R]":
        """Return the task with these jobs as further blockers, to be enqueued in the transaction."""
        if "conn" in self._options:
            raise InvalidInput("a step of a pipeline does not take conn: pass it to app.pipeline, for all steps")
        after = (*ids, *self._options.get("after", ()))
        return BoundTask(self._task, {**self._options, "conn": conn, **({"after": after} if after else {})})

    def continuation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """Return the job with which a chain continues, for `Then`."""
        for name in _NOT_IN_THEN:
            if self._options.get(name) is not None:
                raise InvalidInput(f"the task of a Then does not take {name}: {_NOT_IN_THEN[name]}")
        return self.new_job(self.encode(args, kwargs))

    def new_job(self, args: str) -> NewJob:
        """Return the job that an enqueue hands to the store."""
        task, options = self._task, self._options
        if not options:  # the usual case, made fast
            return NewJob(task=task.name, args=args, **task.job_options)
        if "key" not in options and options.keys() & {"key_window", "on_conflict"}:
            raise InvalidInput("key_window and on_conflict need a key: pass key= with them")
        fields = {name: value for name, value in options.items() if name not in LINK_OPTIONS}
        if isinstance(moment := fields.get("expires"), datetime):
            fields |= {"expires": None, "expires_at": validate.moment(moment, "expires")}
        new = NewJob(task=task.name, args=args, links=self._links(), **(task.job_options | fields))
        if "delay" in options or "run_at" in options:
            self._require_time_to_start(new)
        return new

    def _require_time_to_start(self, new: NewJob) -> None:
        now = self._task._app.clock.now()
        expiry = new.expiry(now)
        if expiry is not None and expiry <= new.due(now):
            raise InvalidInput(
                f"the job would expire before it is due: expires, counted from the enqueue, must be later than "
                f"{'delay' if new.run_at is None else 'run_at'}"
            )

    def _links(self) -> Links | None:
        options = self._options
        after, batch = options.get("after", ()), options.get("batch")
        if "after" not in options and "on_blocker_failure" in options:
            raise InvalidInput("on_blocker_failure needs blockers: pass after= with it")
        if not after and batch is None:
            return None
        if options.get("on_conflict") == "replace":
            raise InvalidInput("on_conflict='replace' cannot change blockers or the batch: leave out after and batch")
        return Links(after, options.get("on_blocker_failure", "hold"), batch)

    def __repr__(self) -> str:
        names = ", ".join(sorted(self._options))
        return f"<{self._task.name} using {names}>" if names else f"<{self._task.name}>"


def _arguments(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidArguments(
            f"enqueue_many must be given mappings of arguments, such as {{'to': …}}, got {type(call).__qualname__}"
        )
    return call


_NOT_IN_THEN = {
    "conn": "it is stored in the transaction in which the job before it succeeds",
    "key": "the key of the first job is held until the whole chain has ended",
    "batch": "it belongs to the batch of its chain",
}
