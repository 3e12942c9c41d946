"""Jobs that have ended, each in the way that a test wants."""

from typing import Any

from holdfast import Holdfast, Task
from holdfast.clock import SECOND
from support.running_worker import drain
from support.transitions import claim_one, fail, succeed

DAY = 24 * 3600


class Ended:
    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._tasks: dict[str, Task[..., Any]] = {}
        self.task = self._named("work")

    def _named(self, name: str) -> Task[..., Any]:
        if name not in self._tasks:
            self._tasks[name] = self._app.task(name=name, max_attempts=1)(_do)
        return self._tasks[name]

    def job(self, status: str, *, task: str = "work", payload: str = "", **options: Any) -> int:
        """One that ends now."""
        job = self._named(task).using(**options).enqueue(payload)
        if status == "cancelled":
            assert self._app.jobs.cancel(job.id)
        else:
            self.end(job.id, status)
        return job.id

    def many(self, count: int, payload: str = "") -> list[int]:
        """So many that succeed now: a worker runs them, with fewer commits than one by one."""
        ids = self.task.enqueue_many([{"payload": payload}] * count)
        assert drain(self._app).succeeded == count
        return ids

    def end(self, job_id: int, status: str = "succeeded") -> None:
        claimed = claim_one(self._app.store, job_id, 300 * SECOND, "worker-1")
        assert claimed is not None
        if status == "succeeded":
            assert succeed(self._app.store, claimed.lease)
        else:
            try:
                int("not a number")
            except ValueError as error:
                assert fail(self._app.store, claimed.lease, self._app.error_table.failure(error))

    def running(self) -> int:
        job = self.task.enqueue()
        assert claim_one(self._app.store, job.id, 300 * SECOND, "worker-1") is not None
        return job.id


def _do(payload: str = "") -> None:
    """Nothing."""
