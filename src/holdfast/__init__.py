"""Durable jobs and messages for Python, in the database you already have."""

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
