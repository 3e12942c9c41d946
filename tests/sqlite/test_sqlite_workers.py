"""Workers hold a lock on a file beside the database for as long as they live, and move many jobs in short steps."""

import os

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.model.job import Sweep
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock
from holdfast.worker.housekeeping import FOLD_BATCH
from support.backend import Backend
from support.running_worker import RunningWorker
from support.transitions import claim_tasks


def test_a_worker_that_holds_its_lock_is_alive_however_long_ago_it_was_heard_of(
    app: Holdfast, clock: FakeClock
) -> None:
    worker = WorkerRecord("0" * 16, os.getpid(), "host", None, ("work",), 10, 60 * SECOND, clock.now(), clock.now())
    app.store.workers.register(worker)
    job = app.task(name="work")(lambda: None).enqueue()
    clock.advance(3600)
    assert "is ready, and next in line" in str(app.jobs.explain(job.id))
    app.store.workers.unregister(worker.id)
    assert "but no worker is running." in str(app.jobs.explain(job.id))


# --- bounded steps ---


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction moves two jobs, and four are moved before a claim."""
    monkeypatch.setattr("holdfast.store.claim.SWEEP_ROWS", 2)
    monkeypatch.setattr("holdfast.store.workers.RECOVERY_ROWS", 2)
    for module in ("claim", "settle"):
        monkeypatch.setattr(f"holdfast.store.{module}.SWEPT_BEFORE_CLAIM", 4)


def test_many_due_jobs_are_moved_some_at_a_time_and_jobs_run_in_between(
    app: Holdfast, clock: FakeClock, short_steps: None
) -> None:
    """A million due jobs kept a worker from running one, and from stopping, until all were moved."""

    @app.task
    def work() -> None: ...

    jobs = [work.using(delay=60).enqueue() for _ in range(10)]
    clock.advance(61)
    taken = [len(claim_tasks(app.store, None, ["work"], 10, 30 * SECOND, "worker")) for _ in range(4)]
    assert taken == [4, 4, 2, 0]
    assert {job.refresh().status for job in jobs} == {"running"}


def test_many_due_messages_are_moved_some_at_a_time(app: Holdfast, clock: FakeClock, short_steps: None) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(range(10), delay=60)
    clock.advance(61)
    assert [len(inbox.receive_many(10)) for _ in range(4)] == [4, 4, 2, 0]


def test_the_jobs_of_a_dead_worker_are_recovered_some_at_a_time(
    app: Holdfast, backend: Backend, short_steps: None
) -> None:
    @app.task
    def work() -> None: ...

    for _ in range(5):
        work.enqueue()
    claim_tasks(app.store, None, ["work"], 5, 3600 * SECOND, "dead")
    backend.sql(
        "INSERT INTO holdfast_workers (id, slot, inode, pid, host, tasks, concurrency, lease, started_at, "
        "heartbeat_at) VALUES ('dead', -1, 0, 1, 'here', '[]', 1, 1000000, 1, 1)"
    )
    assert [app.store.jobs.sweep(Sweep.WORKERS, 1) for _ in range(4)] == [2, 2, 1, 0]
    assert [one.record.ending for one in app.store.workers.list()] == ["lost"]


def test_a_round_of_housekeeping_folds_one_step_of_a_long_log(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a worker with a long log behind it stops, and renews leases, in between."""
    steps: list[int] = []
    running: list[RunningWorker] = []

    def fold() -> int:
        steps.append(1)
        if len(steps) == 3:
            running[0].worker.stop()
        return FOLD_BATCH  # there is always more

    app.task(name="work")(lambda: None)
    monkeypatch.setattr(app.store.statistics, "fold", fold)
    running.append(RunningWorker(app, grace=0))
    with running[0]:
        running[0].report()
    assert len(steps) == 3
