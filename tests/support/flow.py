"""A task for graphs: its jobs note that they ran and what they found, and fail for as long as they are told to."""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast import Context, Holdfast, Job

Sql = Callable[..., list[Any]]
Events = Callable[[int], list[str]]
Open = Callable[..., Holdfast]


class Flow:
    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.broken: set[str] = set()
        self.ran: list[str] = []
        self.found: dict[str, tuple[Any, ...]] = {}

        @app.task(max_attempts=1)
        def step(ctx: Context, name: str) -> str:
            self.ran.append(name)
            self.found[name] = ctx.blocker_results
            if name in self.broken:
                raise ConnectionError(f"{name} is broken")
            return name.upper()

        self.step = step

    def job(self, name: str, *after: Any, **options: Any) -> Job[str]:
        """One that waits for these, if there are any."""
        if after:
            options["after"] = list(after)
        return self.step.using(**options).enqueue(name)

    def failed_job(self, name: str = "bad") -> Job[str]:
        """One that has failed, though no worker ran it."""
        job = self.job(name)
        assert self.app.jobs.fail(job.id, "TEST:BROKEN", "as it was told to")
        return job.refresh()


def statuses(*jobs: Job[Any]) -> list[str]:
    return [job.refresh().status for job in jobs]


def numbers(app: Holdfast, ids: Sequence[int]) -> dict[str, int]:
    """How many of these are in which state."""
    found: dict[str, int] = {}
    for job_id in ids:
        status = app.jobs.get(job_id).status
        found[status] = found.get(status, 0) + 1
    return found
