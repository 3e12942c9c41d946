"""The interface for programs: apps, tasks, jobs, queues, schedules and workflows."""

from typing import TYPE_CHECKING

from ..lazy import lazy_imports

if TYPE_CHECKING:
    from .app import App


__all__ = ["App"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__, {"App": "app"})
