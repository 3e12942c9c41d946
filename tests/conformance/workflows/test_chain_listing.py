"""Chains as a list: filters, pages and statuses."""

import threading
from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Then
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock
from support.flow import Flow
from support.running_worker import RunningWorker, comes_true, drain, eventually


def add_tasks(app: Holdfast) -> None:
    @app.task(queue="front", name="begin")
    def begin(after_that: str) -> Any:
        return Then(app.tasks[after_that]) if after_that else "alone"

    @app.task(queue="back", name="work")
    def work() -> str:
        return "worked"

    @app.task(queue="back", name="break_down")
    def break_down() -> Fail:
        return Fail("TEST:BROKEN")


def test_chains_are_listed_newest_first_and_each_once(app: Holdfast) -> None:
    add_tasks(app)
    begin = app.tasks["begin"]
    ids = [begin.enqueue(name).id for name in ("", "work", "break_down")]
    drain(app)
    page = app.chains.list()
    assert [chain.id for chain in page] == ids[::-1]
    assert [(chain.status, chain.length, chain.result) for chain in page] == [
        ("failed", 2, None),
        ("succeeded", 2, "worked"),
        ("succeeded", 1, "alone"),
    ]


def test_messages_are_no_chains(app: Holdfast) -> None:
    app.queue("inbox").send({"text": "hello"})
    assert list(app.chains.list()) == []


def test_the_status_filter_is_about_the_last_job(app: Holdfast) -> None:
    add_tasks(app)
    begin = app.tasks["begin"]
    alone, works, breaks = (begin.enqueue(name) for name in ("", "work", "break_down"))
    drain(app, queues=["front"])
    assert [chain.id for chain in app.chains.list(status="succeeded")] == [alone.id]
    assert [chain.id for chain in app.chains.list(status="ready")] == [breaks.id, works.id]
    assert [chain.id for chain in app.chains.list(status=["ready", "succeeded"])] == [breaks.id, works.id, alone.id]
    drain(app)
    assert [chain.id for chain in app.chains.list(status="failed")] == [breaks.id]
    assert [chain.id for chain in app.chains.list(status="succeeded")] == [works.id, alone.id]
    assert list(app.chains.list(status="ready")) == []


def test_the_other_filters_are_about_the_first_job(app: Holdfast, clock: FakeClock) -> None:
    add_tasks(app)
    begin = app.tasks["begin"]
    early = begin.using(tags=["red"], key="k").enqueue("work")
    clock.advance(60)
    late = begin.using(tags=["blue"]).enqueue("work")
    drain(app)

    def found(**filters: Any) -> list[int]:
        return [chain.id for chain in app.chains.list(**filters)]

    assert found(task="begin") == [late.id, early.id]
    assert found(task="work") == found(queue="back") == []
    assert found(queue="front", status="succeeded") == [late.id, early.id]
    assert found(tag="red") == found(key="k") == found(created_before=late.created_at) == [early.id]
    assert found(created_after=late.created_at) == [late.id]
    with pytest.raises(InvalidInput, match="colour"):
        app.chains.list(colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="status"):
        app.chains.list(status="broken")


def test_chains_come_in_pages(app: Holdfast) -> None:
    add_tasks(app)
    ids = [app.tasks["begin"].enqueue("work").id for _ in range(7)]
    drain(app)
    first = app.chains.list(limit=3)
    second = app.chains.list(limit=3, cursor=first.next)
    third = app.chains.list(limit=3, cursor=second.next)
    assert [[chain.id for chain in page] for page in (first, second, third)] == [
        ids[:3:-1],
        ids[3:0:-1],
        ids[:1],
    ]
    assert (first.previous, third.next) == (None, None)
    back = app.chains.list(limit=3, cursor=third.previous)
    assert [chain.id for chain in back] == [chain.id for chain in second]
    assert all(chain.length == 2 for page in (first, second, third) for chain in page)


def test_a_chain_of_each_status_is_found_by_it(live: Holdfast) -> None:
    flow, release = Flow(live), threading.Event()

    @live.task
    def hold(ctx: Context) -> None:
        comes_true(release)

    wanted = {
        "failed": flow.failed_job(),
        "blocked": flow.job("b", live.external("approve").id, delay=5),
        "scheduled": flow.job("s", delay=1000),
        "running": hold.enqueue(),
        "cancelled": flow.job("c"),
    }
    live.jobs.cancel(wanted["cancelled"].id)
    with RunningWorker(live):
        eventually(lambda: wanted["running"].refresh().status == "running")
        for status, job in wanted.items():
            assert job.id in [chain.id for chain in live.chains.list(status=status)], status
            assert [chain.status for chain in live.chains.list(status=status)] == [status] * (
                1 + (status == "blocked")
            )
        release.set()


def test_a_chain_says_what_it_is(app: Holdfast) -> None:
    add_tasks(app)
    root = app.tasks["begin"].enqueue("work")
    drain(app)
    chain = app.chains.get(root.id)
    assert repr(chain) == f"<Chain {root.id}: succeeded at job {chain.last.id}, 2 so far>"
