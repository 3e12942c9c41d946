"""What was enqueued: to look at, to assert, and to refute."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from .. import validate
from ..app import App
from ..app.job import Job
from ..app.jobs import all_records
from ..app.options import OPTIONS
from ..app.task import BoundTask, Task
from ..clock import SECOND, as_datetime
from ..codec import decoder, encode
from ..errors import InvalidArguments, InvalidInput, InvalidPayload
from ..failure import shorten
from ..model.job import Criteria

LONGEST_VALUE = 300
Target = App | Task[..., Any] | BoundTask[..., Any]
_plain = decoder(Any)

# What is found in a job for each option that can be expected.
FOUND: dict[str, Callable[[Job[Any]], Any]] = {
    "queue": lambda job: job.queue,
    "priority": lambda job: job.priority,
    "key": lambda job: job.key,
    "delay": lambda job: (job.run_at - job.created_at).total_seconds(),
    "run_at": lambda job: job.run_at,
    "tags": lambda job: job.tags,
    "status": lambda job: job.status,
    "max_attempts": lambda job: job.max_attempts,
    "timeout": lambda job: job.timeout,
    "after": lambda job: tuple(one.chain_id for one in job._app.store.workflows.blockers(job.id).found),
    "on_blocker_failure": lambda job: job.on_blocker_failure,
    "batch": lambda job: job.batch_id,
}

# From the checked values that `task.using(…)` keeps.
_FROM_USING: dict[str, Callable[[Any], Any]] = {
    "delay": lambda value: value / SECOND,
    "run_at": as_datetime,
    "timeout": lambda value: None if value is None else value / SECOND,
    "tags": lambda value: msgspec.json.decode(value),
}
_SAYS_NOTHING_OF_THE_JOB = {"key_window", "on_conflict", "conn"}


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


class Trait(Struct, frozen=True):
    """One thing that was expected, or is there beside that."""

    name: str
    expected: str | None
    found: str
    fits: bool = True


class Expected:
    """A task, some of its arguments, and some options; or an app and some options. And how many, if `counts`."""

    def __init__(self, target: Target, args: tuple[Any, ...], match: Mapping[str, Any], counts: bool = False) -> None:
        self.app, self.task, self.options = _parts(target)
        self._parameters = {} if self.task is None else _parameters(self.task)
        self.arguments = self._by_position(args)
        self.count: int | None = None
        for name, value in match.items():
            if name in self.arguments:
                raise InvalidArguments(f"the argument {name!r} was given twice")
            if name in self._parameters:
                self.arguments[name] = value
            elif name in FOUND:
                self.options[name] = _checked(name, value)
            elif counts and name == "count":
                self.count = validate.integer(value, "count", 0, 2**63 - 1)
            else:
                known = [*self._parameters, *FOUND, *(["count"] if counts else [])]
                raise validate.suggest(name, known, "argument or option")

    def traits(self, job: Job[Any]) -> list[Trait]:
        """What was expected and beside it what there is; and the job's other arguments."""
        return [*self._of_arguments(job), *self._of_options(job)]

    def _of_arguments(self, job: Job[Any]) -> Iterator[Trait]:
        given = arguments_of(job)
        for name, value in self.arguments.items():
            default = self._parameters[name].default
            found = given.get(name, _Missing() if default is inspect.Parameter.empty else default)
            yield Trait(name, written(value), written(found), _is_same(value, found))
        for name, value in given.items():
            if name not in self.arguments:
                yield Trait(name, None, written(value))

    def _of_options(self, job: Job[Any]) -> Iterator[Trait]:
        for name, value in self.options.items():
            found = FOUND[name](job)
            yield Trait(name, written(value), written(found), _fits(name, value, found))

    def _by_position(self, args: tuple[Any, ...]) -> dict[str, Any]:
        by_position = [name for name, one in self._parameters.items() if one.kind is not one.KEYWORD_ONLY]
        if len(args) > len(by_position):
            taker = "an app" if self.task is None else self.task.name
            raise InvalidArguments(f"{taker} takes {len(by_position)} arguments by position, not {len(args)}")
        return dict(zip(by_position, args, strict=False))


def arguments_of(job: Job[Any]) -> dict[str, Any]:
    try:
        found = job.args
    except InvalidPayload as error:  # put there by hand
        return {"args": f"({error})"}
    return found if isinstance(found, dict) else {"args": found}


def _parts(target: Target) -> tuple[App, Task[..., Any] | None, dict[str, Any]]:
    if isinstance(target, App):
        return target, None, {}
    if isinstance(target, Task):
        return target.app, target, {}
    if isinstance(target, BoundTask):
        known = {name: value for name, value in target._options.items() if name not in _SAYS_NOTHING_OF_THE_JOB}
        using = {name: _FROM_USING[name](value) if name in _FROM_USING else value for name, value in known.items()}
        return target._task.app, target._task, using
    raise InvalidInput(f"this takes a task, task.using(…) or an app, not {validate.shown(target)}")


def _parameters(task: Task[..., Any]) -> dict[str, inspect.Parameter]:
    whole = inspect.signature(task.function).parameters
    return {name: one for name, one in whole.items() if name != task.signature.context_parameter}


def _checked(name: str, value: Any) -> Any:
    """Times are compared by their size, so they must be times; jobs and batches by their ids."""
    if name in ("after", "batch"):
        return OPTIONS[name].check(value)
    check: Callable[[Any, str], int] | None = {"delay": validate.duration, "run_at": validate.moment}.get(name)
    if check is None:
        return value
    if not isinstance(value, (tuple, list)):
        check(value, name)
        return _in_seconds(value)
    if len(value) != 2:
        raise InvalidInput(f"{name} is one value or the two ends of a range, not {validate.shown(value)}")
    for one in value:
        check(one, name)
    return tuple(map(_in_seconds, value))


