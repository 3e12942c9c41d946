"""A worker's scheduler at noon, and a task for it."""

import pytest

from holdfast import Holdfast, Task
from holdfast.clock import SECOND
from holdfast.testing import FakeClock
from holdfast.worker.scheduler import Scheduler
from support.scheduling import NOON, scheduler_of


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(int(NOON.timestamp()) * SECOND)


@pytest.fixture
def work(app: Holdfast) -> Task[..., None]:
    @app.task(queue="slow", priority=3, max_attempts=2, timeout=9)
    def work(n: int = 0, word: str = "") -> None: ...

    return work


@pytest.fixture
def scheduler(app: Holdfast, work: Task[..., None], clock: FakeClock) -> Scheduler:
    return scheduler_of(app, clock)
