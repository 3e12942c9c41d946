"""The workers part of the store: listing workers with their claims, and heartbeats."""

import os
import socket
from typing import Any

import pytest

from holdfast import Holdfast, __version__
from holdfast.clock import SECOND
from holdfast.model.job import Lease, Sweep
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock
from support.running_worker import RunningWorker, eventually
from support.transitions import claim_tasks


@pytest.fixture
def work(app: Holdfast) -> Any:
    return app.task(name="work")(lambda: None)


def enlist(app: Holdfast) -> str:
    now = app.clock.now()
    app.store.workers.register(
        WorkerRecord("worker-1", os.getpid(), socket.gethostname(), None, ("work",), 2, 60 * SECOND, now, now)
    )
    return "worker-1"


def test_a_worker_is_listed_with_its_claims(app: Holdfast, work: Any) -> None:
    worker = enlist(app)
    work.enqueue_many([{}] * 2)
    work.using(queue="mail").enqueue()
    claim_tasks(app.store, None, ["work"], 3, 60 * SECOND, worker)
    (found,) = app.store.workers.list()
    assert (found.state, found.is_present, found.running) == ("alive", True, 3)
    assert sorted(found.claimed) == [("default", "work", 2), ("mail", "work", 1)]
    app.store.workers.unregister(worker)
    (found,) = app.store.workers.list()
    assert (found.state, found.is_present, found.running) == ("stopped", False, 0)


def test_a_heartbeat_returns_the_leases_of_the_worker(app: Holdfast, work: Any) -> None:
    worker = enlist(app)
    assert app.store.workers.heartbeat(worker) == []
    job = work.enqueue()
    claim_tasks(app.store, None, ["work"], 1, 60 * SECOND, worker)
    assert app.store.workers.heartbeat(worker) == [Lease(job.id, 1)]


def test_a_worker_that_was_considered_dead_learns_it_from_its_heartbeat(app: Holdfast, sql: Any) -> None:
    worker = enlist(app)
    sql("UPDATE holdfast_workers SET ended_at = 1, ending = 'lost'")
    assert app.store.workers.heartbeat(worker) is None


def test_a_worker_tells_its_version_memory_and_limits(live: Holdfast) -> None:
    live.task(name="work")(lambda: None)
    with RunningWorker(live, queues="mail=4,default"):
        (found,) = eventually(live.observe.workers)
    assert (found.version, found.limits, found.stop_at) == (__version__, {"mail": 4}, None)
    assert found.memory is None or found.memory > 1_000_000


def test_a_heartbeat_without_memory_keeps_the_last_one(app: Holdfast) -> None:
    worker = enlist(app)
    app.store.workers.heartbeat(worker, 5_000_000)
    app.store.workers.heartbeat(worker)
    assert [one.memory for one in app.observe.workers()] == [5_000_000]


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_a_live_worker_that_is_late_keeps_a_job_for_its_timeout_whatever_the_wall_clock_says(
    app: Holdfast, clock: FakeClock, work: Any, hours: int
) -> None:
    """With the wall clock set forward, the job was taken from its worker at once; set back, it was kept for hours."""
    job = work.using(timeout=600).enqueue()
    worker = enlist(app)
    claim_tasks(app.store, None, ["work"], 1, 60 * SECOND, worker)
    clock.step(hours * 3600)
    clock.advance(61)
    app.store.jobs.sweep(Sweep.LEASES)
    clock.advance(598)
    app.store.jobs.sweep(Sweep.LEASES)
    assert job.refresh().status == "running"
    clock.advance(2)
    app.store.jobs.sweep(Sweep.LEASES)
    assert job.refresh().error_code == "TIMEOUT:LEASE"