def _in_seconds(value: Any) -> Any:
    return value if isinstance(value, (datetime, int, float)) else value.total_seconds()


def _fits(name: str, expected: Any, found: Any) -> bool:
    if name in ("delay", "run_at") and isinstance(expected, tuple):
        return bool(expected[0] <= found <= expected[1])
    if name == "tags":
        return set(validate.one_or_several(expected, "tags")) <= set(found)
    if name == "after":
        return set(expected) <= set(found)
    if name == "status":
        return found in validate.statuses(expected)
    return bool(expected == found)


def _is_same(expected: Any, found: Any) -> bool:
    """As it is, or as it is stored. The first is for what only compares, such as `unittest.mock.ANY`."""
    if expected == found:
        return True
    try:
        return bool(_plain(encode(expected)) == _plain(encode(found)))
    except InvalidPayload:
        return False


def written(value: Any) -> str:
    """As a message shows it. This is for tests, which may see arguments."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple) and any(isinstance(one, datetime) for one in value):
        return " to ".join(one.isoformat() for one in value)
    try:
        return shorten(repr(value), LONGEST_VALUE)
    except Exception:  # noqa: BLE001  the caller's own __repr__
        return f"a {type(value).__qualname__}"


MOST_SHOWN = 5


def enqueued(what: Target, /, *args: Any, **match: Any) -> list[Job[Any]]:
    """The jobs of a task, or of all tasks of an app, that fit, whatever became of them. The oldest first.

    args, match: as for `assert_enqueued`.
    """
    return _Search(Expected(what, args, match)).fitting


def assert_enqueued(what: Target, /, *args: Any, **match: Any) -> list[Job[Any]]:
    """There is a job of the task with these arguments and options. Returns all such jobs, the oldest first.

    what: a task, `task.using(…)` with the options to expect, or an app for any of its tasks.
    args: arguments by position. Those that are not named may be anything.
    match: arguments by name, and the options `queue`, `priority`, `key`, `delay`, `run_at`, `tags`, `status`,
        `max_attempts`, `timeout`, `after`, `on_blocker_failure`, `batch`; and `count`, for exactly so many jobs.
        `delay` and `run_at` may be a pair: the ends of a range. A name that the task has a parameter of is an
        argument; then the option goes into `using`.
    """
    __tracebackhide__ = True
    search = _Search(Expected(what, args, match, counts=True))
    count = search.expected.count
    if (count is None and search.fitting) or count == len(search.fitting):
        return search.fitting
    raise AssertionError(search.complaint())


def refute_enqueued(what: Target, /, *args: Any, **match: Any) -> None:
    """There is no job of the task with these arguments and options, which are as for `assert_enqueued`."""
    __tracebackhide__ = True
    search = _Search(Expected(what, args, match))
    if search.fitting:
        raise AssertionError(search.objection())


class _Search:
    """The jobs in question, those that fit, and what to say of them."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        task = expected.task
        self._jobs = list(_stored(expected, Criteria(task=() if task is None else (task.name,), messages=False)))
        self.fitting = [job for job in self._jobs if not _misfits(expected.traits(job))]

    def complaint(self) -> str:
        if not self._jobs:
            return f"no job {self._wish()} was enqueued; {self._others()}"
        count = self.expected.count
        if count is None:
            head = f"no job {self._wish()} was enqueued.\nThere are {len(self._jobs)}, the nearest first"
        else:
            head = f"{len(self.fitting)} and not {count} jobs {self._wish()} were enqueued.\nThe nearest first"
        return self._list(f"{head} (- expected, + found):", self._jobs)

    def objection(self) -> str:
        number = "a job" if len(self.fitting) == 1 else f"{len(self.fitting)} jobs"
        return self._list(f"{number} {self._wish()} should not have been enqueued:", self.fitting)

    def _wish(self) -> str:
        expected = self.expected
        wanted = [*expected.arguments.items(), *expected.options.items()]
        wishes = [f"{name}={written(value)}" for name, value in wanted]
        task = "of any task" if expected.task is None else f"of {expected.task.name}"
        return f"{task} with {', '.join(wishes)}" if wishes else task

    def _others(self) -> str:
        everything = Criteria(messages=False)
        numbers = Counter(job.task for job in _stored(self.expected, everything))
        found = ", ".join(f"{number} of {task}" for task, number in numbers.most_common())
        return f"what there is: {found}" if found else "nothing was"

    def _list(self, head: str, jobs: Sequence[Job[Any]]) -> str:
        nearest = sorted(jobs, key=lambda job: (_misfits(self.expected.traits(job)), -job.id))
        parts = [head, *(self._one(job) for job in nearest[:MOST_SHOWN])]
        left = len(nearest) - MOST_SHOWN
        return "\n\n".join([*parts, f"… and {left} more"] if left > 0 else parts)

    def _one(self, job: Job[Any]) -> str:
        name = "" if self.expected.task is not None else f" {job.task}"
        head = f"job {job.id}{name}, {job.status} on {job.queue}, attempt {job.attempt} of {job.max_attempts}"
        return "\n".join([head, *(line for trait in self.expected.traits(job) for line in _lines(trait))])


def _stored(expected: Expected, criteria: Criteria) -> Iterator[Job[Any]]:
    """The oldest first."""
    return (Job(expected.app, record) for record in all_records(expected.app.store, criteria))


def _misfits(traits: Sequence[Trait]) -> int:
    return sum(not trait.fits for trait in traits)


def _lines(trait: Trait) -> list[str]:
    if trait.fits:
        return [f"    {trait.name}={trait.found}"]
    return [f"  - {trait.name}={trait.expected}", f"  + {trait.name}={trait.found}"]
