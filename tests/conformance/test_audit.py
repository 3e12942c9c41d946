"""What an operator did is in the log: what, who, and why."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from shift import drain

Deed = Callable[[Holdfast, int], Any]


def log_of(app: Holdfast, event: str) -> tuple[str | None, Any]:
    """Who did it last, and why."""
    found = [one for one in app.observe.events(limit=1000) if one.event == event]
    return found[-1].actor, found[-1].detail.get("reason")


BY = {"actor": "kim", "reason": 'it was "broken"\nfor long'}

ON_A_FAILED_JOB: dict[str, Deed] = {
    "requeued": lambda app, id: app.jobs.retry(id, **BY),
    "deleted": lambda app, id: app.jobs.delete(id, **BY),
}
ON_ONE_THAT_WAITS: dict[str, Deed] = {
    "cancelled": lambda app, id: app.jobs.cancel(id, **BY),
    "run_now": lambda app, id: app.jobs.run_now(id, **BY),
    "completed": lambda app, id: app.jobs.complete(id, **BY),
}
ON_A_QUEUE: dict[str, Callable[[Holdfast], Any]] = {
    "paused": lambda app: app.queue("inbox").pause(**BY),
    "purged": lambda app: app.queue("inbox").purge(**BY),
    "resumed": lambda app: app.queue("inbox").pause() and app.queue("inbox").resume(**BY),
}


@pytest.mark.parametrize("event", ON_A_FAILED_JOB)
def test_what_is_done_to_a_failed_job_is_in_the_log(app: Holdfast, event: str) -> None:
    job = app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    drain(app)
    assert ON_A_FAILED_JOB[event](app, job.id)
    assert log_of(app, event) == ("kim", BY["reason"])


@pytest.mark.parametrize("event", ON_ONE_THAT_WAITS)
def test_what_is_done_to_one_that_waits_is_in_the_log(app: Holdfast, event: str) -> None:
    job = app.task(name="later")(lambda: None).using(delay=60).enqueue()
    assert ON_ONE_THAT_WAITS[event](app, job.id)
    assert log_of(app, event) == ("kim", BY["reason"])


@pytest.mark.parametrize("event", ON_A_QUEUE)
def test_what_is_done_to_a_queue_is_in_the_log(app: Holdfast, event: str) -> None:
    app.queue("inbox").send(1)
    assert ON_A_QUEUE[event](app)
    assert log_of(app, event) == ("kim", BY["reason"])


def test_a_reason_belongs_to_what_it_was_given_for(app: Holdfast) -> None:
    job = app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    drain(app)
    app.jobs.retry(job.id, **BY)
    drain(app)
    assert log_of(app, "failed")[1] is None
    app.jobs.retry(job.id)
    assert log_of(app, "requeued")[1] is None
    drain(app)
    app.jobs.retry(job.id, **BY)
    assert log_of(app, "requeued") == ("kim", BY["reason"])
