"""Workers hold a lock on a file beside the database for as long as they live."""

import os

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock


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
