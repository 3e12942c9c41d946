"""Why a ready job is not taken, from the outside in: its queue, the workers, their places, what is ahead of it."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.app.explain import START_WORKER
from holdfast.clock import SECOND
from holdfast.model.worker import WorkerLimits, WorkerRecord
from holdfast.testing import FakeClock
from support.backend import Backend
from support.running_worker import RunningWorker, comes_true, eventually
from support.transitions import claim_tasks

Sql = Callable[..., list[Any]]

NO_LIMITS = WorkerLimits()


@pytest.fixture
def work(app: Holdfast) -> Any:
    @app.task(queue="mail")
    def work(how: str = "") -> str:
        return how

    return work


@pytest.fixture
def other(app: Holdfast) -> Any:
    return app.task(name="other")(lambda: None)


@pytest.fixture
def why(app: Holdfast) -> Callable[[Any], str]:
    return lambda job: str(app.jobs.explain(job if isinstance(job, int) else job.id))


@pytest.fixture
def hire(app: Holdfast) -> Iterator[Callable[..., str]]:
    """A worker that is there, and takes nothing by itself."""
    hired: list[str] = []

    def one(
        queues: Any = None,
        tasks: Any = ("work",),
        concurrency: int = 2,
        limits: WorkerLimits = NO_LIMITS,
        pid: int | None = None,
    ) -> str:
        worker_id, now = f"worker-{len(hired) + 1}", app.clock.now()
        record = WorkerRecord(
            id=worker_id,
            pid=pid or os.getpid(),
            host=socket.gethostname(),
            queues=queues,
            tasks=tasks,
            concurrency=concurrency,
            lease=60 * SECOND,
            started_at=now,
            heartbeat_at=now,
            limits=limits,
        )
        app.store.workers.register(record)
        hired.append(worker_id)
        return worker_id

    yield one
    for worker_id in hired:
        app.store.workers.unregister(worker_id)


def take(app: Holdfast, worker: str, count: int, *tasks: str) -> None:
    assert len(claim_tasks(app.store, None, tasks or ("work",), count, 60 * SECOND, worker)) == count


# --- nobody takes it ---


def test_a_paused_queue(app: Holdfast, work: Any, why: Any, hire: Any) -> None:
    hire()
    job = work.enqueue()
    app.queue("mail").pause()
    assert why(job) == (
        "Job 1 (work) is ready, but its queue mail is paused. Resume the queue: holdfast queues resume mail"
    )


def test_no_worker_at_all(work: Any, why: Any) -> None:
    assert why(work.enqueue()) == (
        f"Job 1 (work) is ready, but no worker is running. Start one that has the task work: {START_WORKER}"
    )


def test_a_worker_that_has_died_or_stopped_is_none(
    work: Any, why: Any, hire: Any, backend: Backend, clock: FakeClock
) -> None:
    hire()
    job = work.enqueue()
    assert "is ready, and next in line" in why(job)
    backend.bury_workers()
    assert "but no worker is running." in str(backend.open(clock=clock).jobs.explain(job.id))
    backend.sql("UPDATE holdfast_workers SET ended_at = 1")
    assert "but no worker is running." in why(job)


def test_no_worker_has_the_task(work: Any, why: Any, hire: Any) -> None:
    job = work.enqueue()
    hire(tasks=("other",))
    assert why(job) == (
        "Job 1 (work) is ready, but the running worker does not have the task work. "
        f"Start a worker that has it: {START_WORKER}"
    )
    hire(tasks=())
    assert "is ready, but none of 2 workers has the task work." in why(job)


def test_workers_that_serve_other_queues(work: Any, why: Any, hire: Any) -> None:
    job = work.enqueue()
    hire(queues=("default", "bulk"))
    assert why(job) == (
        "Job 1 (work) is ready, but the worker that has its task serves other queues than mail: bulk, default. "
        f"Start a worker for it: {START_WORKER} --queues mail"
    )
    hire(queues=tuple(f"q{number}" for number in range(9)))
    assert (
        "the workers that have its task serve other queues than mail: bulk, default, q0, q1, q2 and 6 more."
        in why(job)
    )


def test_a_worker_that_was_stopped_by_a_signal(work: Any, why: Any, hire: Any) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        sleeper.send_signal(signal.SIGSTOP)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        hire(pid=sleeper.pid)
        text = why(work.enqueue())
        assert "is ready, but the worker that can run it is suspended by a signal (process " in text
        assert text.endswith(f"Resume it: kill -CONT {sleeper.pid}")
    finally:
        sleeper.kill()
        sleeper.wait()


# --- it has to wait for its turn ---


def test_all_places_are_taken(app: Holdfast, work: Any, why: Any, hire: Any) -> None:
    work.enqueue_many([{}] * 4)
    take(app, hire(), 2)
    assert why(3) == (
        "Job 3 (work) is ready, but all 2 slots of the worker that can run it are busy. "
        f"Wait, or start another worker: {START_WORKER}"
    )
    assert "that can run it are busy; 1 job is ahead of it." in why(4)
    take(app, hire(concurrency=1), 1)
    assert "all 3 slots of 2 workers that can run it are busy." in why(4)
    hire(tasks=("other",))
    assert "all 3 slots of 2 workers" in why(4), "one that cannot take it does not count"
    hire()
    assert "is ready, and next in line for 3 workers that can run it." in why(4)


def test_the_limit_of_the_queue_is_reached(app: Holdfast, work: Any, why: Any, hire: Any) -> None:
    work.enqueue_many([{}] * 2)
    take(app, hire(queues=("mail",), concurrency=10, limits=WorkerLimits(queues={"mail": 1})), 1)
    assert why(2) == (
        "Job 2 (work) is ready, but the worker that can run it is at its limit for queue "
        "mail, 1 job at a time. "
        f"Wait, or start another worker: {START_WORKER} --queues mail"
    )


def test_tasks_that_run_in_processes_have_places_of_their_own(
    app: Holdfast, work: Any, other: Any, why: Any, hire: Any
) -> None:
    work.enqueue_many([{}] * 2)
    other.enqueue_many([{}] * 2)
    worker = hire(tasks=("other", "work"), concurrency=5, limits=WorkerLimits(pool=1, pool_tasks=("work",)))
    take(app, worker, 1, "work")
    assert "the only slot of the worker that can run it is busy." in why(2)
    assert "is ready, and next in line" in why(3), "those ahead of it run elsewhere"


def test_jobs_ahead_by_order_and_by_priority(work: Any, other: Any, why: Any, hire: Any) -> None:
    work.enqueue_many([{}] * 3)
    other.enqueue()
    hire(tasks=("work",))
    assert why(3) == (
        f"Job 3 (work) is ready, and 2 jobs are ahead of it. Wait, or start another worker: {START_WORKER}"
    )
    urgent = work.using(priority=5).enqueue()
    assert "3 jobs are ahead of it." in why(3) and "next in line" in why(urgent)
    last = work.enqueue()
    assert "4 jobs are ahead of it." in why(last), "what no worker of its kind runs is not ahead"


def test_an_urgent_job_of_another_queue_is_ahead_for_a_worker_of_all_queues(
    work: Any, other: Any, why: Any, hire: Any
) -> None:
    job = work.enqueue()
    other.using(priority=1).enqueue()
    other.enqueue()
    hire(tasks=("other", "work"))
    assert "1 job is ahead of it." in why(job)


def test_queues_before_its_own_are_ahead_as_a_whole(
    app: Holdfast, work: Any, other: Any, why: Any, hire: Any
) -> None:
    job = work.using(priority=9).enqueue()
    other.enqueue_many([{}] * 3)
    hire(queues=("default", "mail"), tasks=("other", "work"))
    assert "3 jobs are ahead of it." in why(job)
    app.queue("default").pause()
    assert "next in line" in why(job)
    app.queue("default").resume()
    hire(queues=("default", "mail"), tasks=("other", "work"), limits=WorkerLimits(weighted=True))
    assert "next in line" in why(job), "by weight, each has its turn"


def test_a_long_line_is_not_counted_to_its_end(app: Holdfast, work: Any, why: Any, hire: Any) -> None:
    work.enqueue_many([{}] * 1500)
    hire()
    assert "more than 1,000 jobs are ahead of it." in why(1500)
    assert "999 jobs are ahead of it." in why(1000)


# --- a worker that runs it ---


def test_a_running_job_says_where_and_since_when(live: Holdfast) -> None:
    begun, release = threading.Event(), threading.Event()

    @live.task(timeout=3600)
    def hold(ctx: Context) -> None:
        ctx.progress(0.4, "loading")
        begun.set()
        comes_true(release)

    job = hold.enqueue()
    with RunningWorker(live, queues="default=3,mail", pool=1) as running:
        comes_true(begun)
        place = f"in worker {running.worker.id} (process {os.getpid()} on {socket.gethostname()})."
        eventually(lambda: "progress 40% loading" in live.jobs.explain(job.id).reason)
        found = live.jobs.explain(job.id)
        pattern = r"Job 1 \(hold\) is running: attempt 1 of 5, for [0-9hms ]+ of at most 1h, progress 40% loading, "
        assert re.match(pattern, found.reason)
        assert found.reason.endswith(place) and found.advice.endswith("cancel it: holdfast cancel 1")
        (worker,) = live.store.workers.list()
        assert worker.record.limits == WorkerLimits(queues={"default": 3}, pool=1), "as it enlisted"
        release.set()
        eventually(lambda: job.refresh().status == "succeeded")


def test_a_job_whose_worker_has_died(
    app: Holdfast, work: Any, why: Any, hire: Any, backend: Backend, clock: FakeClock
) -> None:
    job = work.enqueue()
    worker = hire()
    take(app, worker, 1)
    assert f"is running: attempt 1 of 5, about to start, in worker {worker}" in why(job)
    backend.bury_workers()
    text = str(backend.open(clock=clock).jobs.explain(job.id))
    assert "was running, attempt 1 of 5, in a worker that died (process " in text
    assert f", and no worker is running to recover it. Start one: {START_WORKER}" in text
