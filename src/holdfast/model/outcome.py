"""Outcomes: values that a task returns or raises to say how its attempt ended."""

from typing import Any, ParamSpec, Protocol

from ..errors import HoldfastError, InvalidContinuation
from ..failure import check_code
from .job import _PAYLOADS, NewJob

P = ParamSpec("P")


class Outcome(Exception):
    """The base of all outcomes. Return one from a task, or raise it."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = Exception.__hash__  # some code puts exceptions in sets

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name not in _PAYLOADS)
        return f"{type(self).__name__}({fields})"

    __repr__ = __str__


class Retry(Outcome):
    """Try again after this many seconds, or by the retry policy of the task."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__(after)
        self.after = after


class Snooze(Outcome):
    """Run again in this many seconds, without using up an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Cancel(Outcome):
    """Cancel the job."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Outcome):
    """Fail the job now, even if it has attempts left."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = check_code(code), detail


class Continuable(Protocol[P]):
    """What `Then` continues with: a task, or `task.using(…)`."""

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def continuation(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> NewJob:
        """Check the arguments, and return the job that is enqueued."""
        ...


class Then(Outcome):
    """Succeed, and continue the chain with a job of another task, in the same transaction.

    Raises InvalidContinuation if the arguments do not fit the task.
    """

    trace: str | None = None  # the trace context of the attempt that returned it

    def __init__(self, task: Continuable[P], /, *args: P.args, **kwargs: P.kwargs) -> None:
        super().__init__(task)
        if not hasattr(task, "continuation"):
            raise InvalidContinuation(f"Then must be given a task or task.using(…), got {type(task).__qualname__}")
        self.task, self.arguments, self.named_arguments = task, args, kwargs
        try:
            self.new_job = task.continuation(args, kwargs)
        except HoldfastError as error:
            raise InvalidContinuation(str(error)) from error
