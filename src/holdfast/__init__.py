"""Durable jobs and messages for Python, in the database you already have."""

from typing import TYPE_CHECKING

from .lazy import lazy_imports

if TYPE_CHECKING:
    from .app.job import Job
    from .app.queue import Message, Queue
    from .app.task import Task
    from .app.workflows import Batch, Chain, group
    from .context import Context
    from .errors import HoldfastError, JobError, JobFailed, WaitTimeout
    from .model.job import FailureReport, Page
    from .model.outcome import Cancel, Fail, Retry, Snooze, Then
    from .retention import Retention, Rule
    from .retry_policies import backoff, delays, fixed, linear
    from .supervisor import Holdfast


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
    "FailureReport",
    "Retry",
    "Snooze",
    "Cancel",
    "Fail",
    "Then",
    "HoldfastError",
    "JobError",
    "JobFailed",
    "WaitTimeout",
    "backoff",
    "linear",
    "fixed",
    "delays",
    "Retention",
    "Rule",
]
__version__ = "0.1.0"
if not TYPE_CHECKING:  # so that a name which is not there is still an error to a type checker
    __getattr__, __dir__ = lazy_imports(
        __name__,
        {
            "Holdfast": "supervisor",
            "Context": "context",
            "Task": "app.task",
            "Job": "app.job",
            "Chain": "app.workflows",
            "Batch": "app.workflows",
            "group": "app.workflows",
            "Queue": "app.queue",
            "Message": "app.queue",
            "Page": "model.job",
            "FailureReport": "model.job",
            "Retry": "model.outcome",
            "Snooze": "model.outcome",
            "Cancel": "model.outcome",
            "Fail": "model.outcome",
            "Then": "model.outcome",
            "HoldfastError": "errors",
            "JobError": "errors",
            "JobFailed": "errors",
            "WaitTimeout": "errors",
            "backoff": "retry_policies",
            "linear": "retry_policies",
            "fixed": "retry_policies",
            "delays": "retry_policies",
            "Retention": "retention",
            "Rule": "retention",
        },
    )
