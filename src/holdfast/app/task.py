"""A function that can be enqueued."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from .. import validate
from ..context import Context
from ..errors import InvalidArguments, InvalidInput, UndefinedAnnotation
from ..model.job import NewJob, OnConflict
from ..model.outcome import Then
from ..model.workflow import ON_BLOCKER_FAILURE, Links, OnBlockerFailure
from ..retry import RetryPolicy
from .job import Job
from .waiting import finish_in_thread
from .workflows import Batch, Chain, Step, batch_id

if TYPE_CHECKING:
    from .app import App
    from .signature import Signature


P = ParamSpec("P")
R = TypeVar("R")
Seconds = float | timedelta
Pool = Literal["thread", "process"]
MOST_BLOCKERS = 10_000


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
    after: Job[Any] | Chain | int | Sequence[Job[Any] | Chain | int]
    on_blocker_failure: OnBlockerFailure
    batch: Batch | None


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

    def check_result(self, data: bytes) -> None:
        """That it is of the type that the task is annotated to return."""
        self.signature.check_result(data)

    def go_on_with(self, then: Then) -> NewJob:
        """What a chain goes on with, after a job of this task."""
        given = then.task
        bound = BoundTask(given, {}) if isinstance(given, Task) else given
        if not isinstance(bound, BoundTask):
            raise InvalidInput(f"Then takes a task, or task.using(…), not {type(given).__qualname__}")
        self._app.require_own(bound)
        new, tracing = bound.continuation(then.arguments, then.named_arguments), self._app._tracing
        return new if tracing is None else replace(new, trace=then.trace or tracing.current())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.signature.context_parameter is None:
            return cast(R, self.function(*args, **kwargs))
        context = Context(task=self.name, queue=self.options.queue, backing=self._app.backing)
        call = self.signature.with_context(context, args, kwargs)
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

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """A call that is not enqueued yet: for `app.pipeline`, `group` and the callbacks of a batch."""
        return BoundTask(self, {}).s(*args, **kwargs)

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
        unknown = options.keys() - OPTION_CHECKS.keys()
        if unknown:
            raise validate.suggest(sorted(unknown)[0], OPTION_CHECKS, "option")
        self._task._app.require_own(options.get("after"), options.get("batch"))
        checked = {name: OPTION_CHECKS[name](value) for name, value in options.items()}
        merged = {**self._options, **checked}
        if "delay" in merged and "run_at" in merged:
            raise InvalidInput("delay and run_at both say when: pass one of them")
        return BoundTask(self._task, merged)

    @property
    def app(self) -> "App":
        return self._task.app

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
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
        if "conn" in self._options:
            raise InvalidInput("a connection cannot follow into another thread: use enqueue with conn=")
        self._task._app.store.refuse_waiting_for_itself()
        return await finish_in_thread(lambda: self.enqueue(*args, **kwargs))

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[int]:
        if "key" in self._options:
            raise InvalidInput("one key is one job: enqueue_many takes no key")
        validate.iterable(calls, "enqueue_many")
        encode = self._task.signature.encode
        payloads = (encode((), dict(_arguments(call))) for call in calls)
        app, conn = self._task._app, self._options.get("conn")
        ids = (app._tracing or app.store.jobs).insert_many(self.new_job(""), payloads, conn)
        if app._inline is not None:
            app._inline.enqueued(app, ids, conn)
        return ids

    @property
    def conn(self) -> Any:
        return self._options.get("conn")

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """As `Task.s`, with these options."""
        return Step(self, args, kwargs)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._task.signature.encode(args, kwargs)

    def behind(self, ids: Sequence[int], conn: Any) -> "BoundTask[P, R]":
        """The same, to be enqueued in a transaction, behind these jobs too."""
        if "conn" in self._options:
            raise InvalidInput("a step takes no conn: pass it to app.pipeline, where it holds for all of them")
        after = (*ids, *self._options.get("after", ()))
        return BoundTask(self._task, {**self._options, "conn": conn, **({"after": after} if after else {})})

    def continuation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """For a chain to go on with."""
        for name in ("conn", "key", "batch"):
            if self._options.get(name) is not None:
                raise InvalidInput(f"Then: what a chain goes on with takes no {name}: {_NOT_IN_CHAINS[name]}")
        return self.new_job(self.encode(args, kwargs))

    def new_job(self, args: str) -> NewJob:
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
            links=self._links(),
        )

    def _links(self) -> Links | None:
        options = self._options
        after, batch = options.get("after", ()), options.get("batch")
        if "after" not in options and "on_blocker_failure" in options:
            raise InvalidInput("on_blocker_failure says what to do about what it waits for: pass after= with it")
        if not after and batch is None:
            return None
        if options.get("on_conflict") == "replace":
            raise InvalidInput("on_conflict='replace' cannot change what a job waits for: leave out after and batch")
        return Links(after, options.get("on_blocker_failure", "hold"), batch)

    def __repr__(self) -> str:
        names = ", ".join(sorted(self._options))
        return f"<{self._task.name} using {names}>" if names else f"<{self._task.name}>"


def _arguments(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise InvalidArguments(
            f"enqueue_many takes mappings of arguments, such as {{'to': …}}, not {type(call).__qualname__}"
        )
    return call


def _after(value: Any) -> tuple[int, ...]:
    """One or several, each a job, a chain, or an id."""
    single = isinstance(value, (Job, Chain, int))
    unordered = isinstance(value, (str, bytes, Mapping, Set))  # ctx.blockers has them in order
    if not single and (unordered or not isinstance(value, Iterable)):
        raise InvalidInput(f"after takes jobs, chains or their ids, one or a list, not {validate.shown(value)}")
    ids = tuple(_awaited_id(one) for one in ([value] if single else value))
    if len(ids) > MOST_BLOCKERS:
        raise InvalidInput(f"a job waits for {MOST_BLOCKERS} others at most, not {len(ids)}: use a batch")
    return ids


def _awaited_id(value: Any) -> int:
    if isinstance(value, Batch):
        raise InvalidInput("after takes no batch: name what comes after it with app.batch(on_done=…)")
    return value.id if isinstance(value, (Job, Chain)) else validate.job_id(value)


def _on_blocker_failure(value: Any) -> str:
    if not isinstance(value, str) or value not in ON_BLOCKER_FAILURE:
        raise InvalidInput(f"on_blocker_failure is 'hold', 'fail', 'cancel' or 'run', not {validate.shown(value)}")
    return value


def _on_conflict(value: Any) -> str:
    if value not in ("return", "replace"):
        raise InvalidInput(f"on_conflict is 'return' or 'replace', not {validate.shown(value)}")
    return cast(str, value)


OPTION_CHECKS: dict[str, Callable[[Any], Any]] = {
    "queue": lambda value: validate.name(value, "queue name"),
    "priority": validate.priority,
    "delay": lambda value: validate.duration(value, "delay"),
    "run_at": lambda value: validate.moment(value, "run_at"),
    "key": lambda value: validate.name(value, "key", validate.MAX_KEY),
    "key_window": lambda value: validate.duration(value, "key_window"),
    "on_conflict": _on_conflict,
    "max_attempts": validate.max_attempts,
    "timeout": lambda value: validate.duration(value, "timeout"),
    "tags": validate.tags,
    "conn": lambda value: value,
    "after": _after,
    "on_blocker_failure": _on_blocker_failure,
    "batch": batch_id,
}
_NOT_IN_CHAINS = {
    "conn": "it is stored with the success that leads to it",
    "key": "a key on the first job of a chain holds until the chain ends",
    "batch": "it belongs to the batch that its chain belongs to",
}
