"""A function that can be enqueued."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct

from ..context import Context
from ..errors import InvalidArguments, InvalidInput, UndefinedAnnotation
from ..model import NewJob, OnConflict
from ..retry import RetryPolicy
from . import checks
from .aio import finish_in_thread
from .job import Job

if TYPE_CHECKING:
    from .app import App
    from .signature import Signature

P = ParamSpec("P")
R = TypeVar("R")

Seconds = float | timedelta
Pool = Literal["thread", "process"]


class TaskOptions(Struct, frozen=True):
    """What `@app.task(…)` sets for every job of the task."""

    name: str
    queue: str
    priority: int
    max_attempts: int
    retry: RetryPolicy
    timeout: int | None
    pool: Pool = "thread"


class EnqueueOptions(TypedDict, total=False):
    """What `task.using(…)` takes. Times are seconds or a timedelta."""

    queue: str
    priority: int
    delay: Seconds
    run_at: datetime
    key: str
    key_window: Seconds
    on_conflict: OnConflict
    max_attempts: int
    timeout: Seconds
    tags: str | Sequence[str]
    conn: Any


class Task(Generic[P, R]):
    """Call it to run it here and now; `enqueue` it to have it run by a worker."""

    def __init__(self, app: "App", function: Callable[..., Any], options: TaskOptions) -> None:
        self._app, self.function, self.options = app, function, options
        self.name = options.name
        functools.update_wrapper(self, function)

    @functools.cached_property
    def signature(self) -> "Signature":
        """Worked out at first use, so that annotations may name types that are defined later."""
        from .signature import Signature

        return Signature(self.function, self.name)

    @property
    def app(self) -> "App":
        """The app that it belongs to."""
        return self._app

    # --- what a worker asks of it ---

    @property
    def kind(self) -> Literal["thread", "async", "process"]:
        return self.options.pool

    @property
    def retry_policy(self) -> RetryPolicy:
        return self.options.retry

    @functools.cached_property
    def wants_context(self) -> bool:
        return self.signature.context_parameter is not None

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored payload, to call the function with."""
        args, kwargs = self.signature.decode(data)
        if context is None or not self.wants_context:
            return args, kwargs
        if self.signature.context_by_name:
            kwargs[self.signature.context_by_name] = context
            return args, kwargs
        call = self.signature.with_context(context, args, kwargs)
        return call.args, call.kwargs

    def check_early(self) -> None:
        """Tell at once of a function that cannot be a task, unless its annotations are not defined yet."""
        with suppress(UndefinedAnnotation):
            self.signature  # noqa: B018  a cached property

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.signature.context_parameter is None:
            return cast(R, self.function(*args, **kwargs))
        call = self.signature.with_context(Context(task=self.name, queue=self.options.queue), args, kwargs)
        return cast(R, self.function(*call.args, **call.kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> "BoundTask[P, R]":
        """The same task with other options, for one enqueue or for many. The task itself does not change."""
        return BoundTask(self, {}).using(**options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task. It is on disk when this returns."""
        return BoundTask(self, {}).enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return await BoundTask(self, {}).aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        """One job per mapping of arguments, all in one transaction; returns their ids."""
        return BoundTask(self, {}).enqueue_many(calls)

    def __repr__(self) -> str:
        return f"<Task {self.name} on queue {self.options.queue}>"


class AsyncTask(Task[P, R]):
    """A task whose function is `async def`: calling it gives a coroutine, a job of it has the result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return cast(Coroutine[Any, Any, R], super().__call__(*args, **kwargs))

    @property
    def kind(self) -> Literal["thread", "async", "process"]:
        return "async"


def make_task(app: "App", function: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
    from inspect import iscoroutinefunction  # here, since it is slow to import and not all programs have tasks

    task: Task[..., Any] = (AsyncTask if iscoroutinefunction(function) else Task)(app, function, options)
    task.check_early()
    return task


class BoundTask(Generic[P, R]):
    """A task with options. Immutable: `using` gives another one."""

    def __init__(self, task: Task[P, R], options: Mapping[str, Any]) -> None:
        self._task, self._options = task, options

    def using(self, **options: Unpack[EnqueueOptions]) -> "BoundTask[P, R]":
        """As `Task.using`; what is not named stays as it was."""
        unknown = options.keys() - _CHECKS.keys()
        if unknown:
            raise checks.suggest(sorted(unknown)[0], _CHECKS, "option")
        checked = {name: _CHECKS[name](value) for name, value in options.items()}
        merged = {**self._options, **checked}
        if "delay" in merged and "run_at" in merged:
            raise InvalidInput("delay and run_at both say when: pass one of them")
        return BoundTask(self._task, merged)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        new = self._new_job(self._task.signature.encode(args, kwargs))
        app, conn = self._task._app, self._options.get("conn")
        inserted = app.store.insert(new, conn)
        job: Job[R] = Job(app, inserted.record(new), deduplicated=inserted.existing is not None)
        if app._inline is not None:
            app._inline.enqueued(app, [job.id], conn)
            return job if conn is not None else job.refresh()
        return job

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        if "conn" in self._options:
            raise InvalidInput("a connection cannot follow into another thread: use enqueue with conn=")
        return await finish_in_thread(lambda: self.enqueue(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        if "key" in self._options:
            raise InvalidInput("one key is one job: enqueue_many takes no key")
        checks.iterable(calls, "enqueue_many")
        encode = self._task.signature.encode
        payloads = (encode((), dict(_arguments(call))) for call in calls)
        app, conn = self._task._app, self._options.get("conn")
        ids = app.store.insert_many(self._new_job(""), payloads, conn)
        if app._inline is not None:
            app._inline.enqueued(app, ids, conn)
        return ids

    def _new_job(self, args: str) -> NewJob:
        defaults, options = self._task.options, self._options
        if "key" not in options and options.keys() & {"key_window", "on_conflict"}:
            raise InvalidInput("key_window and on_conflict say what a key means: pass a key with them")
        return NewJob(
            queue=options.get("queue", defaults.queue),
            task=defaults.name,
            args=args,
            delay=options.get("delay", 0),
            run_at=options.get("run_at"),
            priority=options.get("priority", defaults.priority),
            max_attempts=options.get("max_attempts", defaults.max_attempts),
            timeout=options.get("timeout", defaults.timeout),
            key=options.get("key"),
            key_window=options.get("key_window"),
            on_conflict=options.get("on_conflict", "return"),
            tags=options.get("tags"),
        )

    def __repr__(self) -> str:
        names = ", ".join(sorted(self._options))
        return f"<{self._task.name} using {names}>"


def _arguments(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidArguments(
            f"enqueue_many takes mappings of arguments, such as {{'to': …}}, not {type(call).__qualname__}"
        )
    return call


def _on_conflict(value: Any) -> str:
    if value not in ("return", "replace"):
        raise InvalidInput(f"on_conflict is 'return' or 'replace', not {checks.shown(value)}")
    return cast(str, value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": lambda value: checks.name(value, "queue name"),
    "priority": checks.priority,
    "delay": lambda value: checks.duration(value, "delay"),
    "run_at": lambda value: checks.moment(value, "run_at"),
    "key": lambda value: checks.name(value, "key", checks.MAX_KEY),
    "key_window": lambda value: checks.duration(value, "key_window"),
    "on_conflict": _on_conflict,
    "max_attempts": checks.max_attempts,
    "timeout": lambda value: checks.duration(value, "timeout"),
    "tags": checks.tags,
    "conn": lambda value: value,
}
