"""The options of a task: declared, checked, documented and carried from here.

`@app.task`, `@app.cron`, `task.using`, `app.schedules.add` and `holdfast send` all use this module. CONTRIBUTING.md
says how to add an option.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, cast

from msgspec import Struct

from .. import validate
from ..errors import InvalidInput, InvalidTask
from ..model.job import OnConflict
from ..model.workflow import ON_BLOCKER_FAILURE, OnBlockerFailure
from ..retry_policies import RetryPolicy, backoff, retry_policy
from .job import Job
from .workflows import Batch, Chain, batch_id

MAX_BLOCKERS = 10_000
Seconds = float | timedelta
Pool = Literal["thread", "process"]
Retry = RetryPolicy | Sequence[float] | float | Callable[[int], float]
Blocker = Job[Any] | Chain | int


# --- declared: which options there are, for a type checker and for `task.using` -------------------


class JobOptions(TypedDict, total=False):
    """Options that a task sets for all its jobs, and `using` for some of them. NewJob has fields of these names."""

    queue: str
    priority: int
    max_attempts: int
    timeout: Seconds | None


class CronTaskOptions(JobOptions, total=False):
    """The options of `@app.cron(…)` for the task that it makes."""

    retry: Retry | None
    pool: Pool


class TaskDecoratorOptions(CronTaskOptions, total=False):
    """The options of `@app.task(…)`."""

    name: str | None


class EnqueueOptions(JobOptions, total=False):
    """The options of `task.using(…)`. Times are seconds or a timedelta."""

    delay: Seconds
    run_at: datetime
    key: str
    key_window: Seconds
    on_conflict: OnConflict
    tags: str | Sequence[str]
    conn: Any
    after: Blocker | Sequence[Blocker]
    on_blocker_failure: OnBlockerFailure
    batch: Batch | None


class TaskOptions(Struct, frozen=True):
    """The checked options of a task, with their defaults. `timeout` is microseconds."""

    name: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    retry: RetryPolicy = backoff()
    timeout: int | None = None
    pool: Pool = "thread"


# --- checked and documented: one entry for each option --------------------------------------------


class Option(Struct, frozen=True):
    """How an option is checked, and what docs/reference/settings.md says about it."""

    check: Callable[[Any], Any]
    """Return the value as it is stored, or raise InvalidInput."""
    meaning: str


def _timeout(value: Any) -> int | None:
    return None if value is None else validate.duration(value, "timeout")


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
    ),
    "priority": Option(
        validate.priority,
        "A 32-bit integer. Workers take jobs with a higher priority first.",
    ),
    "max_attempts": Option(
        validate.max_attempts,
        "How many attempts the job has, the first one included. 1 to 1,000,000.",
    ),
    "retry": Option(
        lambda value: backoff() if value is None else retry_policy(value),
        "How long to wait before the next attempt: a [policy](api.md#retry-policies), a number of seconds, a list of "
        "them, or a function of the attempt (and of a `random.Random`, if it takes two arguments).",
    ),
    "timeout": Option(
        _timeout,
        "Seconds or a `timedelta` that one attempt may take, up to 100 years; `None` for no limit. See "
        "[timeouts](../guides/workers.md#timeouts).",
    ),
    "pool": Option(
        _pool,
        '`"process"` runs the task in [a process of its own](../guides/workers.md#how-many-at-a-time). Not for '
        "coroutine functions.",
    ),
    "delay": Option(
        lambda value: validate.duration(value, "delay"),
        "Seconds or a `timedelta` from now, up to 100 years. The job does not start before that.",
    ),
    "run_at": Option(
        lambda value: validate.moment(value, "run_at"),
        "An aware `datetime`. The job does not start before that. Not together with `delay`.",
    ),
    "key": Option(
        lambda value: validate.name(value, "key", validate.MAX_KEY),
        "1 to 500 printable characters. A task has at most one unfinished job with the same key.",
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
    ),
    "conn": Option(
        validate.connection,
        "An `sqlite3.Connection`, a `Session` or `Connection` of SQLAlchemy, Django's connection, or the value of "
        "`app.transaction()`. The job is stored in that transaction. Not `None`.",
    ),
    "after": Option(
        _after,
        "A job, a chain or an id, or a list of up to 10,000. The job is `blocked` until [their chains have "
        "succeeded](../guides/workflows.md#wait-for-others).",
    ),
    "on_blocker_failure": Option(
        _on_blocker_failure,
        'What happens [if one of them fails](../guides/workflows.md#when-one-of-them-fails): `"hold"` (default), '
        '`"fail"`, `"cancel"` or `"run"`. Only with `after`.',
    ),
    "batch": Option(
        batch_id,
        "The [`Batch`](../guides/workflows.md#batches) that the job is a member of, or `None`.",
    ),
}

JOB_OPTIONS = tuple(JobOptions.__annotations__)
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
    if not callable(function) or not hasattr(function, "__name__"):
        raise InvalidTask(f"task must be a function, got {validate.shown(function)}")
    named = dict(given)
    if named.get("name") is None:
        named["name"] = function.__name__
    options = TaskOptions(**checked(named, TaskDecoratorOptions.__annotations__))
    if options.pool == "process":
        _require_importable(function)
    return options


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
