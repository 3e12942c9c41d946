"""Hooks of an app: functions of the program around workers and jobs, `Inline` for `holdfast.testing.inline`, and
`Tracing` for `holdfast.contrib.otel`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from .. import validate
from ..context import Context
from ..errors import InvalidInput
from ..model.job import Inserted, NewJob

if TYPE_CHECKING:
    from .app import App


T = TypeVar("T")
Hook = Callable[[], Any]
HookName = Literal["on_worker_start", "on_worker_stop", "before_job", "after_job"]
Process = Literal["worker", "pool"]
log = logging.getLogger("holdfast.worker")


class Hooks:
    """The functions of a program that are called around workers and jobs."""

    def __init__(self) -> None:
        self._found: dict[HookName, list[tuple[Hook, Process | None]]] = {}

    def add(self, name: HookName, given: Sequence[Any], process: Process | None = None) -> Any:
        """Add a function and return it; or, if none is given, return a decorator that does. process: None: both."""
        if process not in (None, "worker", "pool"):
            raise InvalidInput(f"process must be 'worker', 'pool' or None, got {validate.shown(process)}")

        def decorate(function: Hook) -> Hook:
            if len(given) > 1 or not _is_plain(function):
                got = validate.shown(function)
                raise InvalidInput(f"{name} must be given a plain function without required arguments, got {got}")
            self._found.setdefault(name, []).append((function, process))
            return function

        return decorate(given[0]) if given else decorate

    def start(self, process: Process) -> None:
        """Call the start hooks of this kind of process. Raises what they raise."""
        for function, where in self._found.get("on_worker_start", ()):
            if where in (None, process):
                function()

    def stop(self, process: Process) -> None:
        """Call the stop hooks of this kind of process. Logs what they raise."""
        self._call_all("on_worker_stop", process)

    def middleware(self) -> Callable[[Context], Any] | None:
        """Return the layer that calls the hooks around each job, or None if there are none."""
        if "before_job" not in self._found and "after_job" not in self._found:
            return None

        def call_hooks(_: Context) -> Iterator[None]:
            self._call_all("before_job")
            try:
                yield
            finally:
                self._call_all("after_job")

        return call_hooks

    def _call_all(self, name: HookName, process: Process | None = None) -> None:
        for function, where in self._found.get(name, ()):
            if where in (None, process):
                try:
                    function()
                except Exception:  # user code
                    log.exception("the hook %s %s raised an exception", name, getattr(function, "__name__", function))


def _is_plain(function: Any) -> bool:
    from inspect import iscoroutinefunction, signature

    if not callable(function) or iscoroutinefunction(function):
        return False
    try:
        signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        return True
    return True


class Inline(Protocol):
    """Runs jobs in tests as soon as they are enqueued."""

    def enqueued(self, app: App, ids: Sequence[int], conn: Any) -> None:
        """Called when jobs were stored; with `conn`, they are stored when it commits."""
        ...

    def ended(self, app: App, job_id: int) -> None:
        """Called when `app.jobs` settled the job: jobs that waited for it may be ready."""
        ...

    def after_commit(self, app: App, transaction: AbstractContextManager[T]) -> AbstractContextManager[T]:
        """Wrap a transaction, to run its jobs after it committed."""
        ...


class Tracing(Protocol):
    """Wraps the inserts of the store, and adds the trace context to each job."""

    def insert(self, job: NewJob, conn: Any = None) -> Inserted: ...

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]: ...

    def middleware(self) -> Callable[[Context], Any] | None:
        """Return the middleware for every task, or None while tracing is off."""
        ...

    def current(self) -> str | None:
        """Return the current trace context, for a job that is stored later; None outside of a trace."""
        ...
