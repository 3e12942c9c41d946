"""The options of a task: declared, checked, documented and carried from here.

`@app.task`, `@app.cron`, `task.using`, `app.schedules.add` and `holdfast send` all use this module. CONTRIBUTING.md
says how to add an option.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from types import MethodType
from typing import Any, Literal, TypedDict, cast

from msgspec import Struct, json

from .. import validate
from ..clock import SECOND, as_datetime
from ..errors import InvalidInput, InvalidTask
from ..model.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, ON_BLOCKER_FAILURE, OnBlockerFailure, OnConflict
from ..retry_policies import RetryPolicy, backoff, retry_policy
from .job import Job
from .workflows import Batch, Chain, batch_id

MAX_BLOCKERS = 10_000
Seconds = float | timedelta
Pool = Literal["thread", "process"]
Retry = RetryPolicy | Sequence[float] | float | Callable[[int], float]
ExceptionTypes = type[BaseException] | Sequence[type[BaseException]]
Blocker = Job[Any] | Chain | int


# --- declared: which options there are, for a type checker and for `task.using` -------------------


class JobOptions(TypedDict, total=False):
    """Options that a task sets for all its jobs, and `using` for some of them, both with the same type."""

    queue: str
    priority: int
    max_attempts: int
    timeout: Seconds | None


class CronTaskOptions(JobOptions, total=False):
    """The options of `@app.cron(…)` for the task that it makes."""

    retry: Retry | None
    retry_on: ExceptionTypes
    give_up_on: ExceptionTypes
    pool: Pool
    expires: Seconds | None
    version: int


class TaskDecoratorOptions(CronTaskOptions, total=False):
    """The options of `@app.task(…)`."""

    name: str | None


class EnqueueOptions(JobOptions, total=False):
    """The options of `task.using(…)`. Times are seconds or a timedelta."""

    delay: Seconds
    run_at: datetime
    expires: Seconds | datetime | None
    key: str
    key_window: Seconds
    on_conflict: OnConflict
    tags: str | Sequence[str]
    conn: Any
    after: Blocker | Sequence[Blocker]
    on_blocker_failure: OnBlockerFailure
    batch: Batch | None


class TaskOptions(Struct, frozen=True):
    """The checked options of a task, with their defaults. `timeout` and `expires` are microseconds."""

    name: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry: RetryPolicy = backoff()
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int | None = None
    expires: int | None = None
    pool: Pool = "thread"
    version: int = 0


# --- checked and documented: one entry for each option --------------------------------------------


def _same(value: Any) -> Any:
    return value


def _in_seconds(value: int | None) -> float | None:
    return None if value is None else value / SECOND


class Option(Struct, frozen=True):
    """How an option is checked, what the reference says about it, and how `assert_enqueued` compares it."""

    check: Callable[[Any], Any]
    """Return the value as it is stored, or raise InvalidInput."""
    meaning: str
    of_job: Callable[[Job[Any]], Any] | None = None
    """Read the option from a job; None if jobs do not have it."""
    shown: Callable[[Any], Any] = _same
    """Convert the checked value to what `of_job` returns."""


def _timeout(value: Any) -> int | None:
    return None if value is None else validate.duration(value, "timeout")


def _expires(value: Any) -> int | datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        validate.moment(value, "expires")
        return value
    return validate.duration(value, "expires")


def _expiry_of(job: Job[Any]) -> float | datetime | None:
    """Return the seconds from the enqueue, as most programs give it."""
    return None if job.expires_at is None else (job.expires_at - job.created_at).total_seconds()


def _exceptions(name: str) -> Callable[[Any], tuple[type[BaseException], ...]]:
    def check(value: Any) -> tuple[type[BaseException], ...]:
        types = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
        if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
            raise InvalidInput(f"{name} must be an exception class or several, got {validate.shown(value)}")
        return types

    return check


def _on_conflict(value: Any) -> str:
    if value not in ("return", "replace"):
        raise InvalidInput(f"on_conflict must be 'return' or 'replace', got {validate.shown(value)}")
    return cast(str, value)


def _pool(value: Any) -> str:
    if value not in ("thread", "process"):
        raise InvalidInput(f"pool must be 'thread' or 'process', got {validate.shown(value)}")
    return cast(str, value)


def _after(value: Any) -> tuple[int, ...]:
    """Return the ids of one or several jobs or chains."""
    single = isinstance(value, (Job, Chain, int))
    unordered = isinstance(value, (str, bytes, Mapping, Set))  # ctx.blocker_results has the results in this order
    if not single and (unordered or not isinstance(value, Iterable)):
        raise InvalidInput(f"after must be a job, a chain, an id or a list of these, got {validate.shown(value)}")
    ids = tuple(_blocker_id(one) for one in ([value] if single else value))
    if len(ids) > MAX_BLOCKERS:
        raise InvalidInput(f"after must name at most {MAX_BLOCKERS} jobs, got {len(ids)}: use a batch")
    return ids


def _blocker_id(value: Any) -> int:
    if isinstance(value, Batch):
        raise InvalidInput("after does not take a batch: pass the next task as app.batch(on_done=…)")
    return value.id if isinstance(value, (Job, Chain)) else validate.job_id(value)


def _on_blocker_failure(value: Any) -> str:
    if not isinstance(value, str) or value not in ON_BLOCKER_FAILURE:
        raise InvalidInput(
            f"on_blocker_failure must be 'hold', 'fail', 'cancel' or 'run', got {validate.shown(value)}"
        )
    return value


OPTIONS: dict[str, Option] = {
    "name": Option(
        lambda value: validate.name(value, "task name"),
        "Stored with each job of the task. 1 to 200 printable characters. Default: the function's name.",
    ),
    "queue": Option(
        lambda value: validate.name(value, "queue name"),
        "The queue of the job. 1 to 200 printable characters.",
        lambda job: job.queue,
    ),
    "priority": Option(
        validate.priority,
        "A 32-bit integer. Workers take jobs with a higher priority first.",
        lambda job: job.priority,
    ),
    "max_attempts": Option(
        validate.max_attempts,
        "How many attempts the job has, the first one included. 1 to 1,000,000.",
        lambda job: job.max_attempts,
    ),
    "retry": Option(
        lambda value: backoff() if value is None else retry_policy(value),
        "How long to wait before the next attempt: a [policy](api.md#retry-policies), a number of seconds, a list of "
        "them, or a function of the attempt (and of a `random.Random`, if it takes two arguments).",
    ),
    "retry_on": Option(
        _exceptions("retry_on"),
        "An exception class, or several. An attempt that raises another one "
        "[fails the job](../guides/errors-and-retries.md#retry-or-give-up) without a retry.",
    ),
    "give_up_on": Option(
        _exceptions("give_up_on"),
        "An exception class, or several. An attempt that raises one of them fails the job without a retry, even if "
        "`retry_on` has it.",
    ),
    "timeout": Option(
        _timeout,
        "Seconds or a `timedelta` that one attempt may take, up to 100 years; `None` for no limit. See "
        "[timeouts](../guides/workers.md#timeouts).",
        lambda job: job.timeout,
        _in_seconds,
    ),
    "expires": Option(
        _expires,
        "Seconds or a `timedelta` from the enqueue, up to 100 years, in `using` also an aware `datetime`; `None` for "
        "never. A job that still waits at that time [is cancelled](../guides/jobs.md#jobs-that-expire).",
        _expiry_of,
        lambda value: value if isinstance(value, datetime) else _in_seconds(value),
    ),
    "pool": Option(
        _pool,
        '`"process"` runs the task in [a process of its own](../guides/workers.md#how-many-at-a-time). Not for '
        "coroutine functions.",
    ),
    "version": Option(
        lambda value: validate.integer(value, "version", 0, 2**31 - 1),
        "The version of the task's code, stored with each job. Workers whose code has an older version leave it: "
        "see [upgrades](../guides/upgrades.md#versions).",
    ),
    "delay": Option(
        lambda value: validate.duration(value, "delay"),
        "Seconds or a `timedelta` from now, up to 100 years. The job does not start before that.",
        lambda job: (job.run_at - job.created_at).total_seconds(),
        _in_seconds,
    ),
    "run_at": Option(
        lambda value: validate.moment(value, "run_at"),
        "An aware `datetime`. The job does not start before that. Not together with `delay`.",
        lambda job: job.run_at,
        as_datetime,
    ),
    "key": Option(
        lambda value: validate.name(value, "key", validate.MAX_KEY),
        "1 to 500 printable characters. A task has at most one unfinished job with the same key.",
        lambda job: job.key,
    ),
    "key_window": Option(
        lambda value: validate.duration(value, "key_window"),
        "Seconds or a `timedelta`. A job with the key that finished within this time counts, too. Only with `key`.",
    ),
    "on_conflict": Option(
        _on_conflict,
        'What to do if another job has the key. `"return"` (default): return that job. `"replace"`: also change it, '
        "if it has not started; a running one is returned unchanged. Only with `key`.",
    ),
    "tags": Option(
        validate.tags,
        "A text or a list of texts, each 1 to 200 printable characters.",
        lambda job: job.tags,
        json.decode,
    ),
    "conn": Option(
        validate.connection,
        "A connection of `sqlite3` or psycopg, a `Session` or `Connection` of SQLAlchemy, Django's connection, or "
        "the value of `app.transaction()`. The job is stored in that transaction. Not `None`.",
    ),
    "after": Option(
        _after,
        "A job, a chain or an id, or a list of up to 10,000. The job is `blocked` until [their chains have "
        "succeeded](../guides/workflows.md#wait-for-others).",
        lambda job: tuple(one.chain_id for one in job.app.store.workflows.blockers(job.id).found),
    ),
    "on_blocker_failure": Option(
        _on_blocker_failure,
        'What happens [if one of them fails](../guides/workflows.md#when-one-of-them-fails): `"hold"` (default), '
        '`"fail"`, `"cancel"` or `"run"`. Only with `after`.',
        lambda job: job.on_blocker_failure,
    ),
    "batch": Option(
        batch_id,
        "The [`Batch`](../guides/workflows.md#batches) that the job is a member of, or `None`.",
        lambda job: job.batch_id,
    ),
}

JOB_OPTIONS = tuple(name for name in EnqueueOptions.__annotations__ if name in CronTaskOptions.__annotations__)
"""Options that a task sets for all its jobs, and `using` for some of them. NewJob has fields of these names."""
TASK_FIELDS = (*JOB_OPTIONS, "version")
"""Options of a task that each of its jobs is stored with."""
LINK_OPTIONS = ("conn", "after", "on_blocker_failure", "batch")  # not fields of NewJob; all others are


# --- carried --------------------------------------------------------------------------------------


def checked(given: Mapping[str, Any], allowed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as they are stored. Raise InvalidInput for an unknown one and for a wrong value."""
    unknown = given.keys() - allowed.keys()
    if unknown:
        raise validate.suggest(sorted(unknown)[0], allowed, "option")
    return {name: OPTIONS[name].check(value) for name, value in given.items()}


