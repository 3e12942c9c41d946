"""Durable jobs and messages for Python, in the database you already have."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app.batches import Batch
    from .app.chains import Chain
    from .app.job import Job
    from .app.queue import Message, Queue
    from .app.steps import group
    from .app.task import Task
    from .context import Context
    from .errors import HoldfastError, JobError
    from .model import Cancel, Fail, Page, Retry, Snooze, Then
    from .process import Holdfast
    from .retention import Retention, Rule
    from .retry import backoff, delays, fixed, linear

__all__ = [
    "Holdfast",
    "Context",
    "Task",
    "Job",
    "Chain",
    "Batch",
    "group",
    "Queue",
    "Message",
    "Page",
    "Retry",
    "Snooze",
    "Cancel",
    "Fail",
    "Then",
    "HoldfastError",
    "JobError",
    "backoff",
    "linear",
    "fixed",
    "delays",
    "Retention",
    "Rule",
]

__version__ = "0.1.0"

_PLACES = {
    "Holdfast": "process",
    "Context": "context",
    "Task": "app.task",
    "Job": "app.job",
    "Chain": "app.chains",
    "Batch": "app.batches",
    "group": "app.steps",
    "Queue": "app.queue",
    "Message": "app.queue",
    "Page": "model",
    "Retry": "model",
    "Snooze": "model",
    "Cancel": "model",
    "Fail": "model",
    "Then": "model",
    "HoldfastError": "errors",
    "JobError": "errors",
    "backoff": "retry",
    "linear": "retry",
    "fixed": "retry",
    "delays": "retry",
    "Retention": "retention",
    "Rule": "retention",
}


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: `holdfast health` is to be quick, and needs next to none of it."""
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
