"""The worker is woken by commits and due times, and does not poll."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from support.running_worker import RunningWorker, comes_true, eventually

TRIES = 6

pytestmark = pytest.mark.usefixtures("no_polling")


def delays(app: Holdfast, enqueue: Callable[[], object]) -> list[int]:
    """Measure several times how long an idle worker takes to start a job, by its own clock, in microseconds."""
    found = []
    for _ in range(TRIES):
        before = len(started)
        enqueued = app.clock.now()
        enqueue()
        eventually(lambda: len(started) > before)  # noqa: B023
        found.append(started[-1] - enqueued)
    return found


started: list[int] = []


@pytest.mark.parametrize("behind", [None, "sync", "async"])
def test_a_worker_is_woken_while_another_job_runs(live: Holdfast, behind: str | None) -> None:
    release, running = threading.Event(), threading.Event()
    started.clear()

    @live.task
    def quick() -> None:
        started.append(live.clock.now())

    @live.task
    def long() -> None:
        running.set()
        comes_true(release)

    @live.task
    async def long_later() -> None:
        running.set()
        while not release.is_set():
            await asyncio.sleep(0.01)

    with RunningWorker(live, concurrency=3):
        delays(live, quick.enqueue)  # so that the worker is idle afterwards
        if behind is not None:
            (long if behind == "sync" else long_later).enqueue()
            comes_true(running)
        delays(live, quick.enqueue)
        release.set()


def test_a_scheduled_job_starts_when_it_is_due(live: Holdfast) -> None:
    started.clear()

    @live.task
    def quick() -> None:
        started.append(live.clock.now())

    with RunningWorker(live):
        delays(live, quick.enqueue)
        found = delays(live, lambda: quick.using(delay=0.3).enqueue())
    assert min(found) >= 0.3 * SECOND


def test_a_retry_starts_when_it_is_due(live: Holdfast) -> None:
    moments: list[int] = []

    @live.task(retry=0.25)
    def stumble() -> None:
        moments.append(live.clock.now())
        if len(moments) < 4:
            raise ValueError("again")

    with RunningWorker(live):
        stumble.enqueue()
        eventually(lambda: len(moments) == 4)
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    assert min(gaps) >= 0.25 * SECOND
