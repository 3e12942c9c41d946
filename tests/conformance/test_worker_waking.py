"""The worker begins what there is to do when it is told of it, and not when it happens to look."""

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from holdfast import Holdfast
from support.running_worker import RunningWorker, comes_true, eventually

TRIES = 6

pytestmark = pytest.mark.usefixtures("no_polling")


def delays(app: Holdfast, enqueue: Callable[[], object]) -> list[float]:
    """How long an idle worker takes to begin, several times over."""
    found = []
    for _ in range(TRIES):
        before = len(began)
        enqueued = time.monotonic()
        enqueue()
        eventually(lambda: len(began) > before)  # noqa: B023
        found.append(began[-1] - enqueued)
    return found


began: list[float] = []


@pytest.mark.parametrize("behind", [None, "sync", "async"])
def test_an_idle_worker_is_woken_also_while_another_job_runs(live: Holdfast, behind: str | None) -> None:
    release, running = threading.Event(), threading.Event()
    began.clear()

    @live.task
    def quick() -> None:
        began.append(time.monotonic())

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
        delays(live, quick.enqueue)  # until it is idle
        if behind is not None:
            (long if behind == "sync" else long_later).enqueue()
            comes_true(running)
        delays(live, quick.enqueue)
        release.set()


def test_a_scheduled_job_begins_when_it_is_due(live: Holdfast) -> None:
    began.clear()

    @live.task
    def quick() -> None:
        began.append(time.monotonic())

    with RunningWorker(live):
        delays(live, quick.enqueue)
        found = delays(live, lambda: quick.using(delay=0.3).enqueue())
    assert min(found) >= 0.299


def test_a_retry_begins_when_it_is_due(live: Holdfast) -> None:
    moments: list[float] = []

    @live.task(retry=0.25)
    def stumble() -> None:
        moments.append(time.monotonic())
        if len(moments) < 4:
            raise ValueError("again")

    with RunningWorker(live):
        stumble.enqueue()
        eventually(lambda: len(moments) == 4)
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    assert min(gaps) >= 0.249
