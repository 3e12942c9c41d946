"""What the tests of schedules share: noon of a day in June, and what has fired since."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import Holdfast
from holdfast.testing import FakeClock
from holdfast.worker.scheduler import Scheduler

Sql = Callable[..., list[Any]]

NOON = datetime(2026, 6, 17, 12, tzinfo=UTC)
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 365 * 86_400
POLICIES = ["coalesce", "skip", "catch_up"]


def scheduler_of(app: Holdfast, clock: FakeClock) -> Scheduler:
    """What a worker of this app starts with."""
    one = Scheduler(app.store, clock, app.tasks, app.schedules.declared.values())
    one.store_declared()
    return one


def fire_all(scheduler: Scheduler) -> float:
    """Let it fire until nothing is due, as the rounds of a worker do, and return when the next is."""
    while (seconds := scheduler.fire_due()) == 0.0 and scheduler.has_more:
        pass
    return seconds


def fired(app: Holdfast, *, since: datetime = NOON) -> list[float]:
    """The minutes after noon of every job, oldest first."""
    return [(job.run_at - since) / timedelta(minutes=1) for job in reversed(app.jobs.list(limit=1000))]


def stored_fires(sql: Sql) -> int:
    ((number,),) = sql("SELECT count(*) FROM holdfast_fires")
    assert isinstance(number, int)
    return number
