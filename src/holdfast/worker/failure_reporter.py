"""Report failures: enqueue a job of each hook of `@app.on_failure` for each job that failed for good.

The event log is the source, and each hook has a cursor in it. So nothing is added to the transaction in which a job
fails, and it does not matter who failed it: a worker, a sweep, an operator or a consumer of messages.
"""

from collections.abc import Iterable
from typing import Protocol

from ..model.job import FailedJob, NewJob
from ..store.protocol import Store

MAX_STEPS = 20  # in one round of housekeeping; each reads and reports a bounded number of events
LAZY_EVENTS = 10_000  # without a failure, the cursor is stored after this many events


class HookTask(Protocol):
    """A task that is called with failed jobs."""

    name: str

    def report(self, failed: FailedJob) -> NewJob:
        """Return the job that calls the hook."""
        ...


class FailureReporter:
    """Reports the failures since the last report of any process."""

    def __init__(self, store: Store, hooks: Iterable[HookTask]) -> None:
        self._store, self._hooks = store, list(hooks)
        self._scanned: dict[str, int] = {}  # by hook: the last event that was read and need not be read again

    def report(self) -> list[int]:
        """Enqueue the jobs of all hooks, for a bounded number of failures. Returns the ids of the jobs.

        A hook that is new in this database begins with the next failure.
        """
        return [job_id for hook in self._hooks for job_id in self._report(hook)]

    def _report(self, hook: HookTask) -> list[int]:
        reported: list[int] = []
        for _ in range(MAX_STEPS):
            found = self._store.jobs.unreported_failures(hook.name, self._scanned.get(hook.name, 0))
            new: list[int] = []
            if found.failed or found.cursor is None or found.until - found.cursor > LAZY_EVENTS:
                jobs = [hook.report(one) for one in found.failed]
                new = self._store.jobs.report_failures(hook.name, found, jobs)
            if len(new) == len(found.failed):  # otherwise another process was first, and may have read less
                self._scanned[hook.name] = found.until
            reported += new
            if not found.more:
                break
        return reported
