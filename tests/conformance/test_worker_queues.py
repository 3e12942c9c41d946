"""The worker: which jobs it claims, in which order, how many run at once, and how many it claims ahead."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import InvalidInput
from support.running_worker import PATIENCE_SECONDS, Gauge, RunningWorker, comes_true, drain, eventually, left

Open = Callable[..., Holdfast]


# --- which, and in which order --------------------------------------------------------------------


@pytest.fixture
def order(app: Holdfast) -> list[str]:
    """The names of the jobs in the order in which they run. The task is `note`."""
    seen: list[str] = []

    @app.task
    def note(name: str) -> None:
        seen.append(name)

    return seen


def test_jobs_run_by_priority_and_then_in_order_of_enqueue(app: Holdfast, order: list[str]) -> None:
    note = app.tasks["note"]
    for name, priority in (("c", 0), ("a", 10), ("d", 0), ("e", -5), ("b", 5)):
        note.using(priority=priority, queue=f"queue-{name}").enqueue(name)
    drain(app, concurrency=1)
    assert order == ["a", "b", "c", "d", "e"]


def test_queues_are_served_in_the_listed_order(app: Holdfast, order: list[str]) -> None:
    note = app.tasks["note"]
    for number in range(10):
        note.using(queue="bulk", priority=100).enqueue(f"bulk-{number}")
        note.using(queue="urgent").enqueue(f"urgent-{number}")
        note.using(queue="elsewhere").enqueue("elsewhere")
    drain(app, queues="urgent,bulk", concurrency=1)
    assert order == [f"{queue}-{number}" for queue in ("urgent", "bulk") for number in range(10)]
    assert app.jobs.count(status="ready", queue="elsewhere") == 10


def test_queues_are_served_in_proportion_to_their_weights(open_app: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.dispatcher.PREFETCH_SECONDS", 0)  # so that each job is claimed alone
    app, seen = open_app(random=Random(7)), []

    @app.task
    def note(name: str) -> None:
        seen.append(name)

    for name in ("heavy", "light"):
        note.using(queue=name).enqueue_many([{"name": name}] * 200)
    drain(app, queues="light,heavy*4", concurrency=1)
    early = Counter(seen[:150])
    assert 90 <= early["heavy"] <= 145, early
    assert Counter(seen) == {"heavy": 200, "light": 200}


def test_queues_that_appear_later_are_served(app: Holdfast, order: list[str]) -> None:
    note = app.tasks["note"]
    with RunningWorker(app):
        for name in ("first", "second", "third"):
            note.using(queue=name).enqueue(name)
            eventually(lambda: name in order, f"{name} was not served")  # noqa: B023
    assert order == ["first", "second", "third"]


def test_many_queues_are_all_served(app: Holdfast, order: list[str]) -> None:
    note = app.tasks["note"]
    for number in range(120):
        note.using(queue=f"customer-{number:03}").enqueue(str(number))
    drain(app, concurrency=3)
    assert sorted(order, key=int) == [str(number) for number in range(120)]


def test_a_worker_is_idle_if_only_a_paused_queue_has_jobs(app: Holdfast, order: list[str]) -> None:
    note = app.tasks["note"]
    app.queue("held").pause()
    note.using(queue="held").enqueue("held")
    note.enqueue("free")
    drain(app)
    drain(app, queues="held,default")
    assert order == ["free"]
    with RunningWorker(app):
        app.queue("held").resume()
        eventually(lambda: order == ["free", "held"])


@pytest.mark.parametrize(
    "queues", ["", "mail=0", "mail=x", "mail*0", "mail,mail", [], {"mail": 0}, {"mail": True}, [7], "a,,b", {"": 1}]
)
def test_invalid_queues_are_refused(app: Holdfast, order: list[str], queues: Any) -> None:
    with pytest.raises(InvalidInput):
        app.worker(queues=queues)


# --- how many at once -----------------------------------------------------------------------------


def test_functions_run_at_once_up_to_the_concurrency(live: Holdfast) -> None:
    together = threading.Barrier(7)

    @live.task
    def meet() -> int:
        return together.wait(PATIENCE_SECONDS)

    ids = meet.enqueue_many([{}] * 7)
    drain(live, concurrency=7)
    assert {live.jobs.get(job_id).result for job_id in ids} == set(range(7))


def test_jobs_run_in_several_threads_when_they_take_longer_than_before(live: Holdfast) -> None:
    together = threading.Barrier(4)

    @live.task
    def meet(wait: bool) -> None:
        if wait:
            together.wait(PATIENCE_SECONDS)

    meet.enqueue_many([{"wait": False}] * 400)
    drain(live, concurrency=4)
    meet.enqueue_many([{"wait": True}] * 4 + [{"wait": False}] * 40)
    assert drain(live, concurrency=4).succeeded == 44


def test_coroutines_run_at_once_up_to_the_concurrency(live: Holdfast) -> None:
    here, all_here = Gauge(), threading.Event()

    @live.task
    async def meet() -> None:
        with here:
            if here.now == 7:
                all_here.set()
            while not all_here.is_set():
                await asyncio.sleep(0.001)

    meet.enqueue_many([{}] * 7)
    assert drain(live, concurrency=7).succeeded == 7


def test_functions_and_coroutines_share_the_concurrency(live: Holdfast) -> None:
    here, all_here = Gauge(), threading.Event()

    def arrive() -> None:
        if here.now == 6:
            all_here.set()

    @live.task
    def meet() -> None:
        with here:
            arrive()
            comes_true(all_here)

    @live.task
    async def meet_later() -> None:
        with here:
            arrive()
            while not all_here.is_set():
                await asyncio.sleep(0.001)

    meet.enqueue_many([{}] * 3)
    meet_later.enqueue_many([{}] * 3)
    assert drain(live, concurrency=6).succeeded == 6


@pytest.mark.parametrize("kind", ["sync", "async", "mixed"])
@pytest.mark.parametrize("seconds", [0, 0.001, 0.003])
def test_the_concurrency_is_never_exceeded(live: Holdfast, kind: str, seconds: float) -> None:
    here = Gauge()

    @live.task
    def work() -> None:
        with here:
            time.sleep(seconds)

    @live.task
    async def work_later() -> None:
        with here:
            await asyncio.sleep(seconds)

    for _ in range(5):
        for task in {"sync": [work], "async": [work_later], "mixed": [work, work_later]}[kind]:
            task.enqueue_many([{}] * (30 if seconds else 100))
    drain(live, concurrency=3)
    assert here.most <= 3
    assert live.jobs.count(status="succeeded") == live.jobs.count()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_limit_of_a_queue_is_never_exceeded(live: Holdfast, kind: str) -> None:
    here = {"one": Gauge(), "three": Gauge(), "free": Gauge()}

    if kind == "sync":

        @live.task(name="work")
        def work(queue: str) -> None:
            with here[queue]:
                time.sleep(0.002)
    else:

        @live.task(name="work")
        async def work(queue: str) -> None:
            with here[queue]:
                await asyncio.sleep(0.002)

    for queue in here:
        live.tasks["work"].using(queue=queue).enqueue_many([{"queue": queue}] * 250)
    report = drain(live, queues="one=1,three=3,free", concurrency=6)
    assert report.succeeded == 750
    assert here["one"].most == 1 and here["three"].most <= 3


def test_a_limit_leaves_room_for_other_queues(live: Holdfast) -> None:
    release, ran = threading.Event(), threading.Event()

    @live.task(queue="slow")
    def hold() -> None:
        comes_true(release)

    @live.task
    def pass_by() -> None:
        ran.set()

    hold.enqueue_many([{}] * 5)
    with RunningWorker(live, queues={"slow": 1, "default": None}, concurrency=2):
        pass_by.enqueue()
        comes_true(ran, "the other queue was not served")
        assert live.jobs.count(status="ready", queue="slow") == 4
        release.set()


# --- how many before their time -------------------------------------------------------------------


def test_long_jobs_are_not_claimed_before_they_can_start(live: Holdfast) -> None:
    held: list[int] = []

    @live.task
    def work() -> None:
        held.append(live.jobs.count(status="running"))
        time.sleep(0.05)
        held.append(live.jobs.count(status="running"))

    work.enqueue_many([{}] * 8)
    drain(live, concurrency=2)
    assert max(held) <= 3


def test_two_workers_share_long_jobs(live: Holdfast, open_app: Open) -> None:
    """Each job waits for one in the other worker. If a worker claimed more than it can start, all would hang."""
    other, done, together = open_app(), Counter[str](), threading.Barrier(2)

    def register(app: Holdfast, name: str) -> Any:
        @app.task(name="work")
        def work() -> None:
            together.wait(PATIENCE_SECONDS)
            time.sleep(0.1)
            done[name] += 1

        return work

    register(other, "other")
    register(live, "live").enqueue_many([{}] * 12)
    with RunningWorker(live, concurrency=1), RunningWorker(other, concurrency=1):
        eventually(lambda: sum(done.values()) == 12)
    assert done == {"live": 6, "other": 6}


def test_jobs_that_were_claimed_behind_a_long_job_are_given_back_uncounted(
    give_back_what_waits: None, live: Holdfast, open_app: Open
) -> None:
    other, release, started = open_app(), threading.Event(), threading.Event()

    def register(app: Holdfast) -> Any:
        @app.task(name="work")
        def work(block: bool) -> None:
            if block:
                started.set()
                comes_true(release)

        return work

    work = register(live)
    register(other)
    work.enqueue_many([{"block": False}] * 400)
    with RunningWorker(live, concurrency=1):
        eventually(lambda: live.jobs.count(status="succeeded") == 400)
        ids = work.enqueue_many([{"block": True}] + [{"block": False}] * 100)
        comes_true(started)
        with RunningWorker(other, concurrency=1):
            eventually(lambda: live.jobs.count(status="succeeded") == 500, "they were not given back")
        assert {left(live, job_id) for job_id in ids} == {4}, "each has used one attempt"
        release.set()


def test_jobs_that_were_claimed_behind_a_blocking_coroutine_are_given_back(
    give_back_what_waits: None, live: Holdfast, open_app: Open
) -> None:
    other, release, blocked, ran = open_app(), threading.Event(), threading.Event(), Counter[str]()

    def register(app: Holdfast, name: str) -> tuple[Any, Any]:
        @app.task(name="block")
        async def block() -> None:
            blocked.set()
            release.wait(PATIENCE_SECONDS)

        @app.task(name="quick")
        async def quick() -> None:
            ran[name] += 1

        return block, quick

    block, quick = register(live, "live")
    register(other, "other")
    block.enqueue()
    ids = quick.enqueue_many([{}] * 6)
    try:
        with RunningWorker(live, concurrency=4) as running:
            comes_true(blocked)
            with RunningWorker(other, concurrency=4):
                eventually(lambda: ran["other"] == 6, "they were not given back")
            release.set()
            running.stop()
    finally:
        release.set()
    assert {left(live, job_id) for job_id in ids} == {4}


def test_two_workers_of_one_app_run_each_job_once(live: Holdfast) -> None:
    runs, lock = Counter[int](), threading.Lock()

    @live.task
    def work(number: int) -> None:
        with lock:
            runs[number] += 1

    @live.task
    async def work_later(number: int) -> None:
        with lock:
            runs[number] += 1

    work.enqueue_many([{"number": number} for number in range(500)])
    work_later.enqueue_many([{"number": number} for number in range(500, 1000)])
    with RunningWorker(live, until_idle=True) as one, RunningWorker(live, until_idle=True) as two:
        reports = one.report(), two.report()
    assert one.worker.id != two.worker.id
    assert runs == dict.fromkeys(range(1000), 1)
    assert sum(report.succeeded for report in reports) == 1000