def task_options(function: Callable[..., Any], given: Mapping[str, Any]) -> TaskOptions:
    """Return the options of a new task."""
    if not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        raise InvalidTask(f"task must be a function, got {validate.shown(function)}")
    _refuse_method(function)
    named = dict(given)
    if named.get("name") is None:
        named["name"] = function.__name__
    options = TaskOptions(**checked(named, TaskDecoratorOptions.__annotations__))
    if options.name == "<lambda>":
        raise InvalidTask("a lambda has no name to store with its jobs: pass name='…', or define a function")
    if isinstance(options.expires, datetime):
        raise InvalidInput(f"expires must be seconds, a timedelta or None for a task, got {options.expires}")
    if options.pool == "process":
        _require_importable(function)
    return options


def _refuse_method(function: Callable[..., Any]) -> None:
    """A worker has no object to call a method on. What is inside a class must be a staticmethod."""
    name, code = getattr(function, "__qualname__", ""), getattr(function, "__code__", None)
    first = code.co_varnames[0] if code is not None and code.co_argcount else ""
    scope = name.rpartition(".")[0]
    in_class = bool(scope) and not scope.endswith("<locals>") and not isinstance(function, staticmethod)
    if in_class or first in ("self", "cls") or isinstance(function, MethodType):
        raise InvalidTask(
            f"task must be a function, and {name} is a method, for which a worker has no object: define it outside "
            "of the class, or put @app.task above @staticmethod"
        )


def _require_importable(function: Callable[..., Any]) -> None:
    """A process of the pool imports the function by its name."""
    from inspect import iscoroutinefunction

    if iscoroutinefunction(function):
        raise InvalidTask(
            f"pool='process' needs a plain function, and {function.__name__} is a coroutine function, which runs on "
            "an event loop: leave pool out"
        )
    if "<" in function.__qualname__:
        raise InvalidTask(
            f"pool='process' needs a function at module level, which another process can import, and "
            f"{function.__qualname__} is defined inside a function"
        )
