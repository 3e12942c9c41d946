"""Calls that are not enqueued yet: `task.s(…)`, several at once by `group(…)`, in line by `app.chain(…)`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import InvalidInput
from ..model import NewJob
from . import checks

if TYPE_CHECKING:
    from .app import App
    from .job import Job
    from .task import BoundTask


class Step:
    """A task with its arguments and options, checked. Immutable, and enqueued by what takes steps."""

    def __init__(self, task: BoundTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._task, self._arguments = task, task.encode(args, kwargs)

    @property
    def app(self) -> App:
        return self._task.app

    def new_job(self) -> NewJob:
        if self._task.conn is not None:
            raise InvalidInput(f"{self!r} takes no conn: it is enqueued later, or by what takes it")
        return self._task.new_job(self._arguments)

    def enqueue_after(self, jobs: Sequence[Job[Any]], conn: Any) -> Job[Any]:
        """Behind these jobs, and behind what its own `after=` names."""
        return self._task.behind([job.id for job in jobs], conn).enqueue_encoded(self._arguments)

    def __repr__(self) -> str:
        return f"<Step of {self._task!r}>"


class Group:
    """Steps that may run at the same time."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return f"<Group of {len(self.steps)}>"


def group(*steps: Step) -> Group:
    """Steps that may run at the same time, as one link of `app.chain(…)`: what comes next waits for all of them."""
    if not steps:
        raise InvalidInput("a group has at least one step, such as group(resize.s(1), resize.s(2))")
    for step in steps:
        _require_step(step, "a group takes steps")
    return Group(steps)


def enqueue_in_line(app: App, links: Sequence[Step | Group], conn: Any) -> list[Job[Any]]:
    """Each link waits for all jobs of the one before."""
    made: list[Job[Any]] = []
    before: list[Job[Any]] = []
    for link in links:
        before = [step.enqueue_after(before, conn) for step in (link.steps if isinstance(link, Group) else (link,))]
        made += before
    for job in made:
        app.tell_inline([job.id], conn)
    return made


def check_links(app: App, links: Sequence[Any]) -> None:
    if not links:
        raise InvalidInput("a chain has at least one step, such as app.chain(fetch.s(1), store.s())")
    for link in links:
        for step in link.steps if isinstance(link, Group) else (link,):
            _require_step(step, "a chain takes steps and groups of them")
            app.require_own(step)


def callback(app: App, value: Any, what: str) -> NewJob | None:
    """What `on_success` and `on_done` name: a task, one with options, or a step."""
    if value is None:
        return None
    step = value if isinstance(value, Step) else value.s() if hasattr(value, "s") else None
    if not isinstance(step, Step):
        raise InvalidInput(f"{what} takes a task, such as report or report.s(7), not {checks.shown(value)}")
    app.require_own(step)
    job, tracing = step.new_job(), app._tracing
    job = job if tracing is None else replace(job, trace=tracing.current())
    if job.links is not None or job.key is not None:
        raise InvalidInput(f"{what} is enqueued when the batch has ended: it takes no after, batch or key")
    return job


def _require_step(step: Any, rule: str) -> None:
    if not isinstance(step, Step):
        raise InvalidInput(f"{rule}, such as fetch.s(1), not {checks.shown(step)}")
