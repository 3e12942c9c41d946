"""What an operator did is in the log: what, who, and why."""

from collections.abc import Callable
from inspect import iscoroutinefunction, isfunction, signature
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app.jobs import Jobs
from holdfast.app.queue import Queue
from holdfast.app.schedules import Schedules
from holdfast.app.workflows import Chains
from support.running_worker import drain

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
    "failed": lambda app, id: app.jobs.fail(id, "REJECTED:BUDGET", "too much", **BY),
}
ON_A_QUEUE: dict[str, Callable[[Holdfast], Any]] = {
    "paused": lambda app: app.queue("inbox").pause(**BY),
    "purged": lambda app: app.queue("inbox").purge(**BY),
    "resumed": lambda app: app.queue("inbox").pause() and app.queue("inbox").resume(**BY),
}
ON_A_SCHEDULE: dict[str, Callable[[Holdfast], Any]] = {
    "schedule_added": lambda app: app.schedules.add("other", "@daily", "tidy", **BY),
    "schedule_changed": lambda app: app.schedules.add("nightly", "@hourly", "tidy", **BY),
    "schedule_paused": lambda app: app.schedules.pause("nightly", **BY),
    "schedule_resumed": lambda app: app.schedules.pause("nightly") and app.schedules.resume("nightly", **BY),
    "schedule_removed": lambda app: app.schedules.remove("nightly", **BY) is None,
}


def test_an_enqueue_by_an_operator_is_in_the_log(app: Holdfast) -> None:
    job = app.jobs.enqueue("tidy", {"n": 1}, **BY)
    assert job.queue == "default"  # this app does not have the task
    assert log_of(app, "enqueued") == ("kim", BY["reason"])
    assert app.jobs.cancel(job.id)
    assert log_of(app, "cancelled")[1] is None  # the reason was that of the enqueue


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


@pytest.mark.parametrize("event", ON_A_SCHEDULE)
def test_what_is_done_to_a_schedule_is_in_the_log(app: Holdfast, event: str) -> None:
    app.task(name="tidy")(lambda: None)
    app.schedules.add("nightly", "@daily", "tidy")
    assert ON_A_SCHEDULE[event](app)
    assert log_of(app, event) == ("kim", BY["reason"])


def test_dead_letters_that_are_delivered_again_are_in_the_log(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send(1)
    message = inbox.receive()
    assert message is not None and message.fail("INVALID_INPUT:UNKNOWN")
    assert inbox.requeue(**BY) == 1
    assert log_of(app, "requeued") == ("kim", BY["reason"])


# They look, or are the work of the program itself.
UNSIGNED = {
    Jobs: {"get", "list", "count", "explain", "history", "traceback", "inbox", "relations"},
    Chains: {"get", "list"},
    Schedules: {"get", "list", "runs", "timing", "declare", "forget"},
    Queue: {
        *("send", "send_many", "receive", "receive_many", "ack", "extend", "release", "fail"),
        *("stats", "dead_letters"),
    },
    Holdfast: {"web", "worker"},
}


@pytest.mark.parametrize("kind", UNSIGNED)
def test_all_that_an_operator_can_do_takes_who_and_why(kind: type) -> None:
    plain = {name: one for name, one in vars(kind).items() if isfunction(one) and not iscoroutinefunction(one)}
    public = {name: one for name, one in plain.items() if name[0] != "_"}
    takes = {name: signature(one).parameters for name, one in public.items()}
    assert {name for name, given in takes.items() if not {"actor", "reason"} <= given.keys()} == UNSIGNED[kind]


def test_a_reason_that_is_too_long_is_cut_wherever_it_is_kept(app: Holdfast) -> None:
    app.vacuum(reason="why " * 1000)
    app.prune(reason="why " * 1000)
    app.queue("inbox").pause(reason="why " * 1000)
    assert [len(log_of(app, event)[1]) for event in ("vacuumed", "pruned", "paused")] == [500] * 3


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
