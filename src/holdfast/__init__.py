"""Durable jobs and messages for Python, in the database you already have."""

from typing import TYPE_CHECKING

from .late import late

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

if not TYPE_CHECKING:  # so that a name which is not there is still an error to a type checker
    __getattr__, __dir__ = late(
        __name__,
        {
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
        },
    )
