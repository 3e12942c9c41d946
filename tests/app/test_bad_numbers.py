"""Time spans, whole numbers, lists and names of people: what is none is refused by every call that takes one."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast, Job, Message, Queue, Task
from holdfast.errors import InvalidInput
from support.refusals import refused, told
from support.transitions import claim_tasks


class Setting(NamedTuple):
    """A message that is held, and a job that waits."""

    app: Holdfast
    inbox: Queue[Any]
    held: Message[Any]
    work: Task[..., None]
    job: Job[None]


@pytest.fixture
def setting(app: Holdfast) -> Setting:
    inbox = app.queue("inbox")
    inbox.send("hello")
    held = inbox.receive()
    assert held is not None
    work = a_task(app)
    return Setting(app, inbox, held, work, work.enqueue())


def a_task(app: Holdfast) -> Any:
    @app.task
    def work(n: int = 0) -> None: ...

    return work


Call = Callable[[Setting, Any], object]

TAKES_SECONDS: dict[str, Call] = {
    "send, delay": lambda on, bad: on.inbox.send("x", delay=bad),
    "send_many, delay": lambda on, bad: on.inbox.send_many(["x"], delay=bad),
    "queue, visibility": lambda on, bad: on.app.queue("inbox", visibility=bad),
    "receive, wait": lambda on, bad: on.inbox.receive(wait=bad),
    "extend": lambda on, bad: on.held.extend(bad),
    "extend by id": lambda on, bad: on.inbox.extend(1, 1, bad),
    "release": lambda on, bad: on.held.release(bad),
    "release by id": lambda on, bad: on.inbox.release(1, 1, bad),
    "requeue, delay": lambda on, bad: on.inbox.requeue(delay=bad),
    "retry, delay": lambda on, bad: on.app.jobs.retry(status="failed", delay=bad),
    "using, delay": lambda on, bad: on.work.using(delay=bad).enqueue(),
    "using, key_window": lambda on, bad: on.work.using(key="k", key_window=bad).enqueue(),
    "busy_timeout": lambda _, bad: Holdfast("never.db", busy_timeout="default" if bad is None else bad),
}
OPTIONAL_SECONDS: dict[str, Call] = {
    "receive, visibility": lambda on, bad: on.inbox.receive(visibility=bad),
    "receive_many, visibility": lambda on, bad: on.inbox.receive_many(5, visibility=bad),
    "wait, timeout": lambda on, bad: on.job.wait(timeout=bad),
    "task, timeout": lambda on, bad: on.app.task(timeout=bad)(lambda: None),
    "using, timeout": lambda on, bad: on.work.using(timeout=bad).enqueue(),
    "task, expires": lambda on, bad: on.app.task(expires=bad)(lambda: None),
    "using, expires": lambda on, bad: on.work.using(expires=bad).enqueue(),
}
NO_SECONDS: list[Any] = [-1, -0.001, math.nan, math.inf, 10**400, "5", "", True, False, 1j, b"1", []]
NO_SECONDS += [timedelta(seconds=-1), timedelta.max]

TAKES_A_WHOLE_NUMBER: dict[str, tuple[Call, list[Any]]] = {
    "send, priority": (lambda on, bad: on.inbox.send("x", priority=bad), [2**31, -(2**31) - 1]),
    "send_many, priority": (lambda on, bad: on.inbox.send_many(["x"], priority=bad), [2**31]),
    "using, priority": (lambda on, bad: on.work.using(priority=bad).enqueue(), [2**63]),
    "task, priority": (lambda on, bad: on.app.task(priority=bad)(lambda: None), [2**31]),
    "queue, max_attempts": (lambda on, bad: on.app.queue("inbox", max_attempts=bad), [0, -1, 2**40]),
    "task, max_attempts": (lambda on, bad: on.app.task(max_attempts=bad)(lambda: None), [0, -1]),
    "using, max_attempts": (lambda on, bad: on.work.using(max_attempts=bad).enqueue(), [0, -1]),
    "receive_many, limit": (lambda on, bad: on.inbox.receive_many(bad), [0, -1, 1001]),
    "dead_letters, limit": (lambda on, bad: on.inbox.dead_letters(bad), [0, 1001]),
    "list, limit": (lambda on, bad: on.app.jobs.list(limit=bad), [0, -1, 1001]),
    "retry, attempts": (lambda on, bad: on.app.jobs.retry(status="failed", attempts=_not_none(bad)), [0, -1, 10**9]),
    "get, id": (lambda on, bad: on.app.jobs.get(bad), [0, -1, 2**63]),
    "history, id": (lambda on, bad: on.app.jobs.history(bad), [0, -1, 2**63]),
    "ack, id": (lambda on, bad: on.inbox.ack(bad, 1), [0, -1, 2**63]),
    "ack, attempt": (lambda on, bad: on.inbox.ack(1, bad), [0, -1, 2**63]),
    "requeue, ids": (lambda on, bad: on.inbox.requeue([1, bad]), [0, -1, 2**63]),
    "min_free_bytes": (lambda _, bad: Holdfast("never.db", min_free_bytes=bad), [-1]),
}
NO_WHOLE_NUMBERS: list[Any] = [1.5, 1.0, "1", "", True, False, None, math.nan, b"1", [1]]


def _not_none(value: Any) -> Any:
    """None means as many attempts as before."""
    return 0 if value is None else value


def refuse_each(on: Setting, call: Call, bad_values: list[Any], *words: str) -> None:
    """All of them on one database; in the end, say which were not refused as they should be."""
    accepted = []
    for bad in bad_values:
        try:
            with refused(on.app, InvalidInput, *words):
                call(on, bad)
        except BaseException as problem:  # noqa: BLE001  pytest's own are no Exceptions
            accepted.append(f"{_short(bad)}: {problem!r:.150}")
    assert accepted == []
    assert on.inbox.stats().running == 1


def _short(value: Any) -> str:
    return "an enormous number" if isinstance(value, int) and abs(value) > 2**64 else f"{value!r:.40}"


@pytest.mark.parametrize("name", TAKES_SECONDS)
def test_what_is_no_time_span_is_refused(setting: Setting, name: str) -> None:
    refuse_each(setting, TAKES_SECONDS[name], [*NO_SECONDS, None])


@pytest.mark.parametrize("name", OPTIONAL_SECONDS)
def test_what_is_no_time_span_is_refused_where_none_is_allowed(setting: Setting, name: str) -> None:
    refuse_each(setting, OPTIONAL_SECONDS[name], NO_SECONDS)


NONE_IS_THE_DEFAULT = {"min_free_bytes"}


@pytest.mark.parametrize("name", TAKES_A_WHOLE_NUMBER)
def test_what_is_no_whole_number_in_range_is_refused(setting: Setting, name: str) -> None:
    call, out_of_range = TAKES_A_WHOLE_NUMBER[name]
    no_numbers = [bad for bad in NO_WHOLE_NUMBERS if bad is not None or name not in NONE_IS_THE_DEFAULT]
    refuse_each(setting, call, [*no_numbers, *out_of_range])


def test_a_number_too_long_to_be_printed_is_refused_like_any_other(setting: Setting) -> None:
    for call in (TAKES_SECONDS["send, delay"], TAKES_SECONDS["extend"], TAKES_A_WHOLE_NUMBER["send, priority"][0]):
        refuse_each(setting, call, [10**5000, -(10**5000)])


def test_refused_spans_store_nothing_and_say_what_would_be_right(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    with refused(app, InvalidInput, "delay", "0 seconds", "-1"):
        inbox.send("x", delay=-1)
    with refused(app, InvalidInput, "delay", "seconds", "timedelta"):
        inbox.send("x", delay="5")  # type: ignore[arg-type]
    with refused(app, InvalidInput, "visibility", "-30"):
        app.queue("inbox", visibility=-30)
    with refused(app, InvalidInput, "priority", "whole number"):
        inbox.send("x", priority=1.5)  # type: ignore[arg-type]


def test_a_refused_extension_leaves_the_lease_as_it_was(setting: Setting) -> None:
    for bad in (-1, math.nan, True, "5"):
        with told(InvalidInput, "seconds"):
            setting.held.extend(bad)  # type: ignore[arg-type]
    assert setting.held.ack() is True


def test_what_is_no_list_is_refused_where_many_are_wanted(setting: Setting) -> None:
    refuse_each(setting, lambda on, bad: on.inbox.send_many(bad), [5, None], "send_many")
    refuse_each(setting, lambda on, bad: on.work.enqueue_many(bad), [5, None], "enqueue_many")
    refuse_each(setting, lambda on, bad: on.inbox.requeue(bad), [5, "12"], "id")


@pytest.mark.parametrize("operation", ["requeue", "purge", "pause", "resume", "cancel"])
def test_a_bad_actor_is_refused_by_every_operation(setting: Setting, operation: str) -> None:
    def act(on: Setting, bad: Any) -> object:
        if operation == "cancel":
            return on.app.jobs.cancel(queue="inbox", actor=bad)
        return getattr(on.inbox, operation)(actor=bad)

    refuse_each(setting, act, ["a\x00b", "\ud800", "", 5, ["me"], "x" * 300], "actor")


def test_a_reason_that_is_no_text_is_refused(setting: Setting) -> None:
    refuse_each(setting, lambda on, bad: on.app.jobs.cancel(1, reason=bad), [5, ["x"], {"a": 1}, b"gone"], "reason")


def test_a_queue_settles_no_message_of_another_queue_and_no_task(setting: Setting) -> None:
    (claimed,) = claim_tasks(setting.app.store, None, ["work"], 1, 30_000_000, "worker")
    other = setting.app.queue("other")
    for id, attempt in ((setting.held.id, setting.held.attempt), (claimed.id, claimed.attempt)):
        settled = [other.extend(id, attempt, 60), other.ack(id, attempt), other.release(id, attempt)]
        assert settled == [False, False, False]
    assert setting.held.ack() is True
    assert setting.job.refresh().status == "running"
