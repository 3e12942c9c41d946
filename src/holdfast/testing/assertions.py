"""Find the jobs that a test enqueued, and assert that they were, or were not, enqueued."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from .. import validate
from ..app import App
from ..app.job import Job
from ..app.jobs import all_records
from ..app.options import OPTIONS
from ..app.task import BoundTask, Task
from ..codec import decoder, encode
from ..errors import InvalidArguments, InvalidInput, InvalidPayload
from ..failure import shorten
from ..model.job import Criteria
from ..text import plural

MAX_JOBS_SHOWN = 5
MAX_VALUE_LENGTH = 300
Target = App | Task[..., Any] | BoundTask[..., Any]
_plain = decoder(Any)

# How to read from a job each option that a test can expect.
OPTION_VALUES: dict[str, Callable[[Job[Any]], Any]] = {
    **{name: option.of_job for name, option in OPTIONS.items() if option.of_job is not None},
    "status": lambda job: job.status,
}


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


class Comparison(Struct, frozen=True):
    """An argument or option of a job, and what was expected, if anything."""

    name: str
    expected: str | None
    found: str
    matches: bool = True


class Expected:
    """The expected task, arguments and options.

    with_count: accept the option `count`, the expected number of jobs.
    """

    def __init__(
        self, target: Target, args: tuple[Any, ...], match: Mapping[str, Any], with_count: bool = False
    ) -> None:
        self.app, self.task, self.options = _unpack(target)
        self._parameters = {} if self.task is None else _parameters(self.task)
        self.arguments = self._by_position(args)
        self.count: int | None = None
        for name, value in match.items():
            if name in self.arguments:
                raise InvalidArguments(f"got two values for the argument {name!r}")
            if name in self._parameters:
                self.arguments[name] = value
            elif name in OPTION_VALUES:
                self.options[name] = _checked(name, value)
            elif with_count and name == "count":
                self.count = validate.integer(value, "count", 0, 2**63 - 1)
            else:
                known = [*self._parameters, *OPTION_VALUES, *(["count"] if with_count else [])]
                raise validate.suggest(name, known, "argument or option")

    def compare(self, job: Job[Any]) -> list[Comparison]:
        """Compare a job with what is expected. The job's other arguments are included."""
        return [*self._compare_arguments(job), *self._compare_options(job)]

    def _compare_arguments(self, job: Job[Any]) -> Iterator[Comparison]:
        given = arguments_of(job)
        for name, value in self.arguments.items():
            default = self._parameters[name].default
            found = given.get(name, _Missing() if default is inspect.Parameter.empty else default)
            yield Comparison(name, show(value), show(found), _is_same(value, found))
        for name, value in given.items():
            if name not in self.arguments:
                yield Comparison(name, None, show(value))

    def _compare_options(self, job: Job[Any]) -> Iterator[Comparison]:
        for name, value in self.options.items():
            at_a_time = name == "expires" and isinstance(value, datetime)
            found = job.expires_at if at_a_time else OPTION_VALUES[name](job)
            yield Comparison(name, show(value), show(found), _matches(name, value, found))

    def _by_position(self, args: tuple[Any, ...]) -> dict[str, Any]:
        by_position = [name for name, one in self._parameters.items() if one.kind is not one.KEYWORD_ONLY]
        if len(args) > len(by_position):
            target = "an app" if self.task is None else self.task.name
            raise InvalidArguments(f"{target} takes at most {len(by_position)} positional arguments, got {len(args)}")
        return dict(zip(by_position, args, strict=False))


def arguments_of(job: Job[Any]) -> dict[str, Any]:
    try:
        found = job.args
    except InvalidPayload as error:  # stored by plain SQL
        return {"args": f"({error})"}
    return found if isinstance(found, dict) else {"args": found}


def _unpack(target: Target) -> tuple[App, Task[..., Any] | None, dict[str, Any]]:
    if isinstance(target, App):
        return target, None, {}
    if isinstance(target, Task):
        return target.app, target, {}
    if isinstance(target, BoundTask):
        using = {name: OPTIONS[name].shown(value) for name, value in target._options.items() if name in OPTION_VALUES}
        return target._task.app, target._task, using
    raise InvalidInput(f"the first argument must be a task, task.using(…) or an app, got {validate.shown(target)}")


def _parameters(task: Task[..., Any]) -> dict[str, inspect.Parameter]:
    whole = inspect.signature(task.function).parameters
    return {name: one for name, one in whole.items() if name != task.signature.context_parameter}


def _checked(name: str, value: Any) -> Any:
    """Validate an expected option. Times may be ranges; jobs and batches become ids."""
    if name in ("after", "batch", "expires"):
        return OPTIONS[name].shown(OPTIONS[name].check(value))
    check: Callable[[Any, str], int] | None = {"delay": validate.duration, "run_at": validate.moment}.get(name)
    if check is None:
        return value
    if not isinstance(value, (tuple, list)):
        check(value, name)
        return _in_seconds(value)
    if len(value) != 2:
        raise InvalidInput(f"{name} must be one value or a pair, the ends of a range, got {validate.shown(value)}")
    for one in value:
        check(one, name)
    return tuple(map(_in_seconds, value))


