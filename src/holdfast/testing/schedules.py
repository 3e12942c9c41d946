"""Cron schedules, fired as a worker would."""

from __future__ import annotations  # so that they cost nothing at import

import math
from typing import TYPE_CHECKING

from ..app import App
from ..clock import SECOND

if TYPE_CHECKING:
    from ..run.scheduler import Scheduler


def store_declared(app: App) -> None:
    """As a worker does at its start."""
    if app.schedules.declared:
        _scheduler(app).store_declared()


def fire(app: App) -> float:
    """Enqueue what is due. Returns the moment of the next occurrence; infinity if there is none."""
    if not app.store.schedules.list("", 1):
        return math.inf
    seconds = _scheduler(app).fire_due()
    return math.inf if seconds == math.inf else app.clock.now() + round(seconds * SECOND)


def _scheduler(app: App) -> Scheduler:
    """A new one each time: it would not look again before a second has passed, and here time may stand still."""
    from ..run.scheduler import Scheduler  # here, since it is slow to import and not all programs have schedules

    return Scheduler(app.store, app.clock, app.tasks, app.schedules.declared.values())
