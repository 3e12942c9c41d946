"""Chains: a handler that returns Then succeeds and goes on, in one transaction, once."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, Task, Then
from holdfast.clock import SECOND
from holdfast.errors import InvalidContinuation, InvalidInput, JobNotFound, NoResult
from holdfast.model.job import Claimed, ClaimRequest, NewJob, Settlement
from holdfast.testing import FakeClock
from support.flow import Events, Open, Sql
from support.running_worker import drain
from support.transitions import recover

Claim = Callable[..., Claimed]


def count_down(app: Holdfast, **options: Any) -> Task[..., Any]:
    @app.task(**options)
    def down(n: int) -> str | Then:
        return Then(down, n - 1) if n else "lift off"

    return down


def settle(app: Holdfast, *settlements: Settlement) -> list[Settlement]:
    return app.store.jobs.settle_and_claim(settlements, []).lost


def success(claimed: Claimed, **how: Any) -> Settlement:
    return Settlement(claimed.lease, "succeed", 1, 2, **how)


def then(task: str = "down", args: str = '{"n": 0}', **options: Any) -> NewJob:
    return NewJob(queue="default", task=task, args=args, **options)


# --- going on ---


def test_a_job_that_returns_then_succeeds_and_the_chain_goes_on(app: Holdfast, events: Events) -> None:
    root = count_down(app).enqueue(2)
    report = drain(app)
    chain = app.chains.get(root.id)
    jobs = chain.jobs()
    assert [(job.chain_id, job.chain_index, job.args, job.status) for job in jobs] == [
        (root.id, 0, {"n": 2}, "succeeded"),
        (root.id, 1, {"n": 1}, "succeeded"),
        (root.id, 2, {"n": 0}, "succeeded"),
    ]
    assert [job.result for job in jobs] == [None, None, "lift off"]
    assert (chain.id, chain.status, chain.length, chain.result) == (root.id, "succeeded", 3, "lift off")
    assert chain.last.id == jobs[-1].id
    assert chain.is_finished
    assert chain.finished_at == jobs[-1].finished_at
    assert report.succeeded == 3
    assert [events(job.id) for job in jobs] == [["enqueued", "claimed", "succeeded"]] * 3


def test_every_job_is_a_chain_of_at_least_one(app: Holdfast) -> None:
    job = count_down(app).enqueue(0)
    chain = app.chains.get(job.id)
    assert (job.chain_id, job.chain_index) == (job.id, 0)
    assert (chain.id, chain.length, chain.status, chain.result, chain.is_finished) == (
        job.id,
        1,
        "ready",
        None,
        False,
    )
    assert [one.id for one in chain.jobs()] == [job.id]
    drain(app)
    assert job.wait_chain(timeout=0) == job.wait(timeout=0) == "lift off"


def test_a_chain_is_found_by_any_of_its_jobs(app: Holdfast) -> None:
    root = count_down(app).enqueue(3)
    drain(app)
    chains = [app.chains.get(job.id) for job in app.chains.get(root.id).jobs()]
    assert [(chain.id, chain.length) for chain in chains] == [(root.id, 4)] * 4


def test_a_chain_that_does_not_exist_is_not_found(app: Holdfast) -> None:
    with pytest.raises(JobNotFound):
        app.chains.get(7)
    with pytest.raises(InvalidInput):
        app.chains.get("7")  # type: ignore[arg-type]


def test_a_chain_of_a_thousand(app: Holdfast) -> None:
    root = count_down(app).enqueue(999)
    report = drain(app)
    chain = app.chains.get(root.id)
    assert (report.succeeded, chain.length, chain.result) == (1000, 1000, "lift off")
    assert [job.chain_index for job in chain.jobs()] == list(range(1000))
    assert [job.args["n"] for job in chain.jobs()] == list(range(999, -1, -1))


def test_then_may_be_raised_and_coroutines_may_return_it(app: Holdfast) -> None:
    @app.task
    async def first() -> Then:
        await asyncio.sleep(0)
        return Then(second, word="from a coroutine")

    @app.task
    def second(word: str) -> None:
        raise Then(third, word)

    @app.task
    def third(word: str) -> str:
        return word

    root = first.enqueue()
    drain(app)
    assert root.wait_chain(timeout=0) == "from a coroutine"


def test_then_takes_the_options_of_using(app: Holdfast, clock: FakeClock) -> None:
    @app.task(queue="own", priority=1, max_attempts=2, timeout=3)
    def next_one(word: str) -> None: ...

    other = next_one.using(delay=60, priority=9, queue="slow", tags=["a", "b"], max_attempts=7, timeout=8)

    @app.task
    def plain() -> Then:
        return Then(next_one, "x")

    @app.task
    def changed() -> Then:
        return Then(other, word="y")

    @app.task
    def dated() -> Then:
        return Then(next_one.using(run_at=app.jobs.get(1).created_at + timedelta(hours=2)), "z")

    roots = [plain.enqueue(), changed.enqueue(), dated.enqueue()]
    drain(app, queues=["default"])
    a, b, c = (app.chains.get(root.id).last for root in roots)
    assert (a.queue, a.priority, a.max_attempts, a.timeout, a.tags, a.status) == ("own", 1, 2, 3.0, (), "ready")
    assert (b.queue, b.priority, b.max_attempts, b.timeout, b.tags) == ("slow", 9, 7, 8.0, ("a", "b"))
    assert (b.status, b.run_at - b.created_at) == ("scheduled", timedelta(seconds=60))
    assert (c.status, c.run_at - roots[0].created_at) == ("scheduled", timedelta(hours=2))
    assert [job.id for job in app.jobs.list(tag="b")] == [b.id]
    clock.advance(60)
    drain(app)
    assert [job.refresh().status for job in (a, b, c)] == ["succeeded", "succeeded", "scheduled"]


@pytest.mark.parametrize("characters", [4_000, 4_200, 100_000, 1_000_000])
def test_a_continuation_may_have_a_large_payload(app: Holdfast, characters: int) -> None:
    @app.task
    def begin() -> Then:
        return Then(measure, "é\0" + "x" * characters)

    @app.task
    def measure(text: str) -> list[Any]:
        return [len(text), text[:3]]

    root = begin.enqueue()
    drain(app)
    assert root.wait_chain(timeout=0) == [characters + 2, "é\0x"]


def test_the_continuation_is_there_as_soon_as_the_success_is(app: Holdfast, sql: Sql, claim: Claim) -> None:
    """As another program sees them: at no commit is there one without the other."""
    count_down(app).enqueue(1)
    claimed = claim()
    assert sql("SELECT count(*) FROM holdfast_jobs") == [(1,)]
    assert settle(app, success(claimed, then=then())) == []
    assert sql("SELECT chain_id, status FROM holdfast_jobs ORDER BY id") == [(None, "succeeded"), (1, "ready")]


# --- once ---


def test_a_continuation_happens_once_however_often_the_job_is_run(app: Holdfast, sql: Sql) -> None:
    ran: list[str] = []

    @app.task
    def first() -> Then:
        ran.append("first")
        return Then(second)

    @app.task
    def second() -> str:
        ran.append("second")
        return "done"

    root = first.enqueue()
    drain(app)
    for _ in range(3):
        sql("UPDATE holdfast_jobs SET status = 'ready' WHERE id = ?", (root.id,))
        drain(app)
    assert ran == ["first", "second", "first", "first", "first"]
    assert sql("SELECT chain_id, chain_index FROM holdfast_jobs ORDER BY id") == [(None, 0), (root.id, 1)]
    assert (app.chains.get(root.id).length, root.wait_chain(timeout=0)) == (2, "done")


def test_another_row_for_the_same_place_in_a_chain_is_refused_by_the_database(app: Holdfast, sql: Sql) -> None:
    root = count_down(app).enqueue(1)
    drain(app)
    statement = "INSERT INTO holdfast_jobs (task, chain_id, chain_index) VALUES ('down', ?, 1)"
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(statement, (root.id,))


@pytest.mark.parametrize("how", ["cancelled", "completed", "taken over", "recovered"])
def test_an_attempt_that_has_lost_its_lease_does_not_continue(
    app: Holdfast, claim: Claim, clock: FakeClock, how: str
) -> None:
    job = count_down(app).enqueue(1)
    claimed = claim(lease=10)
    if how == "cancelled":
        app.jobs.cancel(job.id)
    elif how == "completed":
        app.jobs.complete(job.id, "by hand")
    else:
        clock.advance(11)
        recover(app.store)
    newer = claim() if how == "taken over" else None
    late = success(claimed, then=then())
    assert settle(app, late) == [late]
    assert app.jobs.count() == 1
    if newer is not None:
        assert settle(app, success(newer, then=then())) == []
        assert app.chains.get(job.id).length == 2


def test_many_outcomes_are_settled_in_one_exchange(app: Holdfast, clock: FakeClock) -> None:
    """Successes, continuations of any size and failures, and one that has lost its lease."""
    down = count_down(app)
    ids = down.enqueue_many([{"n": n} for n in range(40)])
    wanted = ClaimRequest(["down"], 40, SECOND * 30, "worker-1")
    claimed = app.store.jobs.settle_and_claim([], [wanted]).claimed
    app.jobs.cancel(ids[39])
    large = f'{{"n": 0, "pad": "{"x" * 5000}"}}'
    plans: list[Callable[[Claimed], Settlement]] = [
        lambda one: success(one, result='"plain"'),
        lambda one: success(one, then=then(args=f'{{"n": {one.id}}}')),
        lambda one: success(one, then=then(args=large)),
        lambda one: Settlement(one.lease, "stop", 1, 2, reason="no more"),
    ]
    settlements = [plans[index % 4](one) for index, one in enumerate(claimed)]
    assert settle(app, *settlements) == [settlements[39]]
    assert len(app.store.jobs.settle_and_claim([], [wanted]).claimed) == 20, "what they go on with"
    kinds = [[app.chains.get(job_id) for job_id in ids[first::4]] for first in range(4)]
    assert {(chain.length, chain.status) for chain in kinds[0]} == {(1, "succeeded")}
    assert {(chain.length, chain.status) for chain in kinds[1]} == {(2, "running")}
    assert [chain.last.args["n"] for chain in kinds[1]] == [chain.id for chain in kinds[1]]
    assert {(chain.length, len(chain.last.args["pad"])) for chain in kinds[2]} == {(2, 5000)}
    assert {(chain.length, chain.status) for chain in kinds[3]} == {(1, "cancelled")}


def test_many_chains_at_once_keep_apart(live: Holdfast) -> None:
    @live.task
    def walk(ctx: Context, name: int, left: int) -> Any:
        return Then(walk, name, left - 1) if left else [name, ctx.job.chain_index]

    roots = [walk.enqueue(name, name % 7) for name in range(60)]
    drain(live, concurrency=4)
    assert [root.wait_chain(timeout=0) for root in roots] == [[name, name % 7] for name in range(60)]


def test_a_job_that_keeps_no_history_goes_on_and_is_waited_for(app: Holdfast, sql: Sql) -> None:
    """As plain SQL makes it. Alone it is deleted when it succeeds; with others it stays."""
    down = count_down(app)
    for n in (0, 2):
        sql("INSERT INTO holdfast_jobs (task, args, history) VALUES ('down', ?, ?)", (f'{{"n": {n}}}', False))
    waiting = down.using(after=[1, 2]).enqueue(0)
    drain(app)
    assert (app.chains.get(1).status, app.chains.get(2).length, app.chains.get(2).result) == (
        "succeeded",
        3,
        "lift off",
    )
    assert waiting.refresh().status == "succeeded"


# --- what cannot be continued with ---


def test_what_is_no_continuation_fails_at_once_and_says_why(app: Holdfast, open_app: Open) -> None:
    elsewhere = count_down(open_app(prefix="other_"))
    down = count_down(app)
    bad: dict[str, tuple[Callable[[], Then], str]] = {
        "unknown": (lambda: Then("down", 1), "str"),
        "function": (lambda: Then(down.function, 1), "function"),
        "step": (lambda: Then(down.s(1)), "Step"),
        "missing": (lambda: Then(down), "missing"),
        "wrong": (lambda: Then(down, "one"), "type"),
        "extra": (lambda: Then(down, 1, color="red"), "color"),
        "unstorable": (lambda: Then(down, object()), "JSON"),
        "key": (lambda: Then(down.using(key="k"), 1), "key"),
        "conn": (lambda: Then(down.using(conn=object()), 1), "conn"),
        "other app": (lambda: Then(elsewhere, 1), "another"),
        "policy": (lambda: Then(down.using(on_blocker_failure="fail"), 1), "after"),
    }

    @app.task(max_attempts=5, retry=0)
    def go(which: str) -> Then:
        return bad[which][0]()

    for which, (_, words) in bad.items():
        job = go.enqueue(which)
        drain(app)
        assert (job.refresh().status, job.attempt) == ("failed", 1), which
        assert job.error_code == "RESULT:BAD_CONTINUATION", which
        assert words in (job.error_detail or ""), (which, job.error_detail)
        assert app.chains.get(job.id).length == 1, which
    elsewhere.app.close()


def test_a_then_that_does_not_fit_is_refused_when_it_is_built(app: Holdfast) -> None:
    @app.task
    def leaf(name: str) -> None: ...

    with pytest.raises(InvalidContinuation, match="leaf: unknown argument 'zzz'"):
        Then(leaf, "x", zzz=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidContinuation, match="leaf: argument 'name' has the wrong type"):
        Then(leaf.using(delay=5), 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidContinuation, match="must be given a task"):
        Then(print)  # type: ignore[arg-type]
    assert Then(leaf, "x") == Then(leaf, "x") != Then(leaf, "y")


# --- what wait() returns of a job that continued ---


def test_wait_of_a_job_that_continued_returns_none_only_if_its_annotation_allows_none(app: Holdfast) -> None:
    @app.task
    def last() -> float:
        return 1.5

    @app.task
    def text_or_more(more: bool) -> str | Then:
        return Then(last) if more else "no more"

    @app.task
    def nothing_or_more() -> str | Then | None:
        return Then(last)

    @app.task
    def only_more() -> Then:
        return Then(last)

    text, job, nothing, only = (
        text_or_more.enqueue(False),
        text_or_more.enqueue(True),
        nothing_or_more.enqueue(),
        only_more.enqueue(),
    )
    drain(app)
    assert text.wait(timeout=0) == "no more"
    with pytest.raises(NoResult, match=r"continued with Then: use wait_chain\(\)"):
        job.wait(timeout=0)
    assert job.wait_chain(timeout=0) == 1.5
    assert nothing.wait(timeout=0) is None and only.wait(timeout=0) is None


def test_wait_chain_returns_the_result_of_the_task_that_is_named_or_raises(app: Holdfast) -> None:
    @app.task
    def ship() -> str:
        return "shipped"

    @app.task
    def refund() -> int:
        return 5

    @app.task
    def order() -> Then:
        return Then(ship)

    job = order.enqueue()
    drain(app)
    assert job.wait_chain(timeout=0, last=ship) == "shipped"
    with pytest.raises(NoResult, match="ended with ship, not with refund"):
        job.wait_chain(timeout=0, last=refund)


def test_a_chain_may_go_on_with_a_task_of_another_app_on_the_same_database(app: Holdfast, open_app: Open) -> None:
    other = open_app()
    down = count_down(other)

    @app.task
    def begin() -> Then:
        return Then(down, 1)

    root = begin.enqueue()
    drain(app)
    assert app.chains.get(root.id).status == "ready", "this app has not the code of it"
    drain(other)
    assert root.wait_chain(timeout=0) == "lift off"


def test_a_batch_is_not_for_a_continuation(app: Holdfast) -> None:
    down = count_down(app)

    @app.task
    def member(ctx: Context) -> Then:
        return Then(down.using(batch=ctx.batch), 0)

    with app.batch() as batch:
        inside = member.using(batch=batch).enqueue()
    outside = member.enqueue()
    drain(app)
    assert (inside.refresh().status, inside.error_code) == ("failed", "RESULT:BAD_CONTINUATION")
    assert outside.wait_chain(timeout=0) == "lift off", "batch=None is none"


def test_then_says_nothing_of_its_arguments_in_a_log(app: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    def keep(word: str, name: str) -> None: ...

    assert "s3cret" not in repr(Then(keep, "s3cret", name="s3cret"))

    @app.task
    def leak() -> Then:
        return Then("s3cret-no-task", "s3cret")

    with caplog.at_level(logging.DEBUG, "holdfast"):
        job = leak.enqueue()
        drain(app)
    assert "s3cret" not in caplog.text + str(job.refresh().error_detail)
