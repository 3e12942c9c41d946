"""model.outcome."""

from typing import Any

from ..failure import check_code
from .job import _PAYLOADS

# --- outcomes: what a task returns to say how it ended --------------------------------------------


class Outcome(Exception):
    """Return it, or raise it where that is handier."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = Exception.__hash__  # some code puts exceptions in sets

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name not in _PAYLOADS)
        return f"{type(self).__name__}({fields})"

    __repr__ = __str__


class Retry(Outcome):
    """Try again, after so many seconds or by the task's own policy."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__(after)
        self.after = after


class Snooze(Outcome):
    """Come back in so many seconds; this does not use up an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Cancel(Outcome):
    """End as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Outcome):
    """End as failed, now, however many attempts are left."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = check_code(code), detail


class Then(Outcome):
    """End as succeeded and go on with another task, in the same transaction."""

    trace: str | None = None  # of the attempt that gave it, where that is traced

    def __init__(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        super().__init__(task)
        self.task, self.arguments, self.named_arguments = task, args, kwargs
