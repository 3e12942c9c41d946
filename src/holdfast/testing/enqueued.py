"""What was enqueued: to look at, to assert, and to refute."""

from __future__ import annotations  # so that they cost nothing at import

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..app.job import Job
from ..app.jobs import all_records
from ..model import Criteria
from .expected import Expected, Target, Trait, written

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