def _in_seconds(value: Any) -> Any:
    return value if isinstance(value, (datetime, int, float)) else value.total_seconds()


def _matches(name: str, expected: Any, found: Any) -> bool:
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
    """Return whether the values are equal (so that `unittest.mock.ANY` works), or else whether their JSON is."""
    if expected == found:
        return True
    try:
        return bool(_plain(encode(expected)) == _plain(encode(found)))
    except InvalidPayload:
        return False


def show(value: Any) -> str:
    """Format a value for a message. Unlike elsewhere, messages of tests may show arguments."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple) and any(isinstance(one, datetime) for one in value):
        return " to ".join(one.isoformat() for one in value)
    try:
        return shorten(repr(value), MAX_VALUE_LENGTH)
    except Exception:  # noqa: BLE001  the caller's own __repr__
        return f"a {type(value).__qualname__}"


def enqueued(what: Target, /, *args: Any, **match: Any) -> list[Job[Any]]:
    """Return the matching jobs of a task, or of all tasks of an app, in any status, oldest first.

    args, match: as for `assert_enqueued`.
    """
    return _Search(Expected(what, args, match)).matching


def assert_enqueued(what: Target, /, *args: Any, **match: Any) -> list[Job[Any]]:
    """Assert that a job of the task with these arguments and options was enqueued. Returns them, oldest first.

    what: a task, `task.using(…)` with the expected options, or an app for any of its tasks.
    args: positional arguments of the task. Arguments that are not given may have any value.
    match: keyword arguments of the task, the options of `using` that a job keeps, such as `queue`, `key` and `delay`,
        the `status` of the job, and `count`, the exact number of such jobs. `delay` and `run_at` may be a pair, the
        ends of a range. If the task has a parameter with the name of an option, the name means the argument; pass the
        option with `using`.
    """
    __tracebackhide__ = True
    search = _Search(Expected(what, args, match, with_count=True))
    count = search.expected.count
    if (count is None and search.matching) or count == len(search.matching):
        return search.matching
    raise AssertionError(search.not_enqueued_message())


def refute_enqueued(what: Target, /, *args: Any, **match: Any) -> None:
    """Assert that no job with these arguments and options was enqueued.

    Takes the same arguments as `assert_enqueued`, except `count`.
    """
    __tracebackhide__ = True
    search = _Search(Expected(what, args, match))
    if search.matching:
        raise AssertionError(search.enqueued_message())


class _Search:
    """The jobs of a task, those that match, and the messages about them."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        task = expected.task
        self._jobs = list(_stored(expected, Criteria(task=() if task is None else (task.name,), messages=False)))
        self.matching = [job for job in self._jobs if not _mismatches(expected.compare(job))]

    def not_enqueued_message(self) -> str:
        if not self._jobs:
            return f"no job {self._description()} was enqueued; {self._other_tasks()}"
        count = self.expected.count
        if count is None:
            others = plural(len(self._jobs), "other job")
            head = f"no job {self._description()} was enqueued.\nFound {others}, closest match first"
        else:
            head = (
                f"expected {plural(count, 'job')} {self._description()}, found {len(self.matching)}.\nClosest first"
            )
        return self._list(f"{head} (- expected, + found):", self._jobs)

    def enqueued_message(self) -> str:
        return self._list(f"expected no job {self._description()}, found {len(self.matching)}:", self.matching)

    def _description(self) -> str:
        expected = self.expected
        wanted = [*expected.arguments.items(), *expected.options.items()]
        values = [f"{name}={show(value)}" for name, value in wanted]
        task = "of any task" if expected.task is None else f"of {expected.task.name}"
        return f"{task} with {', '.join(values)}" if values else task

    def _other_tasks(self) -> str:
        everything = Criteria(messages=False)
        numbers = Counter(job.task for job in _stored(self.expected, everything))
        found = ", ".join(f"{number} of {task}" for task, number in numbers.most_common())
        return f"found jobs of other tasks: {found}" if found else "found no jobs at all"

    def _list(self, head: str, jobs: Sequence[Job[Any]]) -> str:
        closest = sorted(jobs, key=lambda job: (_mismatches(self.expected.compare(job)), -job.id))
        parts = [head, *(self._show_job(job) for job in closest[:MAX_JOBS_SHOWN])]
        left = len(closest) - MAX_JOBS_SHOWN
        return "\n\n".join([*parts, f"… and {left} more"] if left > 0 else parts)

    def _show_job(self, job: Job[Any]) -> str:
        name = "" if self.expected.task is not None else f" {job.task}"
        head = f"job {job.id}{name}, {job.status} on {job.queue}, attempt {job.attempt} of {job.max_attempts}"
        return "\n".join([head, *(line for one in self.expected.compare(job) for line in _lines(one))])


def _stored(expected: Expected, criteria: Criteria) -> Iterator[Job[Any]]:
    """Yield the stored jobs, oldest first."""
    return (Job(expected.app, record) for record in all_records(expected.app.store, criteria))


def _mismatches(comparisons: Sequence[Comparison]) -> int:
    return sum(not one.matches for one in comparisons)


def _lines(one: Comparison) -> list[str]:
    if one.matches:
        return [f"    {one.name}={one.found}"]
    return [f"  - {one.name}={one.expected}", f"  + {one.name}={one.found}"]
