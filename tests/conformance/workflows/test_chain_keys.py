"""A key on the first job of a chain holds until the chain has ended."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Job, Task, Then
from holdfast.errors import InvalidInput
from holdfast.model.job import Claimed, Settlement
from holdfast.testing import FakeClock
from support.flow import Sql
from support.running_worker import drain

Claim = Callable[..., Claimed]


@pytest.fixture
def order(app: Holdfast) -> Task[..., Any]:
    """order -> pay -> ship, of which the last two are on a queue of their own. Payment fails if it is told to."""

    @app.task
    def order(number: int = 0) -> Then:
        return Then(pay.using(queue="bank"), number)

    @app.task(max_attempts=1, name="pay")
    def pay(ctx: Context, number: int) -> Then:
        if number < 0 and ctx.attempt == 1:
            raise ConnectionError
        return Then(ship, number)

    @app.task(queue="dock", name="ship")
    def ship(number: int) -> int:
        return number

    return order


def enqueue(order: Task[..., Any], number: int = 0, **options: Any) -> Job[Any]:
    return order.using(key="order-7", **options).enqueue(number)


def test_the_key_holds_while_the_chain_goes_on(app: Holdfast, order: Task[..., Any]) -> None:
    first = enqueue(order)
    for queue in ("default", "bank"):
        drain(app, queues=[queue])
        again = enqueue(order, 1)
        assert again.deduplicated
        assert (again.id, again.status) == (first.id, "succeeded")
    drain(app)
    assert app.chains.get(first.id).status == "succeeded"
    assert app.jobs.count() == 3


def test_the_key_is_free_when_the_chain_has_ended_well(app: Holdfast, order: Task[..., Any]) -> None:
    first = enqueue(order)
    drain(app)
    second = enqueue(order)
    assert not second.deduplicated
    assert second.id != first.id


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is completed", "is deleted"])
def test_the_key_is_free_when_the_chain_has_ended_otherwise(app: Holdfast, order: Task[..., Any], how: str) -> None:
    first = enqueue(order, -1 if how == "fails" else 0)
    drain(app, queues=["default"])
    last = app.chains.get(first.id).last
    if how == "fails":
        drain(app, queues=["bank"])
    elif how == "is cancelled":
        assert app.jobs.cancel(last.id)
    elif how == "is completed":
        assert app.jobs.complete(last.id)
    else:
        assert app.chains.delete(first.id)
    second = enqueue(order)
    assert not second.deduplicated
    assert second.id != first.id


def test_the_key_is_free_when_the_last_job_is_ended_by_plain_sql(
    app: Holdfast, order: Task[..., Any], sql: Sql
) -> None:
    first = enqueue(order)
    drain(app, queues=["default"])
    sql("UPDATE holdfast_jobs SET status = 'succeeded' WHERE id = ?", (app.chains.get(first.id).last.id,))
    assert not enqueue(order).deduplicated


def test_a_chain_that_comes_back_takes_its_key_again(app: Holdfast, order: Task[..., Any]) -> None:
    first = enqueue(order, -1)
    drain(app)
    chain = app.chains.get(first.id)
    assert chain.status == "failed"
    app.jobs.retry(chain.last.id)
    again = enqueue(order)
    assert (again.deduplicated, again.id) == (True, first.id)
    drain(app)
    assert chain.refresh().status == "succeeded"
    assert not enqueue(order).deduplicated


def test_a_chain_whose_key_another_has_now_is_not_retried(app: Holdfast, order: Task[..., Any]) -> None:
    first = enqueue(order, -1)
    drain(app)
    last = app.chains.get(first.id).last
    second = enqueue(order)
    assert app.jobs.retry(last.id) is False
    drain(app, queues=["default"])
    assert app.jobs.retry(last.id) is False, "the key is the other chain's until that has ended"
    assert last.refresh().status == "failed"
    assert enqueue(order).id == second.id
    drain(app)
    assert app.jobs.retry(last.id) is True
    drain(app)
    assert [app.chains.get(one.id).status for one in (first, second)] == ["succeeded", "succeeded"]


def test_the_window_of_a_key_counts_from_the_end_of_the_chain(
    app: Holdfast, order: Task[..., Any], clock: FakeClock, claim: Claim
) -> None:
    def end(then: Any = None) -> None:
        one = claim()
        app.store.jobs.settle_and_claim([Settlement(one.lease, "succeed", clock.now(), clock.now(), then=then)], [])

    first = enqueue(order, key_window=60)
    end(order.go_on_with(Then(app.tasks["pay"], 0)))
    clock.advance(100)
    end(order.go_on_with(Then(app.tasks["ship"], 0)))
    clock.advance(100)
    end()
    clock.advance(59)
    again = enqueue(order, key_window=60)
    assert (again.deduplicated, again.id) == (True, first.id)
    clock.advance(2)
    assert not enqueue(order, key_window=60).deduplicated


def test_replacing_does_not_change_a_chain_that_goes_on(app: Holdfast, order: Task[..., Any]) -> None:
    first = enqueue(order, 1)
    drain(app, queues=["default"])
    again = enqueue(order, 2, on_conflict="replace")
    assert (again.deduplicated, again.id, again.args) == (True, first.id, {"number": 1})
    drain(app)
    assert first.wait_chain(timeout=0) == 1


def test_a_task_that_goes_on_with_itself_needs_no_second_key(app: Holdfast) -> None:
    """The next job of the chain is of the same task, and finds itself when it enqueues with the key."""
    found: list[int] = []

    @app.task
    def crawl(page: int) -> Any:
        found.append(crawl.using(key="crawl").enqueue(0).id)
        return Then(crawl, page + 1) if page < 3 else "end"

    root = crawl.using(key="crawl").enqueue(0)
    drain(app)
    assert root.wait_chain(timeout=0) == "end"
    assert found == [root.id] * 4


def test_the_same_key_of_another_task_is_free(app: Holdfast, order: Task[..., Any]) -> None:
    enqueue(order)
    drain(app, queues=["default"])
    assert not app.tasks["ship"].using(key="order-7").enqueue(1).deduplicated


def test_a_key_holds_while_its_job_is_blocked(app: Holdfast, order: Task[..., Any]) -> None:
    blocker = app.tasks["ship"].enqueue(1)
    first = enqueue(order, after=[blocker])
    again = enqueue(order)
    assert (again.deduplicated, again.id, again.status) == (True, first.id, "blocked")


def test_replacing_a_blocked_job_leaves_it_blocked(app: Holdfast, order: Task[..., Any]) -> None:
    blocker = app.tasks["ship"].enqueue(1)
    first = enqueue(order, after=[blocker])
    again = enqueue(order, 5, on_conflict="replace")
    assert (again.id, again.status, again.args) == (first.id, "blocked", {"number": 5})
    drain(app)
    assert first.wait_chain(timeout=0) == 5


@pytest.mark.parametrize("name", ["after", "batch"])
def test_replacing_cannot_change_what_a_job_waits_for(app: Holdfast, order: Task[..., Any], name: str) -> None:
    blocker = app.tasks["ship"].enqueue(1)
    with app.batch() as batch, pytest.raises(InvalidInput, match="replace"):
        enqueue(order, on_conflict="replace", **{name: blocker if name == "after" else batch})
